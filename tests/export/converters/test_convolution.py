from __future__ import annotations

import itertools
from typing import Any

import torch

from tests.export.cases import Case, T, table_test


def _conv(
    sizes: tuple[int, ...],
    kernel: tuple[int, ...],
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    output_padding: int = 0,
    groups: int = 1,
    bias: bool = False,
    **options: Any,
) -> list[Case]:
    """The rows of a convolution and of its gradients."""
    n = len(kernel)
    ins, outs = 4, 6
    x = T(2, ins, *sizes)
    w = T(ins, outs // groups, *kernel) if transposed else T(outs, ins // groups, *kernel)
    b = T(outs) if bias else None
    tail = ([stride] * n, [padding] * n, [dilation] * n, transposed, [output_padding] * n, groups)
    g = torch.ops.aten.convolution(x, w, b, *tail)
    gradient = T(*g.shape)
    options = {"atol": 1e-4, "reason": "sums of up to hundreds of products", **options}
    mask = [True, True, bias]
    return [
        Case("aten::convolution", (x, w, b, *tail), **options),
        Case(
            "aten::convolution_backward",
            (gradient, x, w, [outs] if bias else None, *tail, mask),
            # A row's kernel would be symbolic too; the backend's tests train one of known size.
            **{**options, "dynamic": False},
        ),
    ]


CASES = [
    *_conv((7,), (3,), stride=2, padding=1, bias=True),
    *_conv((6, 7), (3, 2), padding=1, bias=True),
    *_conv((4, 5, 4), (2, 3, 2), stride=2, padding=1, dynamic=False),
    *_conv((6, 6), (1, 1)),
    *_conv((6, 6), (1, 1), stride=2),
    *_conv((6, 9), (3, 3), stride=3, groups=2, bias=True),  # patches of an image
    *_conv((7, 9), (3, 3), stride=3),
    *_conv((4, 6, 4), (2, 2, 2), stride=2),
    *_conv((4, 6), (2, 2), stride=2, transposed=True),
    *(
        case
        for stride, padding, dilation, groups in itertools.product((1, 2), (0, 2), (1, 2), (1, 2))
        for case in _conv(
            (7, 8),
            (3, 3),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
    ),
    *_conv((5, 4), (3, 2), transposed=True, bias=True),
    *_conv((5, 4), (3, 2), transposed=True, stride=2, padding=1, output_padding=1, groups=2),
    *_conv((5,), (3,), transposed=True, stride=3, output_padding=2),
    *(  # more rows behind than a stride
        case
        for padding in (0, 1, 3)
        for case in _conv(
            (5, 4),
            (3, 2),
            transposed=True,
            stride=2,
            padding=padding,
            dilation=4,
            output_padding=3,
            bias=True,
        )
    ),
]


test_op = table_test(CASES)
