"""What the hook has done so far: one record for the process, changed under its lock."""

from __future__ import annotations

from dataclasses import dataclass, field

from dort_rewriter.forks import SafeLock
from dort_rewriter.hook.patch import Applied
from dort_rewriter.hook.restored import RestoredModule

__all__ = ["STATE", "State"]


@dataclass(kw_only=True)
class State:
    """Installed or not, and each change made to torch, in the order it was made."""

    lock: SafeLock = field(default_factory=SafeLock)
    installed: bool = False
    changes: list[Applied | RestoredModule] = field(default_factory=list)
    failure: str = ""
    """Why the hook took itself back after torch was imported; empty if it did not."""


STATE = State()
