"""Make the changes to torch, all or none, and take them back."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from types import ModuleType

from dort_rewriter import env
from dort_rewriter.errors import HookError
from dort_rewriter.hook import empty_frames, imports, versions
from dort_rewriter.hook.patch import STATE, Patch, RestoredModule
from dort_rewriter.hook.report import HookStatus, is_expected, status
from dort_rewriter.hook.wrappers import SOURCE, complete_all

logger = logging.getLogger(__name__)

MODULES = tuple(dict.fromkeys(patch.module for patch in versions.PATCHES))


def install() -> HookStatus:
    """Hook torch, now or as soon as the modules concerned are imported; say what was done.

    Installed already, nothing happens; neither does with ``DORT_DISABLE=1``. If one of the changes
    cannot be made, those made are taken back: :class:`HookError` when torch is imported already,
    a warning and :attr:`HookStatus.failure` when it is imported later.
    """
    make_changes()
    return status()


def make_changes() -> None:
    """Do what :func:`install` does, without the report: that one takes milliseconds."""
    if env.is_on("DORT_DISABLE"):
        logger.info("torch is not hooked: DORT_DISABLE=1")
        return
    # Before the lock is taken: whoever imports them may be waiting for it.
    imports.wait_for(*MODULES)
    with STATE.lock:
        if not STATE.installed:
            STATE.installed, STATE.failure = True, ""
            try:
                _watch()
            except BaseException as error:  # raised again
                _take_back()
                STATE.failure = str(error)
                raise


def uninstall() -> HookStatus:
    """Take every change back; torch is as it was.

    Raises :class:`HookError`, and changes nothing, if someone else replaced what was put in place.
    """
    complete_all()  # before the lock is taken, too: it imports modules of torch
    with STATE.lock:
        if obstacles := [text for change in STATE.changes if (text := change.obstacle())]:
            raise HookError(
                "Cannot uninstall, nothing was changed: "
                + "; ".join(obstacles)
                + ". Take that back first, then call uninstall() again."
            )
        _take_back()
        return status()


@contextlib.contextmanager
def installed() -> Iterator[HookStatus]:
    """Install for the length of a ``with`` block; what was installed before stays."""
    before = is_expected()
    try:
        yield install()
    finally:
        if not before:
            uninstall()


def _watch() -> None:
    version = versions.loaded_version()
    if version is not None and versions.is_too_old(version):
        raise HookError(
            f"torch {version} is not supported: it takes "
            f"{'.'.join(map(str, versions.OLDEST))} or newer."
        )
    imports.serve_missing(versions.BACKEND_MODULE, _restore_backend_module)
    for name in MODULES:
        imports.after_import(name, _on_import)
        if (module := sys.modules.get(name)) is not None:
            _patch(module)


def _on_import(module: ModuleType) -> None:
    """Patch a module that was just imported; its import succeeds whatever happens here."""
    with STATE.lock:
        try:
            _patch(module)
        except Exception as error:  # whoever imports a module of torch did not ask for this
            _take_back()
            STATE.failure = str(error)
            logger.warning("dort_rewriter took itself back: %s", error)


def _patch(module: ModuleType) -> None:
    series = versions.loaded_series()
    if not STATE.installed or series is None:
        return
    for patch in versions.PATCHES:
        if patch.module == module.__name__ and patch.fits(series) and not _in_place(patch, module):
            STATE.changes.append(patch.apply(module))
            logger.debug("patched %s: %s", patch, patch.reason)


def _in_place(patch: Patch, module: ModuleType) -> bool:
    owner, name = patch.locate(module)
    now = vars(owner).get(name)
    return now is not None and any(now is getattr(c, "ours", None) for c in STATE.changes)


def _restore_backend_module(module: ModuleType) -> None:
    restored = RestoredModule.fill(module, SOURCE)
    with STATE.lock:
        STATE.changes.append(restored)


def _take_back() -> None:
    imports.forget(*MODULES)
    empty_frames.unwatch()
    for change in reversed(STATE.changes):
        if change.obstacle() is None:
            change.restore()
    STATE.changes.clear()
    STATE.installed, STATE.failure = False, ""
