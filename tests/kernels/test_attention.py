"""Attention by products of our own; its gradient by those, and by MKL's."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import onnxruntime
import pytest
import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels import torch_library
from dort_rewriter.kernels.operators import ATTENTION, ATTENTION_GRAD, MKL_ATTENTION_GRAD
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.runtime.session import create_session
from tests.kernels.test_torch_kernels import FLASH, model_of, run_session

TYPES = [torch.float32, torch.float16, torch.bfloat16]
HAS_MKL = all(map(has_function, ("sgemm_", "gemm_bf16bf16f32_", "MKL_Set_Num_Threads_Local")))
KINDS: dict[str, tuple[str, torch.dtype]] = {
    **{str(dtype): (ATTENTION_GRAD, dtype) for dtype in TYPES},
    **({"by MKL": (MKL_ATTENTION_GRAD, torch.bfloat16)} if HAS_MKL else {}),
}
"""Of gradients. There is a torch without MKL."""
SIZES = [
    (2, 4, 4, 9, 13, 8),  # batch, heads, heads of keys, queries, keys, width
    (1, 2, 2, 1, 1, 16),
    (1, 3, 3, 150, 300, 24),
    (2, 2, 2, 300, 150, 8),
    (1, 6, 2, 70, 90, 16),
    (3, 4, 1, 33, 40, 8),
]
"""Some are several blocks of queries, of keys, or both, the last ones smaller."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def session(
    op: str,
    types: list[torch.dtype],
    results: int = 3,
    threads: int = 1,
    **attributes: Any,
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    made = types[:1] * results if op != ATTENTION else [types[0], torch.float32][:results]
    model = model_of(op, types, made, **attributes)
    return create_session(model, options=options).ort


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result, and the logarithm of the sums of exponentials, as torch defines them."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + mask
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    sees_none = (scores == -math.inf).all(-1, keepdim=True)
    shares = scores.masked_fill(sees_none, 0).softmax(-1).masked_fill(sees_none, 0)
    return shares @ v, scores.logsumexp(-1).masked_fill(sees_none.squeeze(-1), 0)


def made(
    sizes: tuple[int, ...], dtype: torch.dtype, causal: bool, mask: torch.Tensor | None = None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the gradient reads, and the gradients in float64."""
    batch, heads, groups, queries, keys, width = sizes
    shapes = (heads, queries), (groups, keys), (groups, keys)
    given = [torch.randn(batch, n, length, width).to(dtype) for n, length in shapes]
    exact = [t.double().requires_grad_() for t in given]
    out, sums = attend(*exact, None if mask is None else mask.double(), causal)
    grad = torch.randn(out.shape).to(dtype)
    gradients = torch.autograd.grad(out, exact, grad.double())
    return [grad, *given, out.detach().to(dtype), sums.detach().float()], list(gradients)


def assert_near(got: tuple[torch.Tensor, ...], exact: list[torch.Tensor]) -> None:
    """Within what factors that are rounded to a type can give."""
    for a, b in zip(got, exact, strict=True):
        epsilon = torch.finfo(a.dtype).eps
        close = {"rtol": 8 * epsilon, "atol": 8 * epsilon * max(1.0, float(b.abs().max()))}
        torch.testing.assert_close(a.double(), b, **close)


FORWARD_SIZES = [
    *SIZES,
    (1, 1, 1, 1, 1, 1),
    (2, 3, 3, 5, 3, 7),  # no vector is full
    (1, 2, 2, 4, 400, 16),  # the last vector of keys joins the block before
    (1, 1, 1, 800, 1300, 8),
]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", FORWARD_SIZES)
def test_results(sizes: tuple[int, ...], dtype: torch.dtype, causal: bool, threads: int) -> None:
    batch, heads, groups, queries, keys, width = sizes
    shapes = (heads, queries), (groups, keys), (groups, keys)
    read = [torch.randn(batch, n, length, width).to(dtype) for n, length in shapes]
    run = session(ATTENTION, [dtype] * 3, 2, threads, is_causal=int(causal))
    got = run_session(run, *read)
    assert_near(got, list(attend(*(t.double() for t in read), None, causal)))


@pytest.mark.parametrize("dtype", TYPES)
def test_what_it_reads_and_gives_lies_in_any_order(dtype: torch.dtype) -> None:
    added = torch.randn(2, 4, 30, 40).to(dtype)
    read = [torch.randn(2, 4, n, 16).to(dtype) for n in (30, 40, 40)]
    turned = [t.transpose(1, 2).contiguous() for t in read]
    turned.append(added.permute(3, 2, 1, 0).contiguous())
    orders: dict[str, Any] = {f"perm{i}": [0, 2, 1, 3] for i in range(3)}
    orders |= {"perm3": [3, 2, 1, 0], "order0": [2, 3, 0, 1], "order1": [1, 2, 0]}
    run = session(ATTENTION, [dtype] * 4, 2, is_causal=1, **orders)
    out, sums = run_session(run, *turned)
    exact = attend(*(t.double() for t in read), added.double(), True)
    assert_near((out.permute(2, 3, 0, 1), sums.permute(2, 0, 1)), list(exact))


SPECIAL = [math.inf, -math.inf, math.nan, -0.0, 1e30, 3e38]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 40, 200, 800])
@pytest.mark.parametrize("place", ["query", "key", "value", "mask"])
def test_numbers_that_are_not_finite(place: str, queries: int, causal: bool) -> None:
    """They are where torch's kernel has them: in rows whose block of queries sees them."""
    for number in SPECIAL:
        q, k, v = (torch.randn(1, 2, n, 8) for n in (queries, 420, 420))
        mask = torch.zeros(1, 1, queries, 420)
        of = {"query": q, "key": k, "value": v, "mask": mask}[place]
        of.view(-1)[torch.randint(0, of.numel(), (3,))] = number
        given = [q, k, v, *([mask] if place == "mask" else [])]
        expected = getattr(torch.ops.aten, FLASH)(
            q, k, v, 0.0, causal, attn_mask=mask if place == "mask" else None
        )
        run = session(ATTENTION, [torch.float32] * len(given), 2, is_causal=int(causal))
        for a, b in zip(run_session(run, *given), expected, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries", [1, 40, 200, 800])
@pytest.mark.parametrize("place", ["gradient", "query", "key", "value"])
def test_gradients_of_numbers_that_are_not_finite(place: str, queries: int, causal: bool) -> None:
    """The same. Huge numbers are left out: with one rounding more exponentials are infinite."""
    for number in (math.inf, -math.inf, math.nan, -0.0):
        q, k, v = (torch.randn(1, 2, n, 8) for n in (queries, 420, 420))
        grad = torch.randn(q.shape)
        of = {"gradient": grad, "query": q, "key": k, "value": v}[place]
        of.view(-1)[torch.randint(0, of.numel(), (2,))] = number
        out, sums = getattr(torch.ops.aten, FLASH)(q, k, v, 0.0, causal)
        read = (grad, q, k, v, out, sums)
        expected = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, causal)
        run = session(ATTENTION_GRAD, [torch.float32] * 6, is_causal=int(causal))
        for a, b in zip(run_session(run, *read), expected, strict=True):
            torch.testing.assert_close(a, b, equal_nan=True, rtol=1e-4, atol=1e-5)


def test_queries_that_see_nothing() -> None:
    """Zeros, and zero as the sum."""
    q, k, v = (torch.randn(2, 3, 40, 8) for _ in range(3))
    mask = torch.zeros(40, 40)
    mask[7] = mask[33] = -math.inf
    run = session(ATTENTION, [torch.float32] * 4, 2)
    out, sums = run_session(run, q, k, v, mask)
    expected = getattr(torch.ops.aten, FLASH)(q, k, v, 0.0, False, attn_mask=mask)
    torch.testing.assert_close((out, sums), tuple(expected))
    assert (out[:, :, [7, 33]] == 0).all()
    assert (sums[:, :, [7, 33]] == 0).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_gradients(sizes: tuple[int, ...], kind: str, causal: bool, threads: int) -> None:
    op, dtype = KINDS[kind]
    read, exact = made(sizes, dtype, causal)
    run = session(op, [t.dtype for t in read], threads=threads, is_causal=int(causal))
    assert_near(run_session(run, *read), exact)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_no_further_from_float64_than_those_of_torch(kind: str) -> None:
    op, dtype = KINDS[kind]
    read, exact = made((2, 3, 3, 200, 300, 32), dtype, False)
    got = run_session(session(op, [t.dtype for t in read]), *read)
    theirs = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, False)
    for a, b, c in zip(got, theirs, exact, strict=True):
        assert (a - c).norm() <= 1.2 * (b - c).norm()


MASKS: dict[str, tuple[int, ...]] = {
    "of all": (2, 4, 90, 300),
    "of batches": (2, 1, 1, 300),
    "of heads": (1, 4, 90, 300),
    "of queries": (1, 1, 90, 1),
    "a matrix": (90, 300),
    "a row": (1, 300),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str, kind: str) -> None:
    """Of the type of the heads, or floats; a query that sees nothing has no gradient."""
    op, dtype = KINDS[kind]
    for of_mask in {dtype, torch.float32}:
        added = torch.randn(MASKS[mask]).to(of_mask)
        added[added < -0.5] = -math.inf
        added[..., :1, :] = -math.inf
        if MASKS[mask][-2] == 1:
            added[...] = torch.randn(added.shape).to(of_mask)
        read, exact = made((2, 4, 4, 90, 300, 16), dtype, False, added)
        got = run_session(session(op, [t.dtype for t in (*read, added)]), *read, added)
        assert_near(got, exact)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_lie_in_any_order(kind: str) -> None:
    """Beside each other, as products give them; so do results, and the sums and a mask."""
    op, dtype = KINDS[kind]
    added = torch.randn(2, 4, 30, 40).to(dtype)
    read, exact = made((2, 4, 4, 30, 40, 16), dtype, True, added)
    turned = [t.transpose(1, 2).contiguous() for t in read[:5]]
    turned += [read[5].permute(2, 0, 1).contiguous(), added.permute(3, 2, 1, 0).contiguous()]
    orders: dict[str, Any] = {f"perm{i}": [0, 2, 1, 3] for i in range(5)}
    orders |= {"perm5": [1, 2, 0], "perm6": [3, 2, 1, 0]}
    orders |= {"order0": [0, 2, 1, 3], "order1": [2, 0, 3, 1], "order2": [3, 1, 2, 0]}
    run = session(op, [t.dtype for t in turned], is_causal=1, **orders)
    got = run_session(run, *turned)
    back = got[0].transpose(1, 2), got[1].permute(1, 3, 0, 2), got[2].permute(3, 1, 2, 0)
    assert_near(back, exact)


def test_a_scale_that_is_given() -> None:
    op = ATTENTION_GRAD
    q, k, v = (torch.randn(2, 3, 20, 8) for _ in range(3))
    out, sums = getattr(torch.ops.aten, FLASH)(q, k, v, 0.0, False, scale=0.7)
    read = (torch.randn_like(out), q, k, v, out, sums)
    expected = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, False, scale=0.7)
    got = run_session(session(op, [torch.float32] * 6, scale=0.7), *read)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("results", [1, 2])
def test_results_that_nobody_reads(results: int) -> None:
    op = ATTENTION_GRAD
    read, exact = made(SIZES[0], torch.float32, False)
    got = run_session(session(op, [torch.float32] * 6, results), *read)
    assert_near(got, exact[:results])


def test_numbers_that_are_none_stay() -> None:
    """In the gradient of the query that has them, and of all keys that it sees."""
    op = ATTENTION_GRAD
    read, _ = made(SIZES[2], torch.float32, True)
    read[0][0, 1, 140] = math.nan
    got = run_session(session(op, [torch.float32] * 6, is_causal=1), *read)
    expected = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, True)
    assert got[0][0, 1, 140].isnan().all()
    assert got[0].isnan().sum() == 24
    assert torch.equal(got[0].isnan(), expected[0].isnan())
    for a in got[1:]:
        assert a[0, 1, :141].isnan().all()
        assert not a[0, [0, 2]].isnan().any()


@pytest.mark.parametrize("kind", KINDS)
def test_several_callers_at_once(kind: str) -> None:
    op, dtype = KINDS[kind]
    read, exact = made(SIZES[2], dtype, False)
    run, threads = session(op, [t.dtype for t in read], threads=2), 12
    with ThreadPoolExecutor(3) as callers:
        results = list(callers.map(lambda _: run_session(run, *read), range(threads)))
    for got in results:
        assert_near(got, exact)
        assert all(map(torch.equal, got, results[0]))


BAD_NODES: dict[str, tuple[str, list[torch.dtype], dict[str, Any]]] = {
    "no sums": (ATTENTION_GRAD, [torch.float32] * 5, {}),
    "two masks": (ATTENTION_GRAD, [torch.float32] * 8, {}),
    "four results": (ATTENTION_GRAD, [torch.float32] * 6, {"results": 4}),
    "float64": (ATTENTION_GRAD, [torch.float64] * 6, {}),
    "sums of halves": (ATTENTION_GRAD, [torch.bfloat16] * 6, {}),
    "factors of another type": (MKL_ATTENTION_GRAD, [torch.float32] * 6, {}),
    "no flag": (ATTENTION_GRAD, [torch.float32] * 6, {"is_causal": 2}),
    "an order of numbers": (ATTENTION_GRAD, [torch.float32] * 6, {"perm1": [0, 1, 3, 2]}),
    "no values": (ATTENTION, [torch.float32] * 2, {"results": 2}),
    "a query of another type": (
        ATTENTION,
        [torch.float16, torch.float32, torch.float32],
        {"results": 2},
    ),
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_a_node_that_nobody_wrote_is_refused(case: str) -> None:
    """When its kernel is made."""
    op, types, how = BAD_NODES[case]
    with pytest.raises(ExecutionError):
        session(op, types, **how)


BAD_SIZES: dict[str, dict[int, tuple[int, ...]]] = {
    "other heads": {1: (2, 3, 4, 8)},
    "other batches": {2: (1, 2, 5, 8)},
    "other widths": {2: (2, 2, 5, 4), 3: (2, 2, 5, 4)},
    "fewer values": {3: (2, 2, 4, 8)},
    "three axes": {1: (2, 4, 8)},
    "no keys": {2: (2, 2, 0, 8), 3: (2, 2, 0, 8)},
    "another gradient": {0: (2, 2, 3, 8)},
    "another result": {4: (2, 2, 4, 7)},
    "fewer sums": {5: (2, 2, 3)},
    "another mask": {6: (4, 4)},
}


@pytest.mark.parametrize("case", BAD_SIZES)
def test_sizes_that_do_not_fit_are_refused(case: str) -> None:
    """Before any memory is read."""
    usual = [(2, 2, 4, 8), (2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 4, 8), (2, 2, 4)]
    shapes = dict(enumerate(usual)) | BAD_SIZES[case]
    run = session(ATTENTION_GRAD, [torch.float32] * len(shapes))
    with pytest.raises(Exception, match=r"attention is of|do not fit|nothing to attend|mask does"):
        run_session(run, *(torch.randn(shapes[i]) for i in range(len(shapes))))


def test_who_multiplies_bfloat16_is_asked_of_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = torch_library.multiplies_bfloat16.__wrapped__
    for has, knows in itertools.product((False, True), repeat=2):
        found = frozenset({"amx_bf16"} if has else {"avx512f"})
        monkeypatch.setattr(torch_library, "features", lambda found=found: found)
        monkeypatch.setattr(torch_library, "has_function", lambda name, knows=knows: knows)
        assert ask() is (has and knows)
