"""vLLM's own compile-cache key for the arguments of `vllm serve`, without an engine.

Run as `python -m flytune.caches.vllm_key REQUEST RESULT` in vLLM's interpreter: what a
process has imported and set is part of the key. Every private interface of vLLM's that
concerns the key is touched here and in `vllm_compiled`, and checked at start.
"""

import hashlib
import inspect
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flytune.caches import vllm_completed
from flytune.caches.child import die_with_parent
from flytune.caches.compat import changed_interface, private
from flytune.caches.hook.flytune_torch import set_default
from flytune.caches.vllm_compiled import compiled_classes, forward_of
from flytune.caches.vllm_values import config_factors, flat
from flytune.shapes.errors import FlytuneError

MODULE = "flytune.caches.vllm_key"
_AGAIN = "--again"

_CACHING = "vllm.compilation.caching"
_DECORATORS = "vllm.compilation.decorators"
_BACKENDS = "vllm.compilation.backends"
_COMPILERS = "vllm.compilation.compiler_interface"
_ARGUMENTS = "vllm.engine.arg_utils"
_PRIVATE = (
    (_CACHING, "aot_compile_hash_factors"),
    (_DECORATORS, "_model_hash_key"),
    (_BACKENDS, "make_compiler"),
    (_COMPILERS, "get_inductor_factors"),
    ("vllm.envs", "compile_factors"),
    ("vllm.config", "VllmConfig.compute_hash"),
    ("vllm.config.utils", "hash_factors"),
    ("vllm.config.utils", "normalize_value"),
    ("vllm.platforms", "current_platform"),
    ("vllm.usage.usage_lib", "UsageContext.OPENAI_API_SERVER"),
    ("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
    ("vllm.entrypoints.launchers.cli_args", "make_arg_parser"),
    (_ARGUMENTS, "AsyncEngineArgs.create_engine_config"),
)
# What vLLM raises of arguments, a model or a host that do not suit it.
_REFUSALS = (
    *(AssertionError, ImportError, KeyError, OSError),
    *(RuntimeError, TypeError, ValueError),
)
# What vLLM does in the middle of long functions, which nothing can call.
_SOURCES = (
    (
        _DECORATORS,
        "_support_torch_compile",
        (
            "aot_compile_hash_factors(self.vllm_config)",
            "factors.append(_model_hash_key(self.forward))",
            "hashlib.sha256(str(factors).encode()).hexdigest()",
            '"torch_aot_compile"',
        ),
    ),
    (
        _BACKENDS,
        "VllmBackend.__call__",
        (
            "factors = [env_hash, config_hash, code_hash, compiler_hash]",
            "hashlib.sha256(str(factors).encode()).hexdigest()[:10]",
        ),
    ),
)
# In the order of `get_inductor_factors`.
_INDUCTOR_PARTS = ("system", "torch", "inductor", "functorch")
# What `torch._dynamo.aot_compile` has set while vLLM's backend hashes the compiler.
_WHILE_COMPILING = {
    "strict_autograd_cache": True,
    "bypass_autograd_cache_key": True,
    "bundled_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,
    "force_autograd_cache": True,
}


def check_interfaces() -> None:
    """Check every private interface of vLLM's that the key is made by.

    Raises:
        FlytuneError: vLLM is absent, or this release lacks one or uses it otherwise.
    """
    for module, path in (*_PRIVATE, *vllm_completed.PRIVATE):
        private(module, path)
    for module, path, fragments in _SOURCES:
        source = inspect.getsource(private(module, path)[2])
        for fragment in fragments:
            if fragment not in source:
                raise changed_interface(module, f"{path}: {fragment}")


def engine_config(arguments: list[str]) -> Any:
    """Return the `VllmConfig` that `vllm serve ARGUMENTS` starts its engine with.

    Raises:
        FlytuneError: vLLM refuses the arguments, or there is no device for it here.
    """
    parser = private("vllm.utils.argparse_utils", "FlexibleArgumentParser")[2]
    make = private("vllm.entrypoints.launchers.cli_args", "make_arg_parser")[2]
    serve = make(parser(prog="vllm serve"))

    def refuse(message: str) -> None:
        raise _refused(message)

    serve.error = refuse
    parsed = serve.parse_args(arguments)
    if parsed.model_tag is not None:
        parsed.model = parsed.model_tag
    if private("vllm.platforms", "current_platform")[2].is_unspecified():
        raise FlytuneError(
            "vLLM finds no device here that it runs on",
            hint="ask on a host like the one that serves",
        )
    context = private("vllm.usage.usage_lib", "UsageContext.OPENAI_API_SERVER")[2]
    engine_args = private(_ARGUMENTS, "AsyncEngineArgs")[2]
    try:
        made = engine_args.from_cli_args(parsed)
        return made.create_engine_config(usage_context=context)
    except (
        AssertionError,
        KeyError,
        NotImplementedError,
        OSError,
        ValueError,
    ) as error:
        raise _refused(_reason(error)) from error


def vllm_factors(config: Any, *, started: bool = False) -> dict[str, Any]:
    """Return the key of each compiled class, and what it is made of, as JSON.

    Args:
        started: whether it is that of an engine that runs, which has completed it.

    Raises:
        FlytuneError: this vLLM makes its key in another way.
    """
    import vllm

    complete = started or vllm_completed.complete(config)
    hashed = private(_CACHING, "aot_compile_hash_factors")[2](config)
    parts = {"vllm": _part(vllm.__version__, {"version": vllm.__version__})}
    parts["environment"] = _environment(hashed[0])
    parts |= config_factors(config, hashed[1])
    inductor = private(_COMPILERS, "get_inductor_factors")[2]()
    if hashed[2:] not in ([], inductor) or len(inductor) != len(_INDUCTOR_PARTS):
        raise changed_interface(_CACHING, "aot_compile_hash_factors")
    for name, value in zip(_INDUCTOR_PARTS, inductor, strict=True):
        parts[name] = _inductor_part(name, value)
    if not hashed[2:]:
        # The paths of vLLM's own files count, and are no one else's to know.
        folder = _sha256(str(Path(vllm.__file__).parent))[:16]
        parts["location"] = _part(folder, {"vllm": folder})
    model_hash = private(_DECORATORS, "_model_hash_key")[2]
    keys, code, sources = {}, {}, {}
    for cls in compiled_classes(config):
        forward = forward_of(cls)
        name = forward.__qualname__
        digest = model_hash(forward)
        code[name] = str(forward.__code__.co_firstlineno)
        sources[forward.__module__] = _file_digest(forward)
        keys[name] = _sha256(str([*hashed, digest]))
    parts["code"] = _part(_sha256(json.dumps(code)), code)
    return {
        "version": vllm.__version__,
        "complete": complete,
        "keys": keys,
        "parts": parts,
        "sources": sources,
        "directory": [hashed[0], hashed[1], _compiler_hash(config)],
        "shapes": _shapes(config),
    }


def _compiler_hash(config: Any) -> str:
    """Return the compiler's hash as vLLM's backend has it while it compiles."""
    import torch._functorch.config

    # Without ahead-of-time compilation torch sets nothing.
    ahead = private("vllm.envs", "VLLM_USE_AOT_COMPILE")[2]
    compiler = private(_BACKENDS, "make_compiler")[2](config.compilation_config)
    with torch._functorch.config.patch(_WHILE_COMPILING if ahead else {}):
        return str(compiler.compute_hash(config))


def _environment(digest: str) -> dict[str, Any]:
    factors = private("vllm.envs", "compile_factors")[2]()
    if private("vllm.config.utils", "hash_factors")[2](factors) != digest:
        raise changed_interface("vllm.envs", "compile_factors")
    return _part(digest, dict(pair for k, v in factors.items() for pair in flat(k, v)))


def _inductor_part(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return _part(value.hex(), {"key": value.hex()})
    if not isinstance(value, Mapping):
        raise changed_interface("vllm.compilation.compiler_interface", name)
    texts = {key: text for k, v in value.items() for key, text in flat(str(k), v)}
    return _part(_sha256(str(value)), texts)


def _part(digest: str, factors: Mapping[str, str]) -> dict[str, Any]:
    return {"hash": digest, "factors": dict(factors)}


def _shapes(config: Any) -> dict[str, Any]:
    """Return what decides how many graphs are compiled."""
    compilation, model = config.compilation_config, config.model_config
    return {
        "mode": compilation.mode.name,
        "ahead": bool(private("vllm.envs", "VLLM_USE_AOT_COMPILE")[2]),
        "device": config.device_config.device_type,
        "compile_sizes": list(compilation.compile_sizes or ()),
        "capture_sizes": list(compilation.cudagraph_capture_sizes or ()),
        "ranges": [[r.start, r.end] for r in compilation.get_compile_ranges()],
        "layers": int(model.get_num_layers(config.parallel_config)),
        "pieces": bool(compilation.splitting_ops),
        "ranks": int(config.parallel_config.world_size),
        "lora": config.lora_config is not None,
    }


def _refused(message: str) -> FlytuneError:
    return FlytuneError(f"vllm serve refuses the arguments: {message}")


def _reason(error: BaseException) -> str:
    """Return one line of an error; pydantic's has several, the second best first."""
    errors: Any = getattr(error, "errors", None)
    if callable(errors):
        return str(errors()[0]["msg"]).splitlines()[0]
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _file_digest(forward: Any) -> str:
    return hashlib.sha256(Path(inspect.getfile(forward)).read_bytes()).hexdigest()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _set_since(before: Mapping[str, str]) -> Iterator[str]:
    """Yield torch's variables that vLLM has set for the processes of its engine."""
    for name, value in os.environ.items():
        if name.startswith("TORCH") and before.get(name) != value:
            yield name


def _set_policy(inductor: Mapping[str, Any]) -> None:
    """Set what serving from a bundle sets of Inductor's, which is all in the key.

    Raises:
        FlytuneError: this torch has no setting of that name.
    """
    import torch._inductor.config

    for name, value in inductor.items():
        try:
            set_default(torch._inductor.config, name, value)
        except LookupError as error:
            raise FlytuneError(str(error.args[0])) from error


def main(argv: list[str]) -> None:
    """Read a request, write a result; see `vllm_factors.ask`."""
    die_with_parent()
    request = json.loads(Path(argv[0]).read_bytes())
    # As the command `vllm` does.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    check_interfaces()
    before = dict(os.environ)
    config = engine_config(request["arguments"])
    # The engine's processes import torch after vLLM has set these: this one has not.
    if _AGAIN not in argv and any(_set_since(before)):
        os.execv(sys.executable, [sys.executable, "-m", MODULE, *argv, _AGAIN])
    _set_policy(request["inductor"])
    Path(argv[1]).write_text(json.dumps(vllm_factors(config)))


if __name__ == "__main__":
    main(sys.argv[1:])
