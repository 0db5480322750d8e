"""Which execution providers a session gets, and torch devices as onnxruntime names them."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.ort_module import bindings, describe, load_onnxruntime

logger = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
_NEED_CUDA = frozenset({CUDA, "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"})

_NVIDIA = 0x10DE
"""As onnxruntime, and PCI, number vendors."""

_CUDA_HINT = (
    'pip install "dort-rewriter[gpu]" on a machine with a GPU of NVIDIA, beside a torch with CUDA'
)
_HINTS: Mapping[str, str] = {
    CUDA: _CUDA_HINT,
    "TensorrtExecutionProvider": f"{_CUDA_HINT}, and TensorRT",
    OPENVINO: (
        "pip install onnxruntime-ep-openvino on a machine with a processor or GPU of Intel, with "
        "onnxruntime 1.23 or newer; or onnxruntime-openvino in the place of onnxruntime"
    ),
}
"""How to install what has a provider, where that is known."""

_PLUG_INS = "onnxruntime-ep-"
"""How the names of packages begin that bring a provider as a plug-in: their module says its name,
and where its library is."""


@dataclass(frozen=True)
class Provider:
    """An execution provider and its options, as onnxruntime reads them."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    required: bool = False
    """Whether its absence is an error: the option ``required``."""
    device: str | None = None
    """The kind of device where a plug-in has several: the option ``device``, as in ``"NPU"``."""


ProviderSpec = str | tuple[str, Mapping[str, object]] | Provider
"""What a user writes: a name, or a name with options."""


@functools.cache
def built_in() -> tuple[str, ...]:
    """The providers of the installed onnxruntime that can run here.

    NOTE: builds with CUDA list it on every machine; torch knows whether there is a device.
    """
    names = load_onnxruntime().get_available_providers()
    usable = torch.cuda.is_available()
    return tuple(n for n in names if usable or n not in _NEED_CUDA)


def available() -> tuple[str, ...]:
    """The providers that can run here: those built in, and plug-ins that are registered by now."""
    return tuple(dict.fromkeys((*built_in(), *(d.ep_name for d in _plug_in_devices()))))


def _plug_in_devices() -> list[Any]:
    """The devices of registered plug-ins; none where onnxruntime takes no plug-ins."""
    listed = getattr(load_onnxruntime(), "get_ep_devices", None)
    return [] if listed is None else [d for d in listed() if d.ep_name not in built_in()]


def is_plug_in(name: str) -> bool:
    """Whether a provider is taken by its devices, not by its name."""
    return name not in built_in() and any(d.ep_name == name for d in _plug_in_devices())


def devices_of(provider: Provider) -> list[Any]:
    """The devices of a plug-in that a session is to have."""
    return [
        d for d in _plug_in_devices() if d.ep_name == provider.name and _is_wanted(d, provider)
    ]


def _is_wanted(device: Any, provider: Provider) -> bool:
    kind = str(device.device.type).rpartition(".")[2]
    return provider.device is None or provider.device.upper() == kind.upper()


def normalize(specs: Iterable[ProviderSpec]) -> tuple[Provider, ...]:
    """Keep the providers that are there, in order; the CPU alone when none is."""
    return take_present(specs) or (Provider(CPU),)


def take_present(specs: Iterable[ProviderSpec], *, strict: bool = False) -> tuple[Provider, ...]:
    """The providers that are there, each once, in order.

    A plug-in that is installed is registered where it is named. What is not there is one warning
    in the log, or with ``strict``, and where it is required, an :class:`OptionError`.
    """
    kept: dict[str, Provider] = {}
    for spec in specs:
        provider = _parse(spec)
        if _is_here(provider):
            kept.setdefault(provider.name, provider)
        elif strict or provider.required:
            raise OptionError(_missing(provider))
        else:
            _warn(_missing(provider))
    return tuple(kept.values())


def _is_here(provider: Provider) -> bool:
    if provider.name in built_in():
        return True
    return bool(devices_of(provider) or (_register(provider.name) and devices_of(provider)))


_registering = threading.Lock()


@functools.cache
def _register(name: str) -> bool:
    """Register the installed plug-in that has a provider of a name, if there is one."""
    register = getattr(load_onnxruntime(), "register_execution_provider_library", None)
    if register is None:
        return False
    with _registering:
        for found in importlib.metadata.distributions():
            package = (found.metadata["Name"] or "").lower().replace("_", "-")
            if not package.startswith(_PLUG_INS):
                continue
            try:
                module = importlib.import_module(package.replace("-", "_"))
                if name != module.get_ep_name():
                    continue
                register(package, module.get_library_path())
            except Exception as error:  # a package of others
                logger.warning("The plug-in %s cannot be registered: %s", package, error)
                continue
            logger.info("The plug-in %s %s is registered for %s.", package, found.version, name)
            return True
    return False


def _parse(spec: ProviderSpec) -> Provider:
    match spec:
        case Provider():
            return spec
        case str():
            return Provider(spec)
        case (str() as name, Mapping() as options):
            own = {str(k): v for k, v in options.items()}
            required, device = own.pop("required", False), own.pop("device", None)
            required = {"True": True, "False": False}.get(str(required), required)
            if not isinstance(required, bool) or not isinstance(device, str | None):
                raise OptionError(
                    f"'required' is True or False and 'device' a kind of device ('CPU', 'GPU', "
                    f"'NPU'), not {required!r} and {device!r} of {name!r}."
                )
            given = {k: str(v) for k, v in own.items()}
            return Provider(name, given, required=required, device=device)
    raise OptionError(
        f"An execution provider is a name or a pair (name, options), not {spec!r}: "
        f"'{CPU}', ('{CUDA}', {{'device_id': 0}})."
    )


def _missing(provider: Provider) -> str:
    """What is missing, what is there, and how to get the rest."""
    name, here = provider.name, available()
    of_device = "" if provider.device is None else f" on a device of the kind {provider.device!r}"
    text = (
        f"Execution provider {name!r}{of_device} is not available with {describe()} on this "
        f"machine; available: {', '.join(here)}."
    )
    if hint := _HINTS.get(name):
        return f"{text} To have it: {hint}."
    close = difflib.get_close_matches(name, {*here, *_HINTS}, n=1, cutoff=0.85)
    return f"{text} Did you mean {close[0]!r}?" if close else text


@functools.cache
def _warn(text: str) -> None:
    """Log once that a graph runs without a provider."""
    logger.warning("%s It is left out.", text)


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


def with_nodes(names: Iterable[str], placed: Mapping[str, Mapping[str, int]] | None) -> str:
    """The providers of a session as text, with the number of nodes of each where it is known."""
    if placed is None:
        return ", ".join(names)
    return ", ".join(f"{name} ({sum(placed.get(name, {}).values())} nodes)" for name in names)
