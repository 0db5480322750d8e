"""The record of one wrong answer of torch, beside its probe and its remedy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Defect:
    """What torch does, in which versions, and what is done about it.

    The module that has one as ``DEFECT`` also has ``present()``, which asks the torch that is
    installed: a test compares its answer with ``seen_in``. ``docs/torch_defects.md`` is written
    from these records, which are literals for that reason.
    """

    operators: str
    """Where it shows."""
    effect: str
    """What differs from eager mode, with ``torch.compile(backend="aot_eager")`` too."""
    seen_in: tuple[str, ...]
    """The series of torch that have it, of those that are tested."""
    remedy: str
    """What is done about it, and how far that reaches: the graph, the thread, the process."""
    upstream: str
    """The thread that reports it, or the text in ``reports`` that could be filed."""
