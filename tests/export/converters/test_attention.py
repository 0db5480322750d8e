from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.export.dispatcher import Dispatcher
from tests.export.cases import Case, T, check, overload, table_test

FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def qkv(
    queries: int = 3,
    keys: int = 5,
    heads: int = 2,
    groups: int = 2,
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        T(2, heads, queries, 8, dtype=dtype),
        T(2, groups, keys, 8, dtype=dtype),
        T(2, groups, keys, 8, dtype=dtype) + 1,
    )


def mask(*shape: int) -> torch.Tensor:
    """A float mask: numbers, some masked positions, and a row where all are."""
    values = T(*shape)
    values[values < -0.5] = -math.inf
    values[..., 1, :] = -math.inf
    return values


def not_finite(
    place: int, number: float = math.nan, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values, one of them with such a number in the row that is masked."""
    inputs = tuple(x.clone() for x in qkv(dtype=dtype))
    inputs[place][1, 0, 1, 2] = number
    return inputs


def flash_backward(
    inputs: tuple[torch.Tensor, ...], is_causal: bool = False, **kwargs: Any
) -> tuple[Any, ...]:
    out, lse = overload(FLASH)(*inputs, 0.0, is_causal, **kwargs)
    return T(*out.shape).to(out.dtype), *inputs, out, lse, 0.0, is_causal


def row(inputs: tuple[torch.Tensor, ...], is_causal: bool = False, **kwargs: Any) -> list[Case]:
    """Forward and backward of torch's CPU kernel."""
    loose: dict[str, Any] = {}
    if inputs[0].dtype is torch.float16:
        loose = {"atol": 4e-3, "reason": "torch rounds probabilities to half"}
    is_double = inputs[0].dtype is torch.float64
    output = {"outputs": (0,), "reason": "torch 2.8 announces float32"} if is_double else {}
    arguments = flash_backward(inputs, is_causal, **kwargs)
    return [
        Case(FLASH, (*inputs, 0.0, is_causal), kwargs, **loose, **output),
        Case(f"{FLASH}_backward", arguments, kwargs, **loose),
    ]


# CUDA's operators have no kernel on CPU: they are compared with what the CPU has instead.


def each_head(x: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(query.shape[1] // x.shape[1], 1)


def cuda_forward(
    last: Any, *args: Any, causal: int, bias: int | None = None, scale: float | None = None
) -> list[Any]:
    """What the CPU kernel gives: the output, and the logsumexp as `last` makes it."""
    mask = None if bias is None else args[bias]
    query, *shared = args[:3]
    inputs = (query, *(each_head(x, query) for x in shared))
    out, lse = overload(FLASH)(*inputs, 0.0, args[causal], attn_mask=mask, scale=scale)
    return [out, last(lse)]


@torch.enable_grad()
def cuda_backward(
    *args: Any, causal: int, bias: int | None = None, scale: float | None = None
) -> list[Any]:
    """The gradients by autograd of the plain formula, of the bias too."""
    mask = None if bias is None else args[bias]
    inputs = [x.clone().requires_grad_() for x in (*args[1:4], *([] if mask is None else [mask]))]
    query, key, value = inputs[:3]
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    key, value = each_head(key, query), each_head(value, query)
    scores = query @ key.mT * factor + (inputs[3] if mask is not None else 0)
    if args[causal]:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    (scores.softmax(-1) @ value).backward(args[0])
    return [x.grad for x in inputs]


def cuda_backward_args(
    inputs: tuple[torch.Tensor, ...], causal: bool, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    grad, *_, out, lse, _, _ = flash_backward(inputs, causal, attn_mask=bias)
    return grad, *inputs, out, lse


def padded(lse: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32))


GROUPS_ON_CPU = Version(torch.__version__) >= Version("2.9")
"""Before, torch never called its CPU kernel with fewer heads of keys: it read past their end."""


def column(lse: torch.Tensor) -> torch.Tensor:
    """The shape that torch announces for cuDNN."""
    return lse[..., None] if Version(torch.__version__) >= Version("2.9") else lse


FLASH_CUDA = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"
CUDNN = "aten::_scaled_dot_product_cudnn_attention"
RANDOM = torch.zeros((), dtype=torch.int64)
BIAS = T(2, 2, 3, 5)
WIDE_BIAS = T(1, 2, 1, 5)
GROUPED = qkv(heads=4)
BACK = cuda_backward_args(qkv(), False)
CAUSAL_BACK = cuda_backward_args(qkv(5, 3), True)
GROUPED_BACK = cuda_backward_args(
    (GROUPED[0], *(each_head(x, GROUPED[0]) for x in GROUPED[1:])), True
)
GROUPED_BACK = (GROUPED_BACK[0], *GROUPED, *GROUPED_BACK[4:])
BIAS_BACK = cuda_backward_args(qkv(), False, BIAS)
WIDE_BIAS_BACK = cuda_backward_args(qkv(), False, WIDE_BIAS)


def _efficient_backward(
    args: tuple[torch.Tensor, ...], bias: torch.Tensor | None, causal: bool
) -> Case:
    *inputs, out, lse = args
    mask = [True, True, True, bias is not None]
    return Case(
        f"{EFFICIENT}_backward",
        (*inputs, bias, out, padded(lse), RANDOM, RANDOM, 0.0, mask, causal),
        reference=functools.partial(cuda_backward, causal=11, bias=None if bias is None else 4),
        outputs=(0, 1, 2) if bias is None else None,
        reason="the kernel leaves the gradient of a bias that is none to torch",
    )


def _forward_case(op: str, args: tuple[Any, ...], **where: Any) -> Case:
    shapes = {EFFICIENT: padded, CUDNN: column, FLASH_CUDA: lambda lse: lse}
    scale = {"scale": where.pop("scale")} if "scale" in where else {}
    return Case(
        op,
        args,
        scale,
        reference=functools.partial(cuda_forward, shapes[op], **where),
        outputs=(0, 1),
        reason="the other results serve dropout only",
    )


DOUBLE = cuda_backward_args(qkv(5, 3, dtype=torch.float64), True)
SINGLE_LOG_SUM = Case(
    f"{FLASH}_backward",
    (*DOUBLE[:5], DOUBLE[5].float(), 0.0, True),
    reference=functools.partial(cuda_backward, causal=7),
)

WHOLE = "aten::scaled_dot_product_attention"

CASES = [
    Case(WHOLE, qkv(5, 5, 4, 2), {"is_causal": True, "enable_gqa": True}, pre_dispatch=True),
    Case(WHOLE, (*qkv(), mask(3, 5)), {"scale": 0.3}, pre_dispatch=True),
    *row(qkv()),
    *row(qkv(5, 3), is_causal=True),
    *row(qkv(3, 5), is_causal=True, scale=0.3),
    *row(qkv(dtype=torch.float64), is_causal=True),
    SINGLE_LOG_SUM,
    *row(qkv(dtype=torch.float16)),
    *(row(GROUPED, is_causal=True) if GROUPS_ON_CPU else []),
    *row(qkv(), attn_mask=mask(2, 2, 3, 5)),
    *row(qkv(), attn_mask=mask(3, 5)),
    *row(qkv(), attn_mask=mask(2, 1, 3, 5)),
    *(case for place in range(3) for case in row(not_finite(place), attn_mask=mask(3, 5))),
    *row(not_finite(1, dtype=torch.float64), attn_mask=mask(3, 5).double()),
    *row(not_finite(2, math.inf), attn_mask=mask(2, 1, 3, 5)),
    _forward_case(FLASH_CUDA, (*qkv(), 0.0, False, False), causal=4),
    _forward_case(FLASH_CUDA, (*GROUPED, 0.0, True, False), causal=4, scale=0.2),
    _forward_case(EFFICIENT, (*qkv(), None, True, 0.0, False), causal=6),
    _forward_case(EFFICIENT, (*qkv(40, 5), WIDE_BIAS, True, 0.0, False), causal=6, bias=3),
    _forward_case(EFFICIENT, (*qkv(32, 5), None, True, 0.0, True), causal=6),
    _forward_case(CUDNN, (*qkv(), None, True, 0.0, True, False), causal=6),
    _forward_case(CUDNN, (*qkv(), BIAS, True, 0.0, False, False), causal=6, bias=3, scale=0.2),
    Case(
        f"{FLASH_CUDA}_backward",
        (*BACK, None, None, 3, 5, 0.0, False, RANDOM, RANDOM),
        reference=functools.partial(cuda_backward, causal=11),
    ),
    Case(
        f"{FLASH_CUDA}_backward",
        (*GROUPED_BACK, None, None, 3, 5, 0.0, True, RANDOM, RANDOM),
        reference=functools.partial(cuda_backward, causal=11),
    ),
    _efficient_backward(BACK, None, False),
    _efficient_backward(CAUSAL_BACK, None, True),
    _efficient_backward(BIAS_BACK, BIAS, False),
    _efficient_backward(WIDE_BIAS_BACK, WIDE_BIAS, False),
    Case(
        f"{CUDNN}_backward",
        (*BACK[:5], BACK[5][..., None], RANDOM, RANDOM, None, None, None, 3, 5, 0.0, False),
        reference=functools.partial(cuda_backward, causal=14),
    ),
]


test_op = table_test(CASES)


def test_the_length_of_queries_and_keys_is_returned() -> None:
    case = _forward_case(FLASH_CUDA, (*qkv(), 0.0, False, False), causal=4)

    def expected(*args: Any) -> list[Any]:
        out, lse = cuda_forward(lambda x: x, *args, causal=4)
        return [out, lse, None, None, 3, 5]

    check(dataclasses.replace(case, reference=expected, outputs=(0, 1, 2, 3, 4, 5)), dynamic=True)


@pytest.mark.parametrize("probability", [0.0, 0.5])
def test_dropout_stays_in_torch(probability: float) -> None:
    def attention(*inputs: torch.Tensor) -> torch.Tensor:
        return overload(FLASH)(*inputs, probability)[0]

    graph = make_fx(attention, tracing_mode="fake")(*qkv()).graph
    node = next(n for n in graph.nodes if n.target is overload(FLASH))
    refusal = Dispatcher().refusal(node)
    assert (refusal is None) == (probability == 0), refusal
