"""Everything that the version of torch decides: what to patch where, and its files by content.

A new torch broke something: this file, or one :class:`Patch` of it, is where to go. The rest of
the package compares no version: it looks at what torch hands over (a recorded type, an attribute).
"""

from __future__ import annotations

import re
import sys

from dort_rewriter.hook import wrappers
from dort_rewriter.hook.patch import Patch, Series, Wrapper

OLDEST: Series = (2, 3)
"""Older ones have no ``OrtBackend``, or another one."""

REMOVED_IN: Series = (2, 9)
"""The first series without ``OrtBackend``: it is restored there, and hooked before."""

READS_OWN_MODULES: Series = (2, 15)
"""The first series whose Dynamo reads torch's own modules where they are compiled in place."""

BACKEND_MODULE = "torch.onnx._internal.onnxruntime"
"""Where ``OrtBackend`` stands, or stood."""

REGISTRY_MODULE = "torch._dynamo.backends.registry"
"""Where Dynamo keeps its backends by name."""

BACKEND_FILE = "onnx/_internal/onnxruntime.py"
"""Its file, in the folder of torch."""

PRISTINE: dict[str, str] = {
    "2.3": "8e7315dc1c08a39367fbc5b3ba88aa457c63abf31f9df7feec78f24f02b1e2da",
    "2.4": "01bd7aa347aaf980522225f37cf728e06825babdcd8a131a88590fb22f11b2b7",
    "2.5": "0a26efbb3b0252ad5159c4292f4516cd421d37a57022cb6e1656bfb7947c3c8e",
    "2.6": "0a26efbb3b0252ad5159c4292f4516cd421d37a57022cb6e1656bfb7947c3c8e",
    "2.7": "8b7252196ef87961bc9de1e5897b13155b342083b05be32e99d7f653b87e1b32",
    "2.8": "6b14d3dab9b93a6648a117763a301b20d3cd8d1b2ca27348ae164cd442c09d54",
}
"""The SHA-256 of that file as torch ships it: the same in all releases of a series, 2.5 and 2.6
ship the same one."""

_OF_ORT_BACKEND: dict[str, tuple[Wrapper, str]] = {
    "OrtBackend.__init__": (
        wrappers.build_backend,
        "torch reads the converters of an exporter of its own, which is not going to be used",
    ),
    "torch_compile_backend": (
        wrappers.compile_by_name,
        "torch's own takes no mode, and its errors do not reach the user as they are",
    ),
    "OrtBackend.__call__": (
        wrappers.call_backend,
        "AOTAutograd is given the decompositions that go with our converters",
    ),
    "OrtBackend.compile": (
        wrappers.compile_graph,
        "the graph is partitioned by what our converters support; torch's own table is empty or "
        "unusable with the onnxscript of today",
    ),
    "OrtBackend._ort_acclerated_call": (
        wrappers.accelerated_call,
        "a new graph goes through our exporter and runs on a plain onnxruntime",
    ),
    "OrtBackend.get_cached_instance_for_options": (
        wrappers.instance_for_options,
        "torch's own takes its own options only, and keeps eight sets of them",
    ),
    "OrtBackend.get_cached_instances": (
        wrappers.cached_instances,
        "instances that torch's own function does not keep are among them",
    ),
    "OrtBackend.clear_cached_instances": (
        wrappers.clear_instances,
        "instances that torch's own function does not keep are forgotten with its own",
    ),
}
"""For what stands in the file of ``OrtBackend``: what is called in its place, and why."""

PATCHES: tuple[Patch, ...] = (
    *(
        Patch(
            module=BACKEND_MODULE,
            attribute=attribute,
            replacement=replacement,
            reason=reason,
            since=OLDEST,
            before=REMOVED_IN,
        )
        for attribute, (replacement, reason) in _OF_ORT_BACKEND.items()
    ),
    Patch(
        module=BACKEND_MODULE,
        attribute="OrtBackend.__getattr__",
        replacement=wrappers.complete_backend,
        reason="what torch's own constructor sets is made when it is asked for",
        since=OLDEST,
        before=REMOVED_IN,
        absent=wrappers.no_attribute_of_backend,
    ),
    Patch(
        module="torch.onnx",
        attribute="__getattr__",
        replacement=wrappers.restore_names,
        reason="_OrtBackend and its kin can be imported again from torch.onnx",
        since=REMOVED_IN,
        absent=wrappers.no_attribute("torch.onnx"),
    ),
    Patch(
        module="torch.onnx._internal",
        attribute="__getattr__",
        replacement=wrappers.restore_submodule,
        reason="torch.onnx._internal.onnxruntime is there without being imported, as it was",
        since=REMOVED_IN,
        absent=wrappers.no_attribute("torch.onnx._internal"),
    ),
    Patch(
        module=REGISTRY_MODULE,
        attribute="register_backend",
        replacement=wrappers.register_once,
        reason="two threads that look a backend up by name for the first time both register it, "
        "and torch refuses the second",
        since=OLDEST,
    ),
    Patch(
        module=REGISTRY_MODULE,
        attribute="lookup_backend",
        replacement=wrappers.find_by_name_and_look,
        reason="modules of torch that are compiled in place call no backend: one line says so",
        since=OLDEST,
        before=READS_OWN_MODULES,
    ),
    Patch(
        module=REGISTRY_MODULE,
        attribute="lookup_backend",
        replacement=wrappers.find_by_name,
        reason="a model in which Dynamo finds no graph calls no backend: one line of log says so",
        since=READS_OWN_MODULES,
    ),
)
"""Applied in this order, taken back in the opposite one."""


def parse_series(version: str) -> Series:
    """The series of a version: ``(2, 8)`` for ``2.8.0+cpu``.

    NOTE: without ``packaging``, which takes 20 ms that each ``import torch`` would wait for.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found is not None, version
    return int(found[1]), int(found[2])


def ships_backend(version: str) -> bool:
    """Whether this version of torch has ``OrtBackend``, which newer ones get back."""
    return parse_series(version) < REMOVED_IN


def is_too_old(version: str) -> bool:
    """Whether this version of torch is older than all that are supported."""
    return parse_series(version) < OLDEST


def loaded_version() -> str | None:
    """The version of torch, None as long as it is not imported."""
    version = getattr(sys.modules.get("torch"), "__version__", None)
    return None if version is None else str(version)


def loaded_series() -> Series | None:
    """The series of torch, None as long as it is not imported."""
    version = loaded_version()
    return None if version is None else parse_series(version)
