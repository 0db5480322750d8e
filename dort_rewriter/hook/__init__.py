"""Patches on torch: what is replaced, where, and how it is taken back."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dort_rewriter.hook.installer import install, installed, uninstall
    from dort_rewriter.hook.patch import Patch
    from dort_rewriter.hook.report import HookStatus, status

__all__ = ["HookStatus", "Patch", "install", "installed", "status", "uninstall"]

_EXPORTS = {
    "HookStatus": "report",
    "Patch": "patch",
    "install": "installer",
    "installed": "installer",
    "status": "report",
    "uninstall": "installer",
}
"""Resolved late: each import of torch imports this module."""


def __getattr__(name: str) -> Any:
    if (module := _EXPORTS.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
