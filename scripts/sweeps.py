"""What keeps a sweep from ending well where it judged nothing.

A sweep counts what is wrong. Where the backend is not this package's, or a library is missing
that nearly all samples are made with, there is nothing wrong to count.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

__all__ = ["require_backend", "require_verdicts"]

MOST_SKIPPED = 0.1
"""The share of what was to be judged that may have no verdict."""


def require_backend() -> None:
    """Hook torch; end the process unless ``onnxrt`` is this package's backend then."""
    import dort_rewriter

    status = dort_rewriter.install()
    try:
        torch._dynamo.lookup_backend("onnxrt")
    except torch._dynamo.exc.InvalidBackend:
        raise SystemExit(
            "nothing can be judged: dort-rewriter is not installed, whose entry point names the "
            "backend onnxrt (pip install -e .; a path alone is not enough)"
        ) from None
    if status.state not in ("installed", "waiting") or not status.rewriter:
        raise SystemExit(f"nothing can be judged: onnxrt is not this package's backend\n{status}")


def require_verdicts(judged: int, skipped: Sequence[str], most: float = MOST_SKIPPED) -> None:
    """End the process if nothing was judged, or if more than a share was skipped.

    ``skipped`` says of each what it was, and why it has no verdict.
    """
    if not judged or len(skipped) > most * (judged + len(skipped)):
        first = f"; the first: {skipped[0]}" if skipped else ""
        raise SystemExit(f"{judged} judged, {len(skipped)} skipped, which is no sweep{first}")
