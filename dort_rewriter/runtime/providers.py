"""Which execution providers a session gets, and torch devices as onnxruntime names them."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dort_rewriter.errors import ExecutionError, OptionError
from dort_rewriter.ort_module import bindings, describe, load_onnxruntime, plug_ins

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
    "NvTensorRTRTXExecutionProvider": (
        "pip install onnxruntime-ep-nv-tensorrt-rtx on a machine with a GPU of NVIDIA"
    ),
    OPENVINO: (
        "pip install onnxruntime-ep-openvino on a machine with a processor or GPU of Intel, with "
        "onnxruntime 1.23 or newer; or onnxruntime-openvino in the place of onnxruntime"
    ),
    "QNNExecutionProvider": (
        "pip install onnxruntime-qnn on a machine with a processor of Qualcomm"
    ),
    "WebGpuExecutionProvider": (
        "pip install onnxruntime-ep-webgpu on a machine with a GPU and its driver"
    ),
    "DmlExecutionProvider": "pip install onnxruntime-directml, on Windows",
    "CoreMLExecutionProvider": "onnxruntime for macOS has it built in",
}
"""How to install what has a provider, where that is known."""

_KINDS: Mapping[str, tuple[str, ...]] = {
    CPU: ("CPU",),
    **dict.fromkeys((*_NEED_CUDA, "DmlExecutionProvider"), ("GPU",)),
    OPENVINO: ("CPU", "GPU", "NPU"),
}
"""The kinds of devices that a provider may have where it is built in."""

_POLICIES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("DEFAULT", "PREFER_CPU"), ("CPU",)),
    "PREFER_NPU": ("NPU", "CPU"),
    "PREFER_GPU": ("GPU", "CPU"),
    "MAX_PERFORMANCE": ("GPU", "NPU", "CPU"),
    **dict.fromkeys(("MAX_EFFICIENCY", "MIN_OVERALL_POWER"), ("NPU", "GPU", "CPU")),
}
"""How onnxruntime calls its policies, and the kinds of devices that each looks at, in order."""


@dataclass(frozen=True)
class Provider:
    """An execution provider and its options, as onnxruntime reads them."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    required: bool = False
    """Whether its absence is an error: the option ``required``."""
    device: str | None = None
    """The kind of device where it has several: the option ``device``, as in ``"NPU"``."""

    def spelled(self) -> tuple[str, dict[str, Any]]:
        """A pair of its name and its options, as a user writes it."""
        own = {"required": True} if self.required else {}
        of = {} if self.device is None else {"device": self.device}
        return self.name, {**self.options, **own, **of}


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
    """Whether a device is of the kind that is asked for, or is called so by its plug-in: GPU.1."""
    kind = str(device.device.type).rpartition(".")[2]
    names = (kind, *dict(getattr(device, "ep_metadata", {})).values())
    return provider.device is None or provider.device.upper() in map(str.upper, names)


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
        provider = parse(spec)
        if found := _resolve(provider):
            for each in found:
                kept.setdefault(each.name, each)
        elif strict or provider.required:
            raise OptionError(_missing(provider))
        else:
            _warn(provider.name, provider.device)
    return tuple(kept.values())


def _resolve(provider: Provider) -> list[Provider]:
    """The provider where it is there; for a policy, those that it takes before the CPU."""
    if (policy := provider.name.upper()) in _POLICIES:
        return _by_policy(policy, provider)
    if provider.name in built_in():
        if provider.device is None or provider.device.upper() in _KINDS.get(provider.name, ()):
            return [provider]
        return []
    if devices_of(provider) or (_register(provider.name) and devices_of(provider)):
        return [provider]
    return []


def _by_policy(policy: str, wanted: Provider) -> list[Provider]:
    """The plug-ins that onnxruntime takes by a policy of what is registered, each with the first
    kind of device that the policy looks at."""
    policies = getattr(load_onnxruntime(), "OrtExecutionProviderDevicePolicy", None)
    if policies is None:
        return []
    import onnx

    nothing = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> nothing (float[1] x) => (float[1] y) '
        "{ y = Identity(x) }"
    )
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    options.set_provider_selection_policy(getattr(policies, policy))
    session = load_onnxruntime().InferenceSession(nothing.SerializeToString(), options)
    found = []
    for name in session.get_providers():
        ways = [replace(wanted, name=name, device=kind) for kind in _POLICIES[policy]]
        found += [way for way in ways if is_plug_in(name) and devices_of(way)][:1]
    return found


_registering = threading.Lock()


@functools.cache
def _register(name: str) -> bool:
    """Register the installed plug-in that has a provider of a name, if there is one."""
    register = getattr(load_onnxruntime(), "register_execution_provider_library", None)
    if register is None:
        return False
    with _registering:
        for package, found in plug_ins().items():
            try:
                module = _module_of(found, package)
                if module is None or name not in _names_of(module):
                    continue
                register(package, module.get_library_path())
            except Exception as error:  # a package of others
                logger.warning("The plug-in %s cannot be registered: %s", package, error)
                continue
            logger.info("The plug-in %s %s is registered for %s.", package, found.version, name)
            return True
    return False


def _module_of(found: importlib.metadata.Distribution, package: str) -> Any:
    """The module of a plug-in; None for a package without one, as for one that asks for others."""
    listed = (found.read_text("top_level.txt") or "").split()
    for name in dict.fromkeys((package.replace("-", "_"), *listed)):
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            if hasattr(module, "get_library_path"):
                return module
    return None


def _names_of(module: Any) -> list[str]:
    """The providers that the library of a plug-in has."""
    several = getattr(module, "get_ep_names", None)
    return [module.get_ep_name()] if several is None else list(several())


def parse(spec: object) -> Provider:
    """What a user wrote; :class:`OptionError` for what names no provider."""
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
    if (policy := getattr(spec, "name", None)) in _POLICIES:  # onnxruntime's own constant
        return Provider(str(policy))
    raise OptionError(
        f"An execution provider is a name or a pair (name, options), not {spec!r}: "
        f"'{CPU}', ('{CUDA}', {{'device_id': 0}})."
    )


def _missing(provider: Provider) -> str:
    """What is missing, what is there, and how to get the rest."""
    name, here, ready = provider.name, available(), plug_ins()
    what = "Execution provider"
    if name.upper() in _POLICIES:
        what = "A plug-in for the policy"
    of_device = "" if provider.device is None else f" on a device of the kind {provider.device!r}"
    text = (
        f"{what} {name!r}{of_device} is not available with {describe()} on this "
        f"machine; available: {', '.join(here)}."
    )
    if ready:
        text += f" Installed plug-ins, each registered where it is named: {', '.join(ready)}."
    if hint := _HINTS.get(name):
        return f"{text} To have it: {hint}."
    if name in here or name.upper() in _POLICIES:
        return text
    known = (*here, *_HINTS, *_POLICIES)
    meant = {**{n.lower(): n for n in known}, **{_spoken(n): n for n in known}}
    asked = (name.lower(), _spoken(name))
    close = (m for a in asked for m in difflib.get_close_matches(a, meant, n=1, cutoff=0.85))
    found = next(close, None)
    return text if found is None else f"{text} Did you mean {meant[found]!r}?"


def _spoken(name: str) -> str:
    """The name of a provider as it is spoken of."""
    return name.lower().removesuffix("executionprovider").replace("_", "").replace("-", "")


@functools.cache
def _warn(name: str, device: str | None) -> None:
    """Log once that graphs run without a provider."""
    logger.warning("%s It is left out.", _missing(Provider(name, device=device)))


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


UNKNOWN = "which nodes is not known"
"""What is said of several providers where onnxruntime does not tell whose a node is."""


def with_nodes(names: Iterable[str], placed: Mapping[str, Mapping[str, int]] | None) -> str:
    """The providers of a session as text, with the number of nodes of each where it is known."""
    if placed is None:
        every = list(names)
        return ", ".join(every) + (f" ({UNKNOWN})" if len(every) > 1 else "")
    return ", ".join(f"{name} ({sum(placed.get(name, {}).values())} nodes)" for name in names)
