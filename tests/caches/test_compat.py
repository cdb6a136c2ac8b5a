import sys
import types
from typing import Any

import pytest
import torch
import torch._inductor.codecache
import torch._inductor.select_algorithm

from flytune.caches import compat
from flytune.shapes.errors import FlytuneError


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+git1", "2.15.1+cu132"])
def test_supported_releases(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "torch_version", lambda: version)
    assert compat.require_torch() == version


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.10.1", r"torch is older than 2\.11, the oldest supported: 2\.10\.1"),
        ("main", "torch has an unreadable version: `main`"),
    ],
)
def test_other_releases(
    version: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "torch_version", lambda: version)
    with pytest.raises(FlytuneError, match=said):
        compat.require_torch()


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise compat.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(compat.importlib.metadata, "version", absent)
    with pytest.raises(FlytuneError, match="torch is not installed"):
        compat.require_torch()


@pytest.mark.parametrize(
    ("module", "path"),
    [("torch._inductor.no_such", "x"), ("torch._inductor.graph", "GraphLowering.no")],
)
def test_an_interface_that_is_gone(module: str, path: str) -> None:
    with pytest.raises(FlytuneError, match=f"flytune uses: `{module}.{path}`"):
        compat.private(module, path)


class Example:
    def method(self, value: int) -> int:
        return value + 1

    @staticmethod
    def static(value: int) -> int:
        return value + 2

    @classmethod
    def of_class(cls, value: int) -> int:
        return value + 3


class Derived(Example):
    pass


@pytest.mark.parametrize("owner", ["Example", "Derived"])
@pytest.mark.parametrize("name", ["method", "static", "of_class"])
def test_a_wrapped_method_stays_what_it_is(
    owner: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def wrapper(inner: Any) -> Any:
        def call(*args: Any) -> Any:
            calls.append(args)
            return inner(*args)

        return call

    module = types.ModuleType("made_for_a_test")
    module.Example = type("Example", (Example,), dict(vars(Example)))  # type: ignore[attr-defined]
    module.Derived = type("Derived", (module.Example,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    compat.wrap(module.__name__, f"{owner}.{name}", wrapper)
    example = getattr(module, owner)()
    expected = getattr(Example(), name)(1)
    assert getattr(example, name)(1) == expected
    assert len(calls) == 1
    if name != "method":
        assert getattr(type(example), name)(1) == expected
    assert getattr(example, name).__name__ == name


def test_keys_of_this_torch_and_of_an_older_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codecache, select = torch._inductor.codecache, torch._inductor.select_algorithm
    assert compat.precision_key() == codecache.fp32_matmul_precision_key()
    assert compat.benchmark_key("key", "cpu") == "key:benchmark_policy=eager"
    monkeypatch.delattr(codecache, "fp32_matmul_precision_key")
    monkeypatch.delattr(select, "create_benchmark_cache_key")
    compat.benchmark_key_has_policy.cache_clear()
    assert compat.precision_key() == torch.get_float32_matmul_precision()
    assert compat.benchmark_key("key", "cpu") == "key"
    monkeypatch.undo()
    compat.benchmark_key_has_policy.cache_clear()
