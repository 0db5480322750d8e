"""Which execution providers a session gets, and torch devices as onnxruntime names them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.ort_module import bindings, describe, load_onnxruntime

__all__ = [
    "CPU",
    "CUDA",
    "Provider",
    "ProviderSpec",
    "available",
    "infer",
    "normalize",
    "ort_device",
]

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
_NEED_CUDA = frozenset({CUDA, "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"})

_NVIDIA = 0x10DE
"""As onnxruntime, and PCI, number vendors."""


@dataclass(frozen=True)
class Provider:
    """An execution provider and its options, as onnxruntime reads them."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


ProviderSpec = str | tuple[str, Mapping[str, object]] | Provider
"""What a user writes: a name, or a name with options."""


@functools.cache
def available() -> tuple[str, ...]:
    """The providers that can run here.

    NOTE: builds with CUDA list it on every machine; torch knows whether there is a device.
    """
    names = load_onnxruntime().get_available_providers()
    usable = torch.cuda.is_available()
    return tuple(n for n in names if usable or n not in _NEED_CUDA)


def normalize(specs: Iterable[ProviderSpec]) -> tuple[Provider, ...]:
    """Keep the providers that are available, in order; the CPU alone when none is.

    Warns once for each name that is not available.
    """
    kept: dict[str, Provider] = {}
    for spec in specs:
        provider = _parse(spec)
        if provider.name not in available():
            _warn_unavailable(provider.name)
        else:
            kept.setdefault(provider.name, provider)
    return tuple(kept.values()) or (Provider(CPU),)


def _parse(spec: ProviderSpec) -> Provider:
    match spec:
        case Provider():
            return spec
        case str():
            return Provider(spec)
        case (str() as name, Mapping() as options):
            return Provider(name, {str(k): str(v) for k, v in options.items()})
    raise OptionError(
        f"An execution provider is a name or a pair (name, options), not {spec!r}: "
        f"'{CPU}', ('{CUDA}', {{'device_id': 0}})."
    )


@functools.cache
def _warn_unavailable(name: str) -> None:
    warnings.warn(
        f"Execution provider {name!r} is not available with {describe()} on this machine and is "
        f"left out; available: {', '.join(available())}.",
        stacklevel=4,
    )


def infer(devices: Iterable[torch.device | None]) -> tuple[Provider, ...]:
    """Choose providers from the devices of the tensors: CUDA first where there is one, then CPU.

    The CPU provider always comes last: it runs what the others do not.
    """
    cuda = sorted({d.index or 0 for d in devices if d is not None and d.type == "cuda"})
    if len(cuda) > 1:
        raise ExecutionError(
            f"One session runs on one CUDA device, the tensors are on {cuda}: compile the "
            "parts of the model separately."
        )
    wanted: Sequence[ProviderSpec] = [CPU]
    if cuda:
        # The first device is the default. Where it is named onnxruntime warns, from 1.26, at each
        # session: it looks for the number among providers of another kind first.
        wanted = [Provider(CUDA, {"device_id": str(cuda[0])} if cuda[0] else {}), CPU]
    return normalize(wanted)


@functools.cache
def ort_device(device: torch.device | None) -> object:
    """The OrtDevice of a torch device; None is the CPU."""
    ort = bindings().OrtDevice
    kind = "cpu" if device is None else device.type
    if kind == "cpu":
        return ort(ort.cpu(), ort.default_memory(), 0)
    if kind == "cuda":
        assert device is not None
        # Releases that know vendors read the memory of a GPU of none as WebGPU's, or refuse it.
        vendor = (_NVIDIA,) if hasattr(ort, "vendor_id") else ()
        return ort(ort.cuda(), ort.default_memory(), *vendor, device.index or 0)
    raise ExecutionError(
        f"Tensors on {kind!r} cannot be handed to ONNX Runtime without a copy: move them to the "
        "CPU or to CUDA, or compile the model with another backend."
    )
