"""Install the hook without a line in the user's program: what runs when the package is imported.

torch >= 2.5 imports the package at the end of its own import, through the entry point
:func:`autoload`; for an older torch the user's program does.

NOTE: torch makes its own import fail on any exception raised here, and every program that imports
torch waits for it: this must not raise, nor import more than what little stands below.
"""

from __future__ import annotations

import sys
from types import ModuleType

from dort_rewriter import env
from dort_rewriter import forks as forks  # sees forks from here on
from dort_rewriter.hook import imports


def autoload() -> None:
    """Do nothing more: to find this function, torch had the package imported."""


def hook_later() -> None:
    """Install the hook when ``torch.onnx`` is imported, now if it already is."""
    if env.is_on("DORT_DISABLE"):
        return
    if imports.TRIGGER in sys.modules:
        _hook()
    else:
        imports.after_import(imports.TRIGGER, _hook)


def _hook(_: ModuleType | None = None) -> None:
    try:
        from dort_rewriter.hook import installer

        installer.make_changes()
    except Exception as error:  # a program that only wants torch must get it
        import logging

        logging.getLogger(__name__).warning("dort_rewriter could not hook torch: %s", error)
