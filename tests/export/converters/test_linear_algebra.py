from __future__ import annotations

import pytest

from tests.export.cases import Case, T, check

CASES = [
    Case("aten::mm", (T(3, 4), T(4, 5))),
    Case("aten::bmm", (T(2, 3, 4), T(2, 4, 5))),
    Case("aten::addmm", (T(5), T(3, 4), T(4, 5)), {"beta": 0.5, "alpha": 2}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_op(case: Case, dynamic: bool) -> None:
    if dynamic and not case.dynamic:
        return
    check(case, dynamic=dynamic)
