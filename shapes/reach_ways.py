"""The table of how engines reach GEMMs, a row a way: the first that fits decides.

Read from transformers 5.24 and vLLM 0.33.0.
"""

from dataclasses import dataclass
from typing import Literal

from flytune.shapes.gemm import Engine, Platform

Part = Literal[
    "linear", "head", "router", "experts", "shared experts", "attention", "lightning"
]

INDUCTOR = "inductor"
"""The compiled graph holds it as a GEMM, which Inductor lowers."""
EAGER = "eager"
"""It runs outside of what is compiled."""
CUSTOM_OP = "custom_op:"
"""Before the name of an operator, or of a kernel, that Inductor cannot look into."""
PLACES = (INDUCTOR, EAGER)


@dataclass(frozen=True, slots=True)
class Way:
    """A row of the table; an empty tuple fits all."""

    engine: Engine
    reach: str
    source: str
    """The engine's file that says so."""
    parts: tuple[Part, ...] = ()
    platforms: tuple[Platform, ...] = ()
    schemes: tuple[str | None, ...] = ()
    """Values of `GemmShape.scaling`."""
    methods: tuple[str, ...] = ()
    """Of a config's quantization."""
    architectures: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    """Of A."""


def _op(name: str) -> str:
    return CUSTOM_OP + name


_GPU: tuple[Platform, ...] = ("cuda", "rocm")
_INSIDE_OP = (
    *("Qwen3MoeForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
    *("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM"),
    "KimiK25ForConditionalGeneration",
)
"""Whose model gives the router to vLLM's FusedMoE, `gate=self.gate`."""
_NOT_COMPILED = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
"""Whose model lacks vLLM's `support_torch_compile`."""

_TO_HUB = "integrations/finegrained_fp8.py"
# The finer ones are of experts that ranks cut.
_BLOCKS = ("block128", "block64", "block32")
_TRANSFORMERS = (
    # A loop over the experts with tokens: Dynamo gives up on its frame.
    Way("transformers", EAGER, "models/*/modeling_*.py", ("experts",), ops=("mm",)),
    Way(
        "transformers",
        _op("transformers::grouped_mm_fallback"),
        "integrations/moe.py",
        ops=("grouped_mm",),
        schemes=(None,),
        dtypes=("float16", "float32"),
    ),
    Way("transformers", INDUCTOR, "models/*/modeling_*.py", schemes=(None,)),
    Way(
        "transformers",
        _op("fbgemm::f8f8bf16_rowwise"),
        "integrations/fbgemm_fp8.py",
        schemes=("rowwise",),
        methods=("fbgemm_fp8",),
    ),
    Way(
        "transformers",
        _op("finegrained_fp8"),
        _TO_HUB,
        schemes=("tensorwise", "mxfp8"),
        methods=("fp8", "mxfp8"),
    ),
    Way("transformers", _op("finegrained_fp8"), _TO_HUB, schemes=_BLOCKS),
    Way(
        "transformers",
        INDUCTOR,
        "integrations/compressed_tensors.py, and torchao's tensors",
        schemes=("tensorwise", "rowwise", "mxfp8", "mxfp4"),
    ),
    Way("transformers", _op("nvfp4"), "integrations/nvfp4.py", schemes=("nvfp4",)),
    Way(
        "transformers",
        _op("gptqmodel"),
        "integrations/awq.py, quantizers/quantizer_gptq.py",
        schemes=("awq", "gptq"),
    ),
    Way(
        "transformers",
        _op("matmul_ogs"),
        "integrations/mxfp4.py",
        schemes=("mxfp4_weight",),
    ),
)

_MOE = "layers/fused_moe/runner/moe_runner.py"
_KERNELS = "kernels/linear/"
_VLLM_PARTS = (
    Way(
        "vllm",
        EAGER,
        "models/deepseek_v32/nvidia/model.py, amd/model.py",
        architectures=_NOT_COMPILED,
    ),
    Way("vllm", EAGER, "layers/logits_processor.py", ("head",)),
    Way(
        "vllm",
        _op("vllm::unified_mla_attention_with_output"),
        "layers/attention/mla_attention.py",
        ("attention",),
    ),
    Way(
        "vllm",
        _op("vllm::linear_attention"),
        "layers/mamba/linear/minimax_linear_attn.py",
        ("lightning",),
    ),
    Way("vllm", _op("vllm::moe_forward"), _MOE, ("experts",), _GPU),
    Way("vllm", _op("vllm::moe_forward_shared"), _MOE, ("shared experts",), _GPU),
    Way(
        "vllm",
        _op("vllm::moe_forward"),
        _MOE,
        ("router",),
        _GPU,
        architectures=_INSIDE_OP,
    ),
    Way(
        "vllm",
        _op("_C::cpu_fused_moe"),
        "layers/fused_moe/experts/cpu_moe.py",
        ("experts",),
        ("cpu",),
    ),
)


def _kernel(platform: Platform, name: str, source: str, *schemes: str | None) -> Way:
    return Way("vllm", name, source, platforms=(platform,), schemes=schemes)


_UNQUANTISED = "layers/utils.py, dispatch_unquantized_gemm"
# The first of `kernels/linear/__init__.py` that suits the platform's newest devices; on
# others vLLM takes another operator of its own.
_VLLM_LINEARS = (
    _kernel("cuda", INDUCTOR, _UNQUANTISED, None),
    _kernel("rocm", _op("vllm::rocm_unquantized_gemm"), _UNQUANTISED, None),
    _kernel("cpu", _op("_C::onednn_mm"), _UNQUANTISED, None),
    _kernel(
        "cuda",
        _op("_C::cutlass_scaled_mm"),
        f"{_KERNELS}scaled_mm/cutlass.py",
        *("tensorwise", "rowwise"),
    ),
    _kernel(
        "rocm",
        _op("vllm::rocm_per_tensor_float_w8a8_scaled_mm_impl"),
        f"{_KERNELS}scaled_mm/rocm.py",
        "tensorwise",
    ),
    # torch._scaled_mm itself.
    _kernel("rocm", INDUCTOR, f"{_KERNELS}scaled_mm/pytorch.py", "rowwise"),
    _kernel(
        "cpu",
        _op("_C::fp8_scaled_mm_cpu"),
        f"{_KERNELS}scaled_mm/cpu.py",
        *("tensorwise", "rowwise", "block128"),
    ),
    _kernel(
        "cuda",
        _op("vllm::dynamic_flashinfer_deepgemm_blockscale_gemm"),
        f"{_KERNELS}scaled_mm/flashinfer.py",
        "block128",
    ),
    _kernel(
        "rocm",
        _op("vllm::w8a8_triton_block_scaled_mm_func"),
        f"{_KERNELS}scaled_mm/triton.py",
        "block128",
    ),
    _kernel("cuda", _op("vllm::mm_mxfp8"), f"{_KERNELS}mxfp8/flashinfer.py", "mxfp8"),
    _kernel(
        "rocm",
        _op("_mxfp8_linear_kernel"),
        f"{_KERNELS}mxfp8/rocm_native.py",
        "mxfp8",
    ),
    _kernel(
        "cuda",
        _op("vllm::flashinfer_mm_fp4"),
        f"{_KERNELS}mxfp4/flashinfer.py, nvfp4/flashinfer.py",
        *("mxfp4", "nvfp4"),
    ),
    _kernel(
        "rocm",
        _op("vllm::gemm_with_dynamic_quant"),
        f"{_KERNELS}mxfp4/aiter.py",
        "mxfp4",
    ),
    _kernel(
        "cuda",
        _op("_C::machete_mm"),
        f"{_KERNELS}mixed_precision/machete.py",
        *("awq", "gptq"),
    ),
    _kernel(
        "rocm",
        _op("vllm::triton_w4a16_gemm"),
        f"{_KERNELS}mixed_precision/triton_w4a16.py",
        *("awq", "gptq"),
    ),
    _kernel(
        "cpu",
        _op("_C::cpu_gemm_wna16"),
        f"{_KERNELS}mixed_precision/cpu.py",
        *("awq", "gptq"),
    ),
)

WAYS = (*_TRANSFORMERS, *_VLLM_PARTS, *_VLLM_LINEARS)
"""The table; what no row fits, the engine does not run."""
