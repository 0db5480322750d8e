"""What the doctor finds, one thing at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    state: Literal["ok", "note", "problem"]
    """``note``: nothing is wrong, but it may not be what one expects."""
    subject: str
    text: str
    fix: str = ""
    """The line that fixes it."""
