"""What our operators declare: what computes them, whether they may fail, types, strides.

The C++ class of an operator is its one declaration. ``scripts/operator_table.py`` asks the library
for all of them and writes :mod:`dort_rewriter.kernels.table`; what is derived of it is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dort_rewriter.kernels.table import TABLE

OWN_DOMAIN = "dort_rewriter"
"""The domain of the operators."""


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What is read of an operator of our domain, as its C++ class declares it."""

    name: str
    never_fails: bool = False
    """Whether nothing but a lack of memory makes it fail, given the right shapes."""
    mixed_types: bool = False
    """Whether so many inputs and outputs as there always are have a type each."""
    layouts: Literal["dense", "transposed", "last axis", "any"] = "dense"
    """Which strides of inputs it reads without a copy: of a matrix that is transposed, of any
    order that leaves the last axis the last, any."""
    library: Literal["own", "torch", "mkl", "python"] = "own"
    """What computes it; "python" is a call of torch through Python."""


OPERATORS: Mapping[str, Operator] = {fields["name"]: Operator(**fields) for fields in TABLE}
"""The operators by name."""


def _named(library: str, layouts: str) -> frozenset[str]:
    found = (o for o in OPERATORS.values() if (o.library, o.layouts) == (library, layouts))
    return frozenset(o.name for o in found)


def own_roots(names: Iterable[str]) -> tuple[str, ...]:
    """Operators of our domain as the roots of a rule name them."""
    return tuple(f"{OWN_DOMAIN}::{name}" for name in sorted(names))


TORCH_PRODUCTS = _named("torch", "transposed")
"""Those that torch's kernels compute: products, which read transposed inputs as they lie."""

TORCH_FLASH = "_scaled_dot_product_flash_attention_for_cpu"
TORCH_ATTENTION = _named("torch", "last axis")
"""Attention, where the last axis stays the last; outputs too have any order."""

TORCH_CONVOLUTIONS = _named("torch", "any")
"""Convolutions, whose inputs and outputs have any order."""

PADDING_LEFT_OUT = "PaddingLeftOut"
"""The operator that makes a convolution again by torch's, where its padding was multiplied with
what is not finite."""

CONVOLUTION_LIMITS = {"stride": 1024, "padding": 8192, "dilation": 8192, "output_padding": 1024}
"""The largest numbers that these take: ``kMostStride`` and ``kMostReach`` of
``kernels/cpp/operators/torch_convolution.h``."""

TORCH_KERNELS = TORCH_PRODUCTS | TORCH_ATTENTION | TORCH_CONVOLUTIONS

MKL_PRODUCT = "MklProduct"
"""The operator that multiplies by MKL, which comes with torch."""

ATTENTION, ATTENTION_GRAD = "Attention", "AttentionGrad"
"""Attention by products of our own, and its gradient, in the place of torch's kernels."""

MKL_ATTENTION_GRAD = "MklAttentionGrad"
"""The gradient of attention of bfloat16 by MKL's products."""

TORCH_CALL = "TorchCall"
"""The operator that calls any operator of torch, through Python."""

OWN_MOST_AXES = 12
"""The axes that these kernels take: ``kMostAxes`` of ``kernels/cpp/tensors.h``."""
