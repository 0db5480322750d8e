"""Say what the hook did, to which torch, and what sessions run on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from dort_rewriter import env, notebook
from dort_rewriter.hook import imports, versions
from dort_rewriter.hook.patch import STATE

State = Literal["disabled", "not installed", "waiting", "installed", "failed"]

FLAVOURS = (
    *("onnxruntime", "onnxruntime-gpu", "onnxruntime-training", "onnxruntime-directml"),
    *("onnxruntime-openvino", "onnxruntime-qnn", "onnxruntime-rocm"),
)
"""The distributions that bring the module ``onnxruntime``."""


@dataclass(frozen=True, kw_only=True)
class HookStatus:
    """What the hook did; printed, it reads as a short report."""

    state: State
    """``waiting``: installed, and ``torch.onnx`` is not imported yet."""
    torch: str | None
    """The version of torch, imported or not; None if there is none."""
    applied: tuple[str, ...]
    """What was changed."""
    pending: tuple[str, ...]
    """What is changed as soon as its module is imported."""
    rewriter: bool
    """Whether a graph compiled now would go through the converters of this package."""
    onnxruntime: tuple[str, ...]
    """The installed distributions of onnxruntime; more than one overwrite each other's files."""
    failure: str = ""
    """Why the hook took itself back."""
    sessions: tuple[str, ...] = ()
    """The sessions that this process has by now, by their execution providers, with the nodes that
    really run on each, where onnxruntime says."""

    def __str__(self) -> str:
        lines = [
            f"dort_rewriter hook: {self.state}" + (f" ({self.failure})" if self.failure else ""),
            f"torch: {self.torch or 'not found'}",
            f"onnxruntime: {', '.join(self.onnxruntime) or 'not found'}",
            f"rewriter: {'on' if self.rewriter else 'off'}",
        ]
        lines += [f"sessions: {line}" for line in self.sessions]
        lines += [f"applied: {name}" for name in self.applied]
        lines += [f"pending: {name}" for name in self.pending]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rows = [line.partition(": ")[::2] for line in str(self).splitlines()]
        return notebook.table(rows)


def status() -> HookStatus:
    """Report on the hook; imports neither torch nor onnxruntime."""
    torch = versions.loaded_version() or _distribution_version("torch")
    with STATE.lock:
        applied = tuple(str(change) for change in STATE.changes)
        return HookStatus(
            state=_state(pending := _pending(torch, applied)),
            torch=torch,
            applied=applied,
            pending=pending,
            rewriter=_rewriter_is_on(torch),
            onnxruntime=tuple(
                f"{name} {version}"
                for name in FLAVOURS
                if (version := _distribution_version(name)) is not None
            ),
            failure=STATE.failure,
            sessions=_sessions(),
        )


def _sessions() -> tuple[str, ...]:
    """Where sessions run, if some were built: finding out imports torch."""
    runtime = sys.modules.get("dort_rewriter.runtime.session")
    return () if runtime is None else tuple(runtime.describe_sessions())


def is_expected() -> bool:
    """Whether the hook is installed, or will be when ``torch.onnx`` is imported."""
    return STATE.installed or imports.is_watched(imports.TRIGGER)


def _state(pending: tuple[str, ...]) -> State:
    if is_expected():
        waits = any(name.startswith(imports.TRIGGER) for name in pending)
        return "waiting" if waits else "installed"
    if env.is_on("DORT_DISABLE"):
        return "disabled"
    return "failed" if STATE.failure else "not installed"


def _pending(torch: str | None, applied: tuple[str, ...]) -> tuple[str, ...]:
    if torch is None or not is_expected():
        return ()
    series = versions.parse_series(torch)
    names = [str(patch) for patch in versions.PATCHES if patch.fits(series)]
    return tuple(name for name in names if name not in applied)


def _rewriter_is_on(torch: str | None) -> bool:
    if torch is not None and not versions.ships_backend(torch):
        return env.read("ONNXRT_CHANGE_REWRITER") != "0"
    return env.is_on("ONNXRT_CHANGE_REWRITER") and is_expected()


def _distribution_version(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
