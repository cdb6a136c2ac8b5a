"""The examples of clusters: no Kubernetes and no Slurm is here, so what they are given
is compared with what they, Ray and flytune take, and commands that stand for Slurm's
run on this host."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray.scripts.scripts as ray_cli
import yaml
from builds import DATA, environment

from flytune.caches.bundle import Bundle
from flytune.tuner.build_command import build_command

EXAMPLES = Path(__file__).parents[2] / "ci" / "cluster"
SLURM = EXAMPLES / "slurm.sh"
# Of ray.io_rayclusters.yaml, version v1, as KubeRay had it in August 2026; the whole of
# the example was compared with it.
SPEC = {
    *("rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions"),
    *("headGroupSpec", "workerGroupSpecs"),
}
AUTOSCALER = {"upscalingMode", "idleTimeoutSeconds", "resources"}
GROUP = {
    *("groupName", "replicas", "minReplicas", "maxReplicas"),
    *("rayStartParams", "template"),
}
NODES = ("gpu1", "gpu2")
# Each takes the options of the real command that the script gives it.
STAND_INS = {
    "scontrol": """
        case "$1" in
            show) printf '%s\\n' gpu1 gpu2 ;;
            *) echo "$@" >> "$LOG/scontrol" ;;
        esac""",
    "srun": """
        while [[ $1 == --* ]]; do
            case "$1" in --nodelist=*) node=${1#*=} ;; esac
            shift
        done
        if [[ $1 == hostname ]]; then echo "127.0.0.1 192.0.2.1 "; exit; fi
        echo "$node $*" >> "$LOG/srun"
        exec "$@" """,
}
FAKES = {
    "ray": """
        echo "$*" >> "$LOG/ray"
        if [[ $1 == start ]]; then
            [[ $RAY_AUTH_MODE == token && ${#RAY_AUTH_TOKEN} == 64 ]] || exit 9
            exec sleep 60
        fi
        until grep -qs -- --head "$LOG/srun"; do sleep 0.05; done""",
    "flytune": """
        sleep 60 &
        trap 'kill $!; exit 130' TERM
        until [[ $(wc -l < "$LOG/srun") == 2 ]]; do sleep 0.05; done
        echo "$*" >> "$LOG/flytune"
        case "$*" in *--hang*) wait ;; esac
        kill $!
        exit 3""",
}


def documents() -> dict[str, dict[str, Any]]:
    text = (EXAMPLES / "kuberay.yaml").read_text()
    made = list(yaml.safe_load_all(text))
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in made}


def test_kuberay_knows_each_field_of_the_cluster() -> None:
    cluster = documents()["RayCluster/flytune"]
    assert cluster["apiVersion"] == "ray.io/v1"
    spec = cluster["spec"]
    assert set(spec) <= SPEC
    assert set(spec["autoscalerOptions"]) <= AUTOSCALER
    assert spec["enableInTreeAutoscaling"] is True
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    known = {name for p in ray_cli.start.params for name in p.opts}
    for group in groups:
        assert set(group) <= GROUP
        for name, value in group["rayStartParams"].items():
            assert f"--{name}" in known
            assert isinstance(value, str)
        (container,) = group["template"]["spec"]["containers"]
        resources = container["resources"]
        assert resources["limits"] == resources["requests"]
        assert {"cpu", "memory"} <= set(resources["limits"])
    compile_group, device_group = spec["workerGroupSpecs"]
    assert compile_group["minReplicas"] == 0 < compile_group["maxReplicas"]
    gpus = [
        g["template"]["spec"]["containers"][0]["resources"]["limits"].get(
            "nvidia.com/gpu"
        )
        for g in (compile_group, device_group)
    ]
    assert gpus == [None, "8"]
    import importlib.metadata

    assert spec["rayVersion"] == importlib.metadata.version("ray")


def test_the_job_asks_what_flytune_takes_of_the_cluster_that_is_there() -> None:
    made = documents()
    pod = made["Job/flytune-build"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["flytune"]
    name, *words = container["args"]
    assert name == "build"
    options = build_command.options_of(words)
    spec = made["RayCluster/flytune"]["spec"]
    (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    (port,) = [p["containerPort"] for p in head["ports"] if p["name"] == "client"]
    assert options.ray == f"ray://flytune-head-svc:{port}"
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert options.out is not None
    assert options.key is not None
    assert {str(options.out.parent), str(options.key.parent)} == mounts
    claimed = [
        volume["persistentVolumeClaim"]["claimName"]
        for part in (pod, spec["workerGroupSpecs"][1]["template"]["spec"])
        for volume in part["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert {f"PersistentVolumeClaim/{claim}" for claim in claimed} <= set(made)
    images = {container["image"], head["image"]}
    assert len(images) == 1


@pytest.fixture
def log(tmp_path: Path) -> Path:
    folder = tmp_path / "log"
    folder.mkdir()
    return folder


def commands(folder: Path, scripts: dict[str, str]) -> Path:
    """Make commands that stand for others, and return their folder."""
    folder.mkdir(exist_ok=True)
    for name, body in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return folder


def job(folder: Path, log: Path, *words: str) -> subprocess.Popen[str]:
    """Start the script as Slurm would, in a job of two nodes."""
    env = {
        **environment(folder / "home"),
        "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LOG": str(log),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "gpu[1-2]",
        "FLYTUNE_RAY_PORT": "27379",
        # A busy host starts it slowly.
        "RAY_raylet_start_wait_time_s": "120",
    }
    return subprocess.Popen(
        [str(SLURM), *words],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_a_slurm_job_starts_ray_on_each_node_and_builds(
    tmp_path: Path, log: Path
) -> None:
    commands(tmp_path / "bin", STAND_INS | FAKES)
    with job(tmp_path, log, "--model", "Qwen3-4B", "--out", "a b.tar.zst") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (3, "", "")
    at = "127.0.0.1:27379"
    assert lines(log / "flytune") == [
        f"build --ray {at} --model Qwen3-4B --out a b.tar.zst"
    ]
    build_command.options_of(["--ray", at, "--model", "Qwen3-4B"])
    started = [line.partition(" ")[::2] for line in lines(log / "srun")]
    assert tuple(node for node, _ in started) == NODES
    for _, line in started:
        name, *words = shlex.split(line)[1:]
        # Ray takes each of its options, and has none without a value.
        assert name == "start"
        ray_cli.start.make_context("start", words)
    assert "--head" in started[0][1]
    assert f"--address={at}" in started[1][1]
    assert lines(log / "scontrol") == []


def test_a_slurm_job_that_runs_out_of_time_is_queued_again(
    tmp_path: Path, log: Path
) -> None:
    commands(tmp_path / "bin", STAND_INS | FAKES)
    with job(tmp_path, log, "--hang") as process:
        until = time.monotonic() + 30
        while not lines(log / "flytune"):
            assert time.monotonic() < until
            time.sleep(0.05)
        # Slurm signals the script alone.
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert lines(log / "scontrol") == ["requeue 7"]


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """Real Ray processes for each node of a job, on this host."""
    python = f"{sys.executable} -c"
    main = "from flytune.tuner.cli import main; main()"
    scripts = STAND_INS | {"flytune": f'exec {python} "{main}" "$@"'}
    return commands(tmp_path / "bin", scripts)


@pytest.mark.slow
def test_a_slurm_job_builds_with_real_rays(
    real: Path, tmp_path: Path, log: Path
) -> None:
    model, out = DATA / "square-llama.json", tmp_path / "b.tar.zst"
    with job(
        tmp_path,
        log,
        *("--model", str(model), "--tokens", "64", "--target", "h200"),
        *("--compile-only", "--threads", "2", "--out", str(out)),
    ) as process:
        _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    Bundle.open(out).check()
    assert len(lines(log / "srun")) == 2
