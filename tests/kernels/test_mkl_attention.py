"""The gradient of attention by MKL's products, in the threads of a session."""

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
from dort_rewriter.kernels.operators import MKL_ATTENTION_GRAD
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.runtime.session import create_session
from tests.kernels.test_torch_kernels import FLASH, model_of, run_session

pytestmark = pytest.mark.skipif(
    not all(map(has_function, ("sgemm_", "gemm_bf16bf16f32_", "MKL_Set_Num_Threads_Local"))),
    reason="this torch was built without MKL",
)

KINDS: dict[str, tuple[torch.dtype, dict[str, Any]]] = {
    "float32": (torch.float32, {}),
    "float16, widened": (torch.float16, {}),
    "bfloat16, widened": (torch.bfloat16, {}),
    "bfloat16": (torch.bfloat16, {"of_bfloat16": 1}),
}
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
    types: list[torch.dtype], results: int = 3, threads: int = 1, **attributes: Any
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    model = model_of(MKL_ATTENTION_GRAD, types, types[:1] * results, **attributes)
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


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_gradients(sizes: tuple[int, ...], kind: str, causal: bool, threads: int) -> None:
    dtype, how = KINDS[kind]
    read, exact = made(sizes, dtype, causal)
    run = session([t.dtype for t in read], threads=threads, is_causal=int(causal), **how)
    assert_near(run_session(run, *read), exact)


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_no_further_from_float64_than_those_of_torch(kind: str) -> None:
    dtype, how = KINDS[kind]
    read, exact = made((2, 3, 3, 200, 300, 32), dtype, False)
    got = run_session(session([t.dtype for t in read], **how), *read)
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
    dtype, how = KINDS[kind]
    for of_mask in {dtype, torch.float32}:
        added = torch.randn(MASKS[mask]).to(of_mask)
        added[added < -0.5] = -math.inf
        added[..., :1, :] = -math.inf
        if MASKS[mask][-2] == 1:
            added[...] = torch.randn(added.shape).to(of_mask)
        read, exact = made((2, 4, 4, 90, 300, 16), dtype, False, added)
        got = run_session(session([t.dtype for t in (*read, added)], **how), *read, added)
        assert_near(got, exact)


@pytest.mark.parametrize("kind", KINDS)
def test_heads_lie_in_any_order(kind: str) -> None:
    """Beside each other, as products give them; so do results, and the sums and a mask."""
    dtype, how = KINDS[kind]
    added = torch.randn(2, 4, 30, 40).to(dtype)
    read, exact = made((2, 4, 4, 30, 40, 16), dtype, True, added)
    turned = [t.transpose(1, 2).contiguous() for t in read[:5]]
    turned += [read[5].permute(2, 0, 1).contiguous(), added.permute(3, 2, 1, 0).contiguous()]
    orders: dict[str, Any] = {f"perm{i}": [0, 2, 1, 3] for i in range(5)}
    orders |= {"perm5": [1, 2, 0], "perm6": [3, 2, 1, 0]}
    orders |= {"order0": [0, 2, 1, 3], "order1": [2, 0, 3, 1], "order2": [3, 1, 2, 0]}
    run = session([t.dtype for t in turned], is_causal=1, **orders, **how)
    got = run_session(run, *turned)
    back = got[0].transpose(1, 2), got[1].permute(1, 3, 0, 2), got[2].permute(3, 1, 2, 0)
    assert_near(back, exact)


def test_a_scale_that_is_given() -> None:
    q, k, v = (torch.randn(2, 3, 20, 8) for _ in range(3))
    out, sums = getattr(torch.ops.aten, FLASH)(q, k, v, 0.0, False, scale=0.7)
    read = (torch.randn_like(out), q, k, v, out, sums)
    expected = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, False, scale=0.7)
    got = run_session(session([torch.float32] * 6, scale=0.7), *read)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("results", [1, 2])
def test_results_that_nobody_reads(results: int) -> None:
    read, exact = made(SIZES[0], torch.float32, False)
    got = run_session(session([torch.float32] * 6, results), *read)
    assert_near(got, exact[:results])


def test_numbers_that_are_none_stay() -> None:
    """In the gradient of the query that has them, and of all keys that it sees."""
    read, _ = made(SIZES[2], torch.float32, True)
    read[0][0, 1, 140] = math.nan
    got = run_session(session([torch.float32] * 6, is_causal=1), *read)
    expected = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, True)
    assert got[0][0, 1, 140].isnan().all()
    assert got[0].isnan().sum() == 24
    assert torch.equal(got[0].isnan(), expected[0].isnan())
    for a in got[1:]:
        assert a[0, 1, :141].isnan().all()
        assert not a[0, [0, 2]].isnan().any()


def test_several_callers_at_once() -> None:
    read, exact = made(SIZES[2], torch.bfloat16, False)
    run, threads = session([t.dtype for t in read], threads=2, of_bfloat16=1), 12
    with ThreadPoolExecutor(3) as callers:
        results = list(callers.map(lambda _: run_session(run, *read), range(threads)))
    for got in results:
        assert_near(got, exact)
        assert all(map(torch.equal, got, results[0]))


BAD_NODES: dict[str, tuple[list[torch.dtype], dict[str, Any]]] = {
    "no sums": ([torch.float32] * 5, {}),
    "two masks": ([torch.float32] * 8, {}),
    "four results": ([torch.float32] * 6, {"results": 4}),
    "float64": ([torch.float64] * 6, {}),
    "sums of halves": ([torch.bfloat16] * 6, {}),
    "factors of another type": ([torch.float32] * 6, {"of_bfloat16": 1}),
    "no flag": ([torch.float32] * 6, {"of_bfloat16": 2}),
    "an order of numbers": ([torch.float32] * 6, {"perm1": [0, 1, 3, 2]}),
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_a_node_that_nobody_wrote_is_refused(case: str) -> None:
    """When its kernel is made."""
    types, how = BAD_NODES[case]
    with pytest.raises(ExecutionError):
        session(types, **how)


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
    run = session([torch.float32] * len(shapes))
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
