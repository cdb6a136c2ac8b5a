import importlib.metadata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builds import LLAMA

from flytune.caches.device_profile import DeviceProfile, find_profile
from flytune.caches.policy import cpu_policy
from flytune.caches.program import Bake, ProgramSpec
from flytune.shapes.errors import FlytuneError
from flytune.shapes.gemm import GemmShape
from flytune.tuner import plan, plan_device
from flytune.tuner.candidate import stored_form
from flytune.tuner.options import BuildOptions
from flytune.tuner.plan import GIB, free_bytes, make_plan, needed_bytes


def options(tmp_path: Path, **changes: Any) -> BuildOptions:
    whole = BuildOptions(
        model="Qwen3-4B",
        tokens=(1, 16),
        attention="eager",
        policy="unfrozen",
        threads=2,
        out=tmp_path / "bundle",
        work=tmp_path / "work",
        ray=None,
        from_bundle=None,
        bake_passes=3,
    )
    return replace(whole, **changes)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda: 1024 * GIB)


@pytest.mark.usefixtures("free")
def test_the_same_build_finds_its_directory_again(tmp_path: Path) -> None:
    first = make_plan(options(tmp_path))
    assert first.work.parent == tmp_path / "work"
    assert first.work.name.startswith("qwen3-4b-")
    assert make_plan(options(tmp_path, out=tmp_path / "other")).work == first.work


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "Llama-3.1-8B"},
        {"tokens": (1, 8)},
        {"attention": "sdpa"},
        {"policy": "frozen"},
        {"threads": 1},
    ],
)
def test_what_decides_the_kernels_names_the_directory(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert (
        make_plan(options(tmp_path, **changes)).work
        != make_plan(options(tmp_path)).work
    )


@pytest.mark.usefixtures("free")
def test_lists_that_another_version_stored_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = make_plan(options(tmp_path)).work
    monkeypatch.setattr(plan, "stored_form", lambda: {"Candidate": ["backend"]})
    assert make_plan(options(tmp_path)).work != before


def test_stored_lists_are_named_field_by_field() -> None:
    form = stored_form()
    assert "declined" in form["CandidateList"]
    assert "build_key" in form["Candidate"]
    assert form["TensorSpec"] == ["sizes", "strides", "dtype", "offset"]


def test_short_memory_names_the_largest_gemm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda: GIB)
    with pytest.raises(FlytuneError) as caught:
        make_plan(options(tmp_path))
    said = str(caught.value)
    assert said.startswith("no memory for lm_head mm (16, 151936, 2560): the build")
    assert said.endswith(" GiB and 1.0 GiB are free")
    assert not (tmp_path / "work").exists()


def test_memory_that_just_suffices_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "free_bytes", lambda: 1024 * GIB)
    needed = make_plan(options(tmp_path)).needed_bytes
    monkeypatch.setattr(plan, "free_bytes", lambda: needed)
    make_plan(options(tmp_path))
    monkeypatch.setattr(plan, "free_bytes", lambda: needed - 1)
    with pytest.raises(FlytuneError, match="no memory for"):
        make_plan(options(tmp_path))


def program(bake: Bake) -> ProgramSpec:
    return ProgramSpec({"num_hidden_layers": 80}, "eager", bake=bake)


def test_frozen_weights_and_whole_models_need_more_memory() -> None:
    weight = 28672 * 8192 * 2
    shapes = (
        *(
            GemmShape("mm", 16, 28672, 8192, module=f"model.layers.*.{name}")
            for name in ("gate", "up", "down")
        ),
        GemmShape("mm", 16, 28672, 8192, module="lm_head"),
    )
    needed = {
        (name, bake): needed_bytes(
            shapes,
            cpu_policy(name, tokens=(16,), threads=2, attention="eager"),
            program(bake),
        )
        for name in ("unfrozen", "frozen")
        for bake in ("layers", "model")
    }
    layers, model = needed["unfrozen", "layers"], needed["unfrozen", "model"]
    assert 3 * weight < layers < needed["frozen", "layers"]
    # The head and the embedding beside one layer: the others lie in its memory.
    assert 5 * weight < model < layers + 3 * weight
    # Packed, each layer has memory of its own.
    assert needed["frozen", "model"] > 80 * 3 * 2 * weight


def test_no_shapes_still_need_a_process() -> None:
    policy = cpu_policy("frozen", tokens=(1,), threads=1, attention="sdpa")
    assert needed_bytes((), policy, program("layers")) > GIB


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize("kind", ["file", "directory", "link", "dangling link"])
def test_an_output_that_exists_is_refused(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "bundle"
    match kind:
        case "file":
            out.touch()
        case "directory":
            out.mkdir()
        case "link":
            out.symlink_to(tmp_path)
        case "dangling link":
            out.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FlytuneError, match=f"output exists: {out}"):
        make_plan(options(tmp_path))


@pytest.mark.usefixtures("free")
def test_an_output_without_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for parent in (tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(
            FlytuneError, match=f"no directory for the output: {parent}"
        ):
            make_plan(options(tmp_path, out=parent / "bundle"))


@pytest.mark.usefixtures("free")
def test_an_output_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    # Nobody creates files there, root included, whatever the directory's mode says.
    with pytest.raises(FlytuneError, match="output cannot be written: /proc: "):
        make_plan(options(tmp_path, out=Path("/proc/bundle")))


@pytest.mark.usefixtures("free")
def test_nothing_is_left_beside_the_output(tmp_path: Path) -> None:
    make_plan(options(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.10.1", "torch is older than 2.11, the oldest supported: 2.10.1"),
        (
            "1.13.0+cu117",
            "torch is older than 2.11, the oldest supported: 1.13.0+cu117",
        ),
        ("unknown", "torch has an unreadable version: `unknown`"),
    ],
)
def test_an_unsupported_torch_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    with pytest.raises(FlytuneError) as caught:
        make_plan(options(tmp_path))
    assert str(caught.value) == said


@pytest.mark.usefixtures("free")
def test_an_unknown_model_or_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FlytuneError, match="Qwen3-4"):
        make_plan(options(tmp_path, model="Qwen3-4"))
    with pytest.raises(FlytuneError, match="unknown policy: `warm`"):
        make_plan(options(tmp_path, policy="warm"))


def device(**properties: Any) -> DeviceProfile:
    profile = find_profile("h200")
    return replace(profile, properties={**profile.properties, **properties})


def live(patch: pytest.MonkeyPatch, profile: DeviceProfile | None) -> None:
    patch.setattr(plan_device, "live_profile", lambda: profile)


def small(tmp_path: Path, **changes: Any) -> BuildOptions:
    whole: dict[str, Any] = {"model": str(LLAMA), "attention": None, **changes}
    return options(tmp_path, **whole)


def said(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(FlytuneError) as caught:
        make_plan(small(tmp_path, **changes))
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


def test_a_plan_for_an_absent_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(monkeypatch, None)
    # The memory that counts is the device's.
    monkeypatch.setattr(plan, "free_bytes", lambda: 0)
    absent = {"target": "h200", "compile_only": True}
    made = make_plan(small(tmp_path, **absent))
    assert made.profile == find_profile("h200")
    assert made.target.hardware == find_profile("h200").hardware()
    assert (made.policy.device, made.policy.attention) == ("cuda", "sdpa")
    assert made.policy.inductor["max_autotune_gemm_backends"] == "ATEN,TRITON"
    default = make_plan(small(tmp_path, out=None, **absent))
    assert default.out == Path(f"{LLAMA.stem}.cuda-nvidia-h200-sm_90.tar.zst")
    # A build on the device goes on from what was compiled without it.
    live(monkeypatch, find_profile("h200"))
    assert make_plan(small(tmp_path)).work == made.work


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    "changes", [{"search": "exhaustive"}, {"backends": ("TRITON",)}]
)
def test_what_decides_the_lists_names_the_directory_too(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    absent = {"target": "h200", "compile_only": True}
    first = make_plan(small(tmp_path, **absent))
    assert make_plan(small(tmp_path, **absent, **changes)).work != first.work


@pytest.mark.usefixtures("free")
def test_the_device_at_hand_is_taken_unless_the_cpu_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(monkeypatch, device())
    for name in ("auto", "cuda"):
        assert make_plan(small(tmp_path, device=name)).profile == device()
    assert make_plan(small(tmp_path, device="cpu")).profile is None
    # Drivers keep more or less of its memory to themselves.
    live(monkeypatch, device(total_memory=140 * GIB))
    assert make_plan(small(tmp_path, target="h200")).profile == device()
    live(monkeypatch, None)
    assert make_plan(small(tmp_path, device="auto")).profile is None


@pytest.mark.usefixtures("free")
def test_an_amd_gpu_at_hand_is_timed_on_and_its_program_baked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amd = find_profile("mi355x")
    live(monkeypatch, amd)
    here = make_plan(small(tmp_path))
    assert (here.profile, here.policy.device) == (amd, "cuda")
    assert here.program is not None
    # Shapes stand for the program where nothing runs, as where there is no device.
    assert make_plan(small(tmp_path, compile_only=True)).program is None


@pytest.mark.usefixtures("free")
def test_a_target_that_is_not_here_cannot_be_timed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "the target is not here to be timed on: h200, here is "
    live(monkeypatch, None)
    assert said(tmp_path, target="h200") == f"{words}no accelerator"
    for changes in ({"name": "NVIDIA H100"}, {"multi_processor_count": 131}):
        live(monkeypatch, device(**changes))
        name = device(**changes).product
        assert said(tmp_path, target="h200") == f"{words}{name}"


@pytest.mark.usefixtures("free")
def test_devices_that_nothing_is_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(monkeypatch, None)
    assert said(tmp_path, device="cuda") == (
        "no accelerator here, or torch cannot use it"
    )
    live(monkeypatch, device(name="NVIDIA L4", multi_processor_count=58))
    assert said(tmp_path) == (
        "Inductor does not tune on so small a device: NVIDIA L4 has 58 "
        "multiprocessors, and 68 are needed"
    )
    amd = find_profile("mi355x")
    live(monkeypatch, amd)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2")
    assert said(tmp_path) == (
        "devices are hidden by more than HIP_VISIBLE_DEVICES: ROCR_VISIBLE_DEVICES=2"
    )
    live(monkeypatch, replace(amd, arch="gfx942"))
    assert said(tmp_path, compile_only=True) == (
        "no builds for this architecture: gfx942"
    )
    live(monkeypatch, device(total_memory=2 * GIB))
    assert said(tmp_path).endswith(" GiB and 2.0 GiB are on the device")


def cgroup(folder: Path, limit: str, used: int, files: int) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {files}\n")
    return folder


def test_free_memory_is_what_the_cgroup_leaves(tmp_path: Path) -> None:
    assert free_bytes(cgroup(tmp_path, "1000", 600, 0)) == 400


def test_pages_of_files_that_were_read_are_free(tmp_path: Path) -> None:
    assert free_bytes(cgroup(tmp_path, "1000", 900, 700)) == 800


def test_without_a_limit_the_host_decides(tmp_path: Path) -> None:
    host = free_bytes(tmp_path / "absent")
    assert host > 2**20
    for limit in ("max", str(2**60)):
        limited = free_bytes(cgroup(tmp_path, limit, 600, 0))
        assert limited == pytest.approx(host, rel=0.5)


@pytest.mark.usefixtures("free")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("GLM-5", "GlmMoeDsaForCausalLM does not run without its layers: "),
        ("Qwen3-32B-FP8", r"the weights are quantised \(fp8\)"),
    ],
)
def test_a_program_that_cannot_be_baked_is_refused(
    tmp_path: Path, name: str, message: str
) -> None:
    model = str(Path(__file__).parents[1] / "data" / "configs" / f"{name}.json")
    with pytest.raises(FlytuneError, match=f"no program to bake: {message}") as caught:
        make_plan(options(tmp_path, model=model, quant="bf16", attention="sdpa"))
    assert caught.value.hint == (
        "compile for an accelerator, --target NAME, with --compile-only"
    )
    assert not (tmp_path / "work").exists()


@pytest.mark.usefixtures("free")
def test_shapes_by_hand_are_planned_where_nothing_is_baked(tmp_path: Path) -> None:
    listed = tmp_path / "mine.csv"
    listed.write_text("n,k\n4096,2560\n")
    by_hand = {"model": "", "by_hand": listed}
    with pytest.raises(FlytuneError, match="no program to bake: its GEMMs are given"):
        make_plan(options(tmp_path, **by_hand))
    there = {"target": "h200", "compile_only": True, "out": None}
    made = make_plan(options(tmp_path, **by_hand, **there))
    assert [shape.problem for shape in made.shapes] == [
        ("mm", 1, 4096, 2560, 1, 0),
        ("mm", 16, 4096, 2560, 1, 0),
    ]
    assert (made.model.name, made.program) == ("mine", None)
    assert made.out.name.startswith("mine.")


@pytest.mark.usefixtures("free")
def test_a_quantised_checkpoint_is_planned_where_nothing_is_baked(
    tmp_path: Path,
) -> None:
    config = Path(__file__).parents[1] / "data" / "configs" / "Qwen3-32B-FP8.json"
    there = {"target": "h200", "compile_only": True, "engine": "vllm"}
    there |= {"attention": "sdpa", "allow_unreached": True}
    made = make_plan(options(tmp_path, model=str(config), tokens=(16,), **there))
    assert [shape.scaling for shape in made.shapes] == ["block128"] * 4 + [None]
    assert made.program is None


@pytest.mark.usefixtures("free")
def test_a_plan_of_which_nothing_has_a_list_is_refused(tmp_path: Path) -> None:
    listed = tmp_path / "mine.csv"
    listed.write_text(
        "op,n,k,a_dtype,b_dtype,scaling,module\n"
        "scaled_mm,4096,2560,bfloat16,uint4,awq,o_proj\n"
        "scaled_mm,2560,4096,bfloat16,uint4,awq,down_proj\n"
    )
    there = {"target": "h200", "compile_only": True, "out": None}
    there["allow_unreached"] = True
    with pytest.raises(FlytuneError) as caught:
        make_plan(options(tmp_path, model="", by_hand=listed, **there))
    assert str(caught.value) == (
        "nothing to tune, no program here calls a scaled_mm in awq: "
        "`o_proj`, `down_proj`"
    )
    assert caught.value.hint is not None
    assert not (tmp_path / "work").exists()
