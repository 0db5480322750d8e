"""Which operators torch's kernels compute, and which kernels there are beside onnxruntime's.

A measured table says what runs faster in torch than in ONNX Runtime on the CPU: an operator moves
to torch when that saves more than a boundary costs: the graph is cut there, and each part is a
session of its own. ``scripts/calibrate.py`` measures the table again.

In the sessions of a backend compute our kernels, torch's, and those that call MKL, which comes
with torch. NOTE: whether ours are there is asked last, since that may compile them.

Among equal elements torch promises nothing; ONNX takes the first of them. Our kernel `Order` does
what torch's kernels for the CPU do; where it cannot be used, the node stays in torch.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import onnx_ir as ir
import torch

from dort_rewriter import env
from dort_rewriter.aten import hint_of, is_contiguous
from dort_rewriter.kernels.loading import is_available
from dort_rewriter.kernels.operators import OWN_MOST_AXES
from dort_rewriter.kernels.torch_library import (
    comes_with_mkl,
    convolves_bfloat16,
    float32_precision,
    multiplies_bfloat16,
    multiplies_by_parts,
    multiplies_faster,
)
from dort_rewriter.optimize.pipeline import asks_for_kernels
from dort_rewriter.optimize.products import attend_by_own, multiply_by_mkl, multiply_small_by_mkl
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions

Place = Literal["torch", "onnxruntime", "torch kernel"]
"""Outside of a model, in it by a kernel of onnxruntime or ours, in it by torch's own kernel."""

KERNEL: Place = "torch kernel"

ONE_KERNEL = frozenset(
    {
        "aten::gcd",
        "prims::gcd",
        "aten::binary_cross_entropy",
        "aten::repeat_interleave.Tensor",
        *(f"aten::{name}" for name in ("polygamma", "signbit", "copysign.Tensor")),
        *(f"aten::{name}" for name in ("frexp.Tensor", "histc", "index_reduce")),
        *(f"aten::grid_sampler_{n}d{part}" for n in (2, 3) for part in ("", "_backward")),
        *(
            f"aten::upsample_{how}_backward"
            for how in ("linear1d", "bilinear2d", "bicubic2d", "trilinear3d")
        ),
        "aten::upsample_bicubic2d",
        *(f"aten::_adaptive_avg_pool{n}d_backward" for n in (2, 3)),
        *(f"aten::adaptive_max_pool{n}d_backward" for n in (2, 3)),
        *(f"aten::adaptive_max_pool{n}d" for n in (2, 3)),
        "aten::median",
        "aten::nanmedian",
        "aten::_fft_c2c",
        "aten::_fft_c2r",
        "aten::_fft_r2c",
        *(
            f"aten::_upsample_{how}2d_aa{part}"
            for how in ("bilinear", "bicubic")
            for part in ("", "_backward")
        ),
    }
)
"""What is a loop, a product with a large matrix or a slow kernel in ONNX, and one in torch; or
what torch's kernel looks at before it computes: a probability beyond one, or a count below zero,
is an error; or what no operator of ONNX shows: the sign of a NaN. A product with a matrix of zeros
makes NaN of an infinity that torch's kernel never reads.
"""

IN_ORDER = frozenset(
    {
        *(f"aten::max_pool{n}d_with_indices" for n in (2, 3)),
        *(f"aten::native_{norm}_norm" for norm in ("group", "layer")),
        *(f"aten::native_{norm}_norm_backward" for norm in ("group", "layer")),
        *(f"aten::{name}_mean.correction" for name in ("var", "std")),
    }
)
"""The same in float64: a mean and a variance that move from number to number, and the first of
two zeros. A step with two small layer norms takes twice as long, a large variance 2.2 times, as in
eager mode; a variance alone has no mean that shows it."""

RUNNING = frozenset(f"aten::{name}" for name in ("cumprod", "cummax", "cummin", "logcumsumexp"))
"""The same where a size is not known at export."""

CALLED = "torch has a kernel for it"
"""Why a session calls it in torch, where it may."""

PLACED = "it runs faster in torch"
"""Why a placed operator is not in a model."""

CHECKS = frozenset(
    {
        "aten::_assert_async",
        "aten::_assert_async.msg",
        "aten::_assert_scalar",
        "aten::_assert_tensor_metadata",
        "aten::sym_constrain_range",
        "aten::sym_constrain_range_for_size",
    }
)
"""What torch adds to a graph to check sizes that are counted when it runs: it gives nothing."""

CHECK = "a check of the graph, which torch makes"
"""Why a check is not in a model."""

BOUNDARY = 150e-6
"""Seconds that a cut has to save: a session more to build and to call, and what cannot be fused
across it."""

THREADED_BOUNDARY = 5e-3
"""The same when operators share their work between threads.

torch's threads spin for milliseconds after their part of an operator, on the cores where those of
ONNX Runtime go on. Measured with two threads on two cores: one cut in the gradient of a BERT or a
ViT took 3 to 6 ms, where the operator itself saved 0.3 ms.
"""


@dataclass(frozen=True)
class Cost:
    """Seconds per unit of work, see :func:`work_of`, for large inputs on one core."""

    onnxruntime: float
    torch: float


COSTS: Mapping[str, Cost] = {
    "aten::max_pool2d_with_indices_backward": Cost(onnxruntime=5.6e-9, torch=1.6e-9),
    "aten::native_batch_norm_backward": Cost(onnxruntime=1.5e-9, torch=4.8e-10),
    "aten::gelu_backward": Cost(onnxruntime=2.0e-9, torch=9.2e-10),
    "aten::silu_backward": Cost(onnxruntime=1.2e-9, torch=5.3e-10),
    "aten::tanh_backward": Cost(onnxruntime=4.9e-10, torch=1.8e-10),
    "aten::threshold_backward": Cost(onnxruntime=6.5e-10, torch=1.6e-10),
    "aten::_softmax_backward_data": Cost(onnxruntime=5.8e-10, torch=1.8e-10),
}
"""The operators that are at least twice as slow in ONNX Runtime (1.31.1, AVX-512, torch 2.13)."""


ON_CUDA = frozenset({"aten::convolution_backward"})
"""The operators that are torch's on CUDA: ONNX Runtime has no kernel for them there, and with what
else they can be written as, a training step of ResNet-18 took nine times as long as in torch (64
pictures of 224 x 224, an H100)."""

_HALVES = (torch.bfloat16, torch.float16)

_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"

ATTENTION = (_FLASH, f"{_FLASH}_backward")
"""Attention, and its gradient."""

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
"""Products of matrices."""

CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")
"""Convolutions, and their gradients."""

KERNEL_TYPES: Mapping[str, Collection[torch.dtype]] = {
    **dict.fromkeys(PRODUCTS, _HALVES),
    **dict.fromkeys(CONVOLUTIONS, (torch.float32, torch.bfloat16)),
    ATTENTION[0]: (torch.float32, *_HALVES),
    ATTENTION[1]: (torch.float32, *_HALVES),
}
"""The operators that torch's kernels compute inside a model, by the type of the first result that
is asked for: ONNX Runtime has no products of halves, and makes them in float32, at a third of the
speed; torch's attention never makes the scores, nor does ours, which takes its place.

NOTE: torch's gradients of convolutions of float16 take 40 to 600 times as long as those of
float32.
"""

LEAST_PIXELS = 32
LEAST_MULTIPLIED = {CONVOLUTIONS[0]: 2e6, CONVOLUTIONS[1]: 8e6}
"""The pixels of an image, and the multiplications in all, from which a convolution of bfloat16
with windows of one element is a product, and so is its gradient: that took 0.4 to 0.64 of the
time, 0.9 to 1.0 with half of the work and 1.2 to 2.3 with less."""

LEAST_WORK = 15e6
LEAST_CHANNELS = 8
LEAST_SUMMED = 256
"""The multiplications in all, and the channels of an image, from which the gradient of a
convolution of float32 over two axes is torch's, and the pixels that a gradient of weights sums up.

Measured with two threads on an EPYC with AVX-512, windows of 3 x 3, of the time without torch's:
0.23 to 0.77 with 16 to 64 channels, 0.75 to 0.91 with more, 1.0 to 1.2 below this work; 1.0 to 1.6
for planes of 2 to 4, 0.96 to 1.4 where pixels are left out, 2.8 with 3 channels.
"""

LEAST_WORK_OF_WEIGHTS = 3e7
"""The same of a gradient of weights alone, as of a first layer: of any channels. It took 0.5 to
0.76 of the time, and 0.97 to 1.17 below."""

FEW_FILTERS = 32
"""Up to so many filters a convolution of bfloat16 is computed in float32, where the processor has
no AMX: the CNN and DenseNet-121 of the benchmarks then took 0.9 of the time; ResNet-18, whose
layers have more filters, 1.02 to 1.06 with all of them so (an EPYC with AVX512_BF16)."""

CHANNELS_AT_ONCE = 16
"""Of so many channels a thread computes all that it does, see `kernels/cpp`."""


def choose_place(
    node: torch.fx.Node,
    name: str,
    overrides: Mapping[str, Place] | None = None,
    *,
    frozen: bool = False,
) -> Place:
    """Where a node of an ATen graph runs; ``overrides`` go by operator, ``*`` for all.

    ``frozen`` is whether weights are constants.
    """
    base = name.split(".")[0]
    chosen = find_override(name, overrides)
    if chosen is not None:
        return chosen
    if not _on_cpu(node):
        return "torch" if base in ON_CUDA else "onnxruntime"
    if _has_type(node, KERNEL_TYPES.get(base, ())) and _pays(node, base, frozen):
        return KERNEL
    cost = COSTS.get(base)
    if cost is None:
        return "onnxruntime"
    saved = (cost.onnxruntime - cost.torch) * work_of(node)
    boundary = BOUNDARY if torch.get_num_threads() == 1 else THREADED_BOUNDARY
    return "torch" if saved > boundary else "onnxruntime"


def find_override(name: str, overrides: Mapping[str, Place] | None) -> Place | None:
    """Where a user wants an operator to run, if anywhere."""
    overrides = overrides or {}
    return overrides.get(name) or overrides.get(name.split(".")[0]) or overrides.get("*")


def _has_type(node: torch.fx.Node, types: Collection[torch.dtype]) -> bool:
    value = node.meta.get("val")
    results = value if isinstance(value, list | tuple) else [value]
    first = next((r for r in results if isinstance(r, torch.Tensor)), None)
    return first is not None and first.dtype in types


def _pays(node: torch.fx.Node, name: str, frozen: bool) -> bool:
    """Whether torch's kernel is the faster one, or ours that takes its place."""
    if name not in CONVOLUTIONS:
        return True
    if _has_type(node, (torch.float32,)):
        return not frozen and name == CONVOLUTIONS[1] and _is_large_gradient(node)
    return convolves_bfloat16() and _convolves_faster(node, name)


def _convolves_faster(node: torch.fx.Node, name: str) -> bool:
    """The same of a convolution of bfloat16: windows of one element are a product.

    Those that leave out pixels took 1.1 to 3 times as long as between casts, and so do their
    gradients. Products took 0.4 to 0.8 of the time; smaller ones than here 1.04 to 1.5.
    """
    arguments: Sequence[Any] = node.args
    is_gradient = name == CONVOLUTIONS[1]
    first = 1 if is_gradient else 0
    weight = _value(arguments[1 + first])
    stride, padding, _, transposed, _, groups = arguments[3 + first : 9 + first]
    if math.prod(map(_size, weight.shape[2:])) > 1:
        if not is_gradient:
            few = groups == 1 and not transposed and _size(weight.shape[0]) <= FEW_FILTERS
            channels_first = is_contiguous(_value(arguments[0]))  # oneDNN is fast with them last
            return multiplies_bfloat16() or not (few and channels_first)
        # Gradients take 1.2 and 2.4 times as long with a filter for each channel.
        return groups == 1 or all(n == 1 for n in stride)
    if not all(isinstance(n, int) for n in (groups, *stride, *padding)):
        return False
    if transposed or groups != 1 or any(n != 1 for n in stride) or any(padding):
        return False
    images = [_value(arguments[i]) for i in range(1 + first)]
    fixed = all(isinstance(n, int) for n in (*images[-1].shape[1:], *weight.shape))
    if not fixed and any(map(is_contiguous, images)):
        return False  # no product of pixels that are not counted, see `export/torch_kernels.py`
    if is_gradient and not all(map(is_contiguous, images)):
        return False
    made = images[0] if is_gradient else _value(node)
    pixels = math.prod(map(_size, made.shape[2:]))
    work = _count(made) * _size(weight.shape[1])
    return pixels >= LEAST_PIXELS and work >= LEAST_MULTIPLIED[name]


def _is_large_gradient(node: torch.fx.Node) -> bool:
    """Whether the gradient of a convolution of float32 is one that torch computes faster."""
    if not _convolves_float32():
        return False
    arguments: Sequence[Any] = node.args
    made, weight = (_value(arguments[i]) for i in (0, 2))
    stride, _, _, transposed, _, groups, (of_input, *_) = arguments[4:11]
    window = weight.shape[2:]
    if transposed or groups != 1 or len(window) != 2 or math.prod(map(_size, window)) == 1:
        return False
    batch, channels, *plane = map(_size, made.shape)
    if max(batch, channels // CHANNELS_AT_ONCE) < torch.get_num_threads():
        return False  # some threads would have nothing to do
    summed = batch * math.prod(plane)
    work = summed * _count(weight)
    if not of_input:
        return work >= LEAST_WORK_OF_WEIGHTS
    if summed < LEAST_SUMMED or any(n != 1 for n in stride):
        return False
    return work >= LEAST_WORK and _size(weight.shape[1]) >= LEAST_CHANNELS


def _convolves_float32() -> bool:
    """Whether torch has oneDNN, and can be told to work in the session's threads, as with MKL."""
    both = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    return both and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _on_cpu(node: torch.fx.Node) -> bool:
    values = [n.meta.get("val") for n in node.all_input_nodes]
    return all(v.device.type == "cpu" for v in values if isinstance(v, torch.Tensor))


def work_of(node: torch.fx.Node) -> float:
    """The work of a node: the elements of its first input."""
    return _count(node.all_input_nodes[0].meta.get("val"))


def _value(argument: Any) -> Any:
    return argument.meta["val"]


def _count(value: Any) -> float:
    if not isinstance(value, torch.Tensor):
        return 0.0
    return math.prod(_size(d) for d in value.shape)


def _size(dim: int | torch.SymInt) -> int:
    return hint_of(dim, counted=1)


def uses_own_kernels(options: OptimizationOptions) -> bool:
    """Whether the chosen rules ask for our kernels, and they can be compiled here."""
    wanted = asks_for_kernels(options.patterns)
    return wanted and options.processor == "CPU" and is_available()


def _multiplies_by_mkl(options: OrtBackendOptions) -> bool:
    """Whether large products of float32 are for the kernel that calls MKL."""
    elsewhere = any(find_override(p, options.placement) == "onnxruntime" for p in PRODUCTS)
    return not elsewhere and multiplies_faster() and _may_call_mkl(options)


def _multiplies_small_by_mkl(options: OrtBackendOptions) -> bool:
    """Whether small products of bfloat16 are: where no option asks for torch's kernels."""
    asked = any(find_override(p, options.placement) is not None for p in PRODUCTS)
    return not asked and multiplies_bfloat16() and _may_call_mkl(options)


def _may_call_mkl(options: OrtBackendOptions) -> bool:
    return comes_with_mkl() and uses_own_kernels(options.optimization)


def _terms() -> int:
    """Of how many products of bfloat16 one of float32 is made, as torch's settings ask for; 0
    where MKL makes it."""
    if not multiplies_by_parts() or env.read("DORT_AMX") == "0":
        return 0
    return {"tf32": 3, "bf16": 1}.get(float32_precision(), 6)


def described_products(options: OrtBackendOptions, *, calls_mkl: bool) -> str:
    """All that decides whose products are in a model, as :func:`choose_products` changes it."""
    decided = [d(options) for d in (_multiplies_by_mkl, _multiplies_small_by_mkl) if calls_mkl]
    return f"{decided} {_terms()}, {_own_attention(options)}, of bfloat16: {multiplies_bfloat16()}"


def choose_products(model: ir.Model, options: OrtBackendOptions, *, calls_mkl: bool) -> None:
    """Change a model in place: whose products compute its nodes. Those of MKL are not for what is
    kept, and may run where there is none."""
    if calls_mkl and _multiplies_by_mkl(options):
        multiply_by_mkl(model, _terms())
    if calls_mkl and _multiplies_small_by_mkl(options):
        multiply_small_by_mkl(model)
    attend_by_own(
        model,
        _own_attention(options),
        torchs_bfloat16=multiplies_bfloat16(),
        calls_mkl=calls_mkl,
    )


def _own_attention(options: OrtBackendOptions) -> list[str]:
    """Attention and its gradient, unless somebody asks for torch's kernel."""
    asked = (name for name in ATTENTION if find_override(name, options.placement) is None)
    return [name.removeprefix("aten::") for name in asked]


TIES = "which of equal elements comes first is the choice of torch's kernel"
"""Why such a node is not in a model."""

_MANY = 32768
"""From so many integers on torch sorts another way, if it was built with that."""

_ORDER = frozenset({"aten::topk", "aten::sort", "aten::sort.stable", "aten::mode"})
"""What our kernel can do."""

ORDERED = _ORDER | {"aten::kthvalue"}
"""Operators whose results may depend on the order of equal elements."""


def has_torchs_order(node: torch.fx.Node, name: str, *, has_kernel: Callable[[], bool]) -> bool:
    """Whether a result of one of :data:`ORDERED` that is used depends on an order that only
    torch's kernels know.

    `has_kernel` returns whether our kernel is there, which is for the CPU; it is asked last.
    """
    value = node.all_input_nodes[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return False
    if _argument(node, "stable") or not _is_chosen(node, name):
        return False
    fits = name in _ORDER and value.device.type == "cpu" and value.ndim <= OWN_MOST_AXES
    return not fits or _is_radix_sort(node, name, value) or not has_kernel()


def _is_chosen(node: torch.fx.Node, name: str) -> bool:
    """Whether ties show in what is used: in the indices, or in values that are not sorted."""
    if name == "aten::topk" and not _argument(node, "sorted"):
        return True
    return any(u.target is not operator.getitem or u.args[1] == 1 for u in node.users)


def _is_radix_sort(node: torch.fx.Node, name: str, value: torch.Tensor) -> bool:
    if not name.startswith("aten::sort") or value.ndim != 1 or _argument(node, "descending"):
        return False
    if value.dtype is torch.bool or value.dtype.is_floating_point:
        return False
    size = value.shape[0]
    return not isinstance(size, int) or size >= _MANY


def _argument(node: torch.fx.Node, name: str) -> Any:
    """An argument of a call, or its default; None when the operator has none."""
    assert isinstance(node.target, torch._ops.OpOverload)
    for i, formal in enumerate(node.target._schema.arguments):
        if formal.name == name:
            given = node.args[i] if i < len(node.args) and not formal.kwarg_only else None
            return node.kwargs.get(name, formal.default_value if given is None else given)
    return None
