"""Rows of scores that hide all keys: minus infinity throughout, and no NaN."""

from __future__ import annotations

import math
from typing import Any


def hides_all(op: Any, scores: Any, axis: int = -1) -> Any:
    """The rows of scores that are minus infinity throughout; the axis is kept.

    NOTE: ORT's maximum keeps or loses a NaN by its position, its sum has each.
    """
    highest = op.ReduceMax(scores, [axis], keepdims=1)
    total = op.ReduceSum(scores, [axis], keepdims=1)
    return op.And(op.Equal(highest, -math.inf), op.Equal(total, -math.inf))
