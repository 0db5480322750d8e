"""The functions of torch's C++ library that our kernels call: which ones there are."""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path

import torch

from dort_rewriter.kernels.build import features, processor

logger = logging.getLogger(__name__)


@functools.cache
def torch_library() -> ctypes.CDLL | None:
    """The library with torch's kernels for the CPU; None where it is not found as a file."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib", "torch_cpu.dll"):
        if not (path := folder / name).exists():
            continue
        try:
            return ctypes.CDLL(str(path))  # loaded already, it is counted once more
        except OSError as error:
            logger.info("torch's library cannot be asked for its functions: %s", error)
    return None


@functools.cache
def has_function(name: str) -> bool:
    """Whether torch exports a function of its C interface."""
    library = torch_library()
    return library is not None and hasattr(library, name)


@functools.cache
def works_alone() -> bool:
    """Whether torch's kernels can be told to work in the thread that calls them alone."""
    names = ("_ZN2at15get_num_threadsEv", "omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    return all(map(has_function, names))


@functools.cache
def comes_with_mkl() -> bool:
    """Whether MKL comes with torch, and is on a processor with AVX-512."""
    if not (has_function("sgemm_") and has_function("MKL_Set_Num_Threads_Local")):
        return False
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@functools.cache
def multiplies_faster() -> bool:
    """Whether MKL is there, on a processor of its maker.

    NOTE: on others, where it takes other ways, the products of onnxruntime are the faster ones. On
    a Xeon with AVX-512 those of MKL take 0.7 to 1 of their time, the larger the less.
    """
    return comes_with_mkl() and processor("vendor_id").endswith("GenuineIntel")


@functools.cache
def multiplies_bfloat16() -> bool:
    """Whether MKL multiplies matrices of bfloat16 by instructions for that."""
    return has_function("gemm_bf16bf16f32_") and "amx_bf16" in features()


@functools.cache
def multiplies_by_parts() -> bool:
    """Whether MKL is there, and the processor multiplies bfloat16 in tiles, of which our kernel
    makes products of float32."""
    return comes_with_mkl() and {"amx_tile", "amx_bf16"} <= features()


def float32_precision() -> str:
    """What torch's settings allow products of float32 on the CPU: "ieee", "tf32" or "bf16".

    NOTE: the setting of torch 2.9 is asked first where it exists: beside it the older one raises.
    """
    products = getattr(torch.backends.mkldnn, "matmul", None)
    named = getattr(products, "fp32_precision", None)
    if named is None:
        older = {"high": "tf32", "medium": "bf16"}
        return older.get(torch.get_float32_matmul_precision(), "ieee")
    return "ieee" if named == "none" else str(named)


@functools.cache
def convolves_bfloat16() -> bool:
    """Whether the processor has what oneDNN needs for convolutions of bfloat16; torch has slow
    loops beside it, which multiply the padding."""
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
