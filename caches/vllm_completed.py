"""What vLLM's engine still completes in its config before it compiles.

The attention backend says the block size and the layout of the cache of keys, and both
are part of the key. vLLM asks the layers of a model that it has built; here one layer
that stands in for them is asked. Runs in vLLM's interpreter alone.
"""

from typing import Any

from flytune.caches.compat import private

_SELECTOR = "vllm.v1.attention.selector"
_LAYERS = "vllm.model_executor.layers.attention_layer_base"
_UTILS = "vllm.v1.attention.backends.utils"
PRIVATE = (
    (_SELECTOR, "get_attn_backend"),
    (_UTILS, "get_supported_kv_cache_layouts"),
    (_UTILS, "resolve_kv_cache_layout"),
    ("vllm.config", "set_current_vllm_config"),
    (_LAYERS, "AttentionLayerBase"),
    ("vllm.platforms", "current_platform.update_block_size_for_backend"),
)


def complete(config: Any) -> bool:
    """Complete a `VllmConfig` in place as the engine does, as far as that is known.

    Returns:
        Whether it is complete: the layers of a hybrid model, of one without attention
        and of one with several kinds of attention are not all like the one asked.

    Raises:
        FlytuneError: this vLLM does it in another way.
    """
    model = config.model_config
    if model.is_hybrid or model.is_attention_free or model.is_encoder_decoder:
        return False
    try:
        backend = _backend(config)
    # A plain layer has no backend here: the model's own ones ask for another.
    except (NotImplementedError, ValueError):
        return False
    base = private(_LAYERS, "AttentionLayerBase")[2]
    answers = {
        "get_attn_backend": lambda _: backend,
        "get_kv_cache_spec": lambda _, __: None,
    }
    stand_in = type("StandIn", (base,), answers)
    # It is no part of the key, and the engine fills it anew.
    layers = config.compilation_config.static_forward_context
    layers["flytune"] = stand_in()
    try:
        update = private(
            "vllm.platforms", "current_platform.update_block_size_for_backend"
        )
        update[2](config)
    finally:
        del layers["flytune"]
    supported = private(_UTILS, "get_supported_kv_cache_layouts")[2]([backend])
    resolve = private(_UTILS, "resolve_kv_cache_layout")[2]
    resolve(config, [[layout.name for layout in supported]])
    return bool(config.parallel_config.decode_context_parallel_size == 1)


def _backend(config: Any) -> Any:
    """Return the class of the attention backend that a plain decoder's layers have."""
    model, cache = config.model_config, config.cache_config
    choose = private(_SELECTOR, "get_attn_backend")[2]
    with private("vllm.config", "set_current_vllm_config")[2](config):
        return choose(
            model.get_head_size(),
            model.dtype,
            cache.cache_dtype,
            use_mla=model.use_mla,
            num_heads=model.get_num_attention_heads(config.parallel_config),
            has_sliding_window=model.get_sliding_window() is not None,
        )
