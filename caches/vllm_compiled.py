"""Which of a vLLM model's classes are compiled, found without building the model.

vLLM marks a class by its decorator `support_torch_compile`, and keys each by the name
and the place of its `forward`. Runs in vLLM's interpreter alone.
"""

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from flytune.caches.compat import private

_MODELS = "vllm.model_executor.models"
# The call by which a model of several parts builds one from the registry.
_BY_NAME = "init_vllm_registered_model"


def compiled_classes(config: Any) -> tuple[type, ...]:
    """Return the classes that vLLM compiles apart for a `VllmConfig`, in a fixed order.

    Read from what the methods of the model's class name, and those of the classes that
    they name: what a compiled class itself holds is compiled with it.

    Raises:
        FlytuneError: this vLLM has changed what marks a class.
    """
    registry = private(_MODELS, "ModelRegistry")[2]
    marker = private("vllm.compilation.wrapper", "TorchCompileWithNoGuardsWrapper")[2]
    ignored = private("vllm.compilation.decorators", "_should_ignore_torch_compile")[2]
    model_config = config.model_config
    root, _ = registry.resolve_model_cls(model_config.architectures, model_config)
    known = frozenset(registry.get_supported_archs())
    found: dict[type, None] = {}
    seen: set[type] = set()
    waiting = [root]
    while waiting:
        cls = waiting.pop(0)
        if cls in seen:
            continue
        seen.add(cls)
        if issubclass(cls, marker) and not ignored(cls):
            if _enabled(cls, config):
                found[cls] = None
            continue
        waiting += _named_by(cls)
        for name in _registered_by(cls) & known:
            waiting.append(registry.resolve_model_cls([name], model_config)[0])
    return tuple(sorted(found, key=lambda cls: cls.__qualname__))


def _enabled(cls: type, config: Any) -> bool:
    """Ask the condition that a class was marked under, where there is one."""
    closure = inspect.getclosurevars(cls.__init__).nonlocals  # type: ignore[misc]
    condition = closure.get("enable_if")
    return condition is None or bool(condition(config))


def _named_by(cls: type) -> list[type]:
    """Return the classes of models that a class has, or its functions name."""
    named: dict[type, None] = {}
    values: list[Any] = [inspect.getattr_static(cls, name) for name in dir(cls)]
    for function in _functions(cls):
        values += [
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ]
        for code in _codes(function.__code__):
            values += [function.__globals__.get(name) for name in code.co_names]
    for value in values:
        if isinstance(value, type) and value.__module__.startswith("vllm."):
            named[value] = None
    return [cls for cls in named if _is_module(cls)]


def _registered_by(cls: type) -> set[str]:
    """Return the architectures that a class may ask the registry for by name."""
    names: set[str] = set()
    for function in _functions(cls):
        for code in _codes(function.__code__):
            if _BY_NAME in code.co_names:
                names |= set(_texts(code.co_consts))
    return names


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | frozenset):
        for one in value:
            yield from _texts(one)


def _functions(cls: type) -> Iterator[types.FunctionType]:
    """Yield the functions of a class and what they wrap, and each base's `__init__`."""
    values: list[Any] = [inspect.getattr_static(cls, name) for name in dir(cls)]
    values += [vars(base).get("__init__") for base in cls.__mro__]
    for value in values:
        raw = getattr(value, "__func__", value)
        if isinstance(raw, types.FunctionType):
            yield raw
            # A decorated one holds the original.
            for cell in raw.__closure__ or ():
                if isinstance(inner := _contents(cell), types.FunctionType):
                    yield inner


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_module(cls: type) -> bool:
    return any(base.__module__.startswith("torch.nn.") for base in cls.__mro__)


def forward_of(cls: type) -> Callable[..., Any]:
    """Return the function whose name and place are part of the key."""
    forward: Callable[..., Any] = cls.forward  # type: ignore[attr-defined]
    return forward
