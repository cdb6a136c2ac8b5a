"""The real builds that tests share: a few minutes once, and nobody may change them."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Tests are imported by path; this lets them import their helpers by name.
sys.path.insert(0, str(Path(__file__).parent))

from builds import (
    LLAMA,
    QWEN2,
    RIGGED,
    SQUARE,
    Build,
    Stopped,
    arguments_of,
    run_build,
    stop_build,
)
from by_file import ByFile
from flydsl_candidates import PROFILE, Rendered, builder, of_case
from shared import shared

from flytune.caches.keyring import own_key
from flytune.tuner.builder import build
from flytune.tuner.candidate import BuildResult

TESTS = Path(__file__).parent
# What takes long begins first, so that workers end together; and a file that needs what
# an earlier one builds comes after others, so that its worker need not wait for it.
FIRST = (
    "caches/test_verify_failures.py",
    "tuner/test_build_whole.py",
    "tuner/test_recorded_models.py",
    "tuner/test_variants.py",
    "tuner/test_bake_cmd.py",
    "tuner/test_compile_gfx950.py",
    "tuner/test_workers.py",
    "tuner/test_cluster.py",
    "caches/test_hook.py",
    "tuner/smart/test_waves.py",
    "tuner/smart/test_search.py",
    "tuner/test_build_recorded.py",
    "tuner/test_builder.py",
    "caches/test_ledger.py",
    "tuner/test_compile_only.py",
    "tuner/test_gfx950_lists.py",
    "tuner/test_search.py",
    "caches/test_stand_in.py",
    "tuner/test_build.py",
    "shapes/test_plan.py",
    "tuner/test_eligibility.py",
    "tuner/test_gemm_lists.py",
    "tuner/test_plan.py",
    "tuner/test_verify_command.py",
    "caches/test_ledger_hooks.py",
)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None and config.getoption("dist", "no") != "no":
        config.pluginmanager.register(ByFile(terminal))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {TESTS / name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """A shell's background job ignores SIGINT; tests and their children do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of keys, which processes inherit: one key, that is trusted there."""

    def make(folder: Path) -> Path:
        os.environ["FLYTUNE_KEYS"] = str(folder / "keys")
        own_key()
        return folder / "keys"

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FLYTUNE_TRUST", raising=False)
        patch.setenv("FLYTUNE_KEYS", "")
        folder = shared(tmp_path_factory, "keys", make)
        patch.setenv("FLYTUNE_KEYS", str(folder))
        yield folder


@pytest.fixture(scope="session")
def unfrozen_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """C++ won one of its two lists, and ATen the other."""

    def make(folder: Path) -> Build:
        arguments = arguments_of(LLAMA, "1,8", "unfrozen", folder / "work")
        command = (sys.executable, "-c", RIGGED)
        return run_build(arguments, folder / "bundle", folder / "home", command)

    return shared(tmp_path_factory, "unfrozen", make)


@pytest.fixture(scope="session")
def unfrozen_bundle(unfrozen_build: Build) -> Path:
    return unfrozen_build.bundle


@pytest.fixture(scope="session")
def compiled_build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Kernels of every candidate for an accelerator, which need not be here."""

    def make(folder: Path) -> Build:
        arguments = (
            *("build", "--model", str(SQUARE), "--tokens", "64", "--target", "h200"),
            *("--compile-only", "--threads", "2", "--work", str(folder / "work")),
        )
        return run_build(arguments, folder / "bundle.tar.zst", folder / "home")

    return shared(tmp_path_factory, "compiled", make)


@pytest.fixture(scope="session")
def stopped_build(tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    def make(folder: Path) -> Stopped:
        (folder / "out").mkdir()
        arguments = arguments_of(QWEN2, "8", "frozen", folder / "work")
        out = folder / "out" / "bundle.tar.zst"
        return stop_build(arguments, out, folder / "home")

    return shared(tmp_path_factory, "stopped", make)


@pytest.fixture(scope="session")
def frozen_build(
    stopped_build: Stopped, tmp_path_factory: pytest.TempPathFactory
) -> Build:
    """The same command again, which goes on from where it was stopped."""

    def make(_: Path) -> Build:
        out = stopped_build.home.parent / "out" / "bundle.tar.zst"
        return run_build(stopped_build.arguments, out, stopped_build.home)

    return shared(tmp_path_factory, "frozen", make)


@pytest.fixture(scope="session")
def frozen_bundle(frozen_build: Build) -> Path:
    return frozen_build.bundle


@pytest.fixture(scope="session")
def flydsl_kernels() -> tuple[Rendered, ...]:
    """One candidate of each kind of FlyDSL kernel, and the first for another size."""
    cases = (
        *("mm_bf16_16x1024x4096", "mm_bf16_256x8192x8192"),
        *("mm_bf16_nn_256x8192x8192", "grouped_bf16_512x2048x4096x16"),
        *("mxfp8_64x2048x4096", "mxfp4_64x2048x4096", "mxfp8_bias_64x2048x4096"),
    )
    return tuple(of_case(case)[0] for case in cases)


@pytest.fixture(scope="session")
def flydsl_builds(
    flydsl_kernels: tuple[Rendered, ...], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, BuildResult]:
    """What a process of its own compiles of them, by choice hash."""

    def make(folder: Path) -> dict[str, BuildResult]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "lists"))
            candidates = [one.candidate() for one in flydsl_kernels]
        with builder(folder / "builder") as process:
            results = process.map(build, candidates, [PROFILE] * len(candidates))
            return {result.choice_hash: result for result in results}

    return shared(tmp_path_factory, "flydsl", make)
