from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from tests.export.cases import Case, T, run, table_test

INT8, BOOL, HALF, INT64 = torch.int8, torch.bool, torch.float16, torch.int64

CASES = [
    Case("aten::view", (T(2, 3, 4), [2, 12])),
    Case("aten::view", (T(2, 3, 4, dtype=BOOL), [-1, 4])),
    Case("aten::view", (T(1, dtype=HALF), [])),
    Case("aten::view", (T(2, 0, 4), [0, 3]), dynamic=False),
    Case("aten::_unsafe_view", (T(6, 4), [2, 3, 4])),
    Case("aten::view_copy", (T(6, 4), [4, 6])),
    Case("aten::_reshape_copy", (T(6, 4), [4, -1])),
    Case("aten::_reshape_alias", (T(6, 4), [24], [1])),
    Case("aten::_reshape_alias_copy", (T(6, 4), [24], [1])),
    Case("aten::alias_copy", (T(3),)),
    Case("aten::detach_copy", (T(3),)),
    Case("aten::t", (T(3, 4),)),
    Case("aten::t", (T(3),)),
    Case("aten::t_copy", (T(3, 4),)),
    Case("aten::transpose.int", (T(2, 3, 4, dtype=INT8), -1, 0)),
    Case("aten::transpose.int", (T(), 0, -1)),
    Case("aten::transpose_copy.int", (T(2, 3, 4), 1, 2)),
    Case("aten::permute", (T(2, 3, 4), [-1, 0, 1])),
    Case("aten::permute", (T(2, 0, 4), [2, 0, 1])),
    Case("aten::permute", (T(), [])),
    Case("aten::permute_copy", (T(2, 3), [1, 0])),
    Case("aten::expand", (T(2, 1, 4), [5, -1, 3, -1])),
    Case("aten::expand", (T(dtype=BOOL), [2, 3])),
    Case("aten::expand", (T(1, 3), [0, 3]), dynamic=False),
    Case("aten::expand", (T(2, 3), [2, 3])),
    Case("aten::expand_copy", (T(3), [2, 3])),
    Case("aten::expand", (T(3), [2, 3]), {"implicit": True}, dynamic=False),
    Case("aten::squeeze", (T(1, 3, 1),)),
    Case("aten::squeeze", (T(),)),
    Case("aten::squeeze_copy", (T(1, 1),)),
    Case("aten::squeeze.dim", (T(2, 1, 3), -2)),
    Case("aten::squeeze.dim", (T(2, 3), 0)),
    Case("aten::squeeze.dim", (T(), 0)),
    Case("aten::squeeze_copy.dim", (T(1, 2), 0)),
    Case("aten::squeeze.dims", (T(1, 2, 1), [0, -1, 1])),
    Case("aten::squeeze_copy.dims", (T(1, 2, 1), [0])),
    Case("aten::unsqueeze", (T(2, 3), -1)),
    Case("aten::unsqueeze", (T(), 0)),
    Case("aten::unsqueeze_copy", (T(2, 3), 1)),
    Case("aten::unfold", (T(2, 7, 3), 1, 3, 2)),
    Case("aten::unfold", (T(5, dtype=INT64), -1, 5, 1)),
    Case("aten::unfold", (T(), 0, 1, 1)),
    Case("aten::unfold_copy", (T(6, 2), 0, 2, 3)),
]


test_op = table_test(CASES)


def test_one_size_is_left_to_infer() -> None:
    """Neither of the unknown sizes in front of a -1 that the caller wrote is inferred too."""
    x = torch.randn(6, 4, 5)
    function = lambda x: (x + 1).view(x.shape[0] // 2, 2, x.shape[1], -1)  # noqa: E731
    traced = make_fx(function, tracing_mode="symbolic")(x)
    sizes = [n.args[1] for n in traced.graph.nodes if "view" in str(n.target)]
    assert [s[-1] for s in sizes] == [-1]
    for shape in ((6, 4, 5), (2, 3, 7)):
        y = torch.randn(shape)
        torch.testing.assert_close(run(traced, [y], 18)[0], function(y))
