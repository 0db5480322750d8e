"""Which kernels beside those of onnxruntime compute in the sessions of a backend.

Ours, torch's, and those that call MKL, which comes with torch. NOTE: whether ours are there is
asked last, since that may compile them.
"""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.kernels.loading import is_available
from dort_rewriter.kernels.torch_library import (
    comes_with_mkl,
    multiplies_bfloat16,
    multiplies_faster,
)
from dort_rewriter.optimize.mkl import differentiate_by_mkl, multiply_by_mkl, multiply_small_by_mkl
from dort_rewriter.optimize.pipeline import asks_for_kernels
from dort_rewriter.options import OptimizationOptions, OrtBackendOptions
from dort_rewriter.plan.placement import FLASH_BACKWARD, PRODUCTS, find_override

__all__ = ["compute_by_mkl", "described_mkl", "differentiates_by_mkl", "uses_own_kernels"]


def uses_own_kernels(options: OptimizationOptions) -> bool:
    """Whether the chosen rules ask for our kernels, and they can be compiled here."""
    wanted = asks_for_kernels(options.patterns)
    return wanted and options.processor == "CPU" and is_available()


def _multiplies_by_mkl(options: OrtBackendOptions) -> bool:
    """Whether large products of float32 are for the kernel that calls MKL."""
    elsewhere = any(find_override(p, options.placement) == "onnxruntime" for p in PRODUCTS)
    return not elsewhere and multiplies_faster() and _may_call_mkl(options)


def differentiates_by_mkl(options: OrtBackendOptions) -> bool:
    """Whether gradients of attention are: where nobody asks for torch's kernel.

    NOTE: on processors of other makers too. On an EPYC with AVX-512 training steps in two threads
    take, of the time with torch's kernel, 0.82 (a ViT under bfloat16 autocast), 0.87 (a BERT and a
    Llama), 0.89 (a GPT-2) and 0.97 (a Llama of 1,024), in float32 0.95 to 0.97.
    """
    return find_override(FLASH_BACKWARD, options.placement) is None and _may_call_mkl(options)


def _multiplies_small_by_mkl(options: OrtBackendOptions) -> bool:
    """Whether small products of bfloat16 are: where nobody asks for torch's kernels."""
    asked = any(find_override(p, options.placement) is not None for p in PRODUCTS)
    return not asked and multiplies_bfloat16() and _may_call_mkl(options)


def _may_call_mkl(options: OrtBackendOptions) -> bool:
    return comes_with_mkl() and uses_own_kernels(options.optimization)


def described_mkl(options: OrtBackendOptions) -> str:
    """All that decides what MKL computes."""
    decided = _multiplies_by_mkl, _multiplies_small_by_mkl, differentiates_by_mkl
    return f"{[d(options) for d in decided]}, of bfloat16: {multiplies_bfloat16()}"


def compute_by_mkl(model: ir.Model, options: OrtBackendOptions) -> None:
    """Change a model in place."""
    if _multiplies_by_mkl(options):
        multiply_by_mkl(model)
    if _multiplies_small_by_mkl(options):
        multiply_small_by_mkl(model)
    if differentiates_by_mkl(options):
        differentiate_by_mkl(model, of_bfloat16=multiplies_bfloat16())
