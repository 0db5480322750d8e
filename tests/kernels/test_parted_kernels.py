"""torch's kernels, each parted between the threads of a session."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import onnxruntime
import pytest
import torch

from dort_rewriter.kernels.torch_library import works_alone
from dort_rewriter.runtime.model_files import uses_torch_kernels
from dort_rewriter.runtime.session import create_session
from tests.kernels.test_torch_kernels import FLASH, model_of, run_session

pytestmark = pytest.mark.skipif(
    not works_alone(), reason="this torch was built without MKL: its own threads share the work"
)

TYPES = [torch.float32, torch.bfloat16, torch.float16]
THREADS = [2, 3]


def session(
    name: str,
    types: Sequence[torch.dtype],
    results: Sequence[torch.dtype],
    threads: int,
    **attributes: Any,
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    return create_session(model_of(name, types, results, **attributes), options=options).ort


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def assert_near(got: torch.Tensor, expected: torch.Tensor, terms: int = 0) -> None:
    """The same kernel may add up in another order for fewer rows: sums of 2,000 numbers.

    A sum in float32 of so many terms is off by a rounding of each, near zero too, where one of
    float16 is small: 8e-5 of 2,048 with torch 2.15.
    """
    close: dict[str, float] = {}
    if expected.dtype == torch.float32:
        close = {"rtol": 1e-4, "atol": 1e-3}
    elif expected.dtype == torch.float16:
        close = {"rtol": 1e-3, "atol": max(1e-5, terms * 6e-8)}
    torch.testing.assert_close(got, expected, check_stride=False, **close)


PRODUCTS = [(200, 96, 130), (130, 100, 300), (33, 400, 257), (1, 2048, 2000)]
"""Some are parted by rows, some by columns, the last parts smaller."""


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [(2, 130, 96, 200), (5, 64, 96, 130), (2, 33, 400, 40)])
def test_a_matrix_for_all_batches(
    sizes: tuple[int, ...], dtype: torch.dtype, threads: int
) -> None:
    """Parted by batches, or by rows or columns where these are few."""
    batch, m, k, n = sizes
    a, b = torch.randn(1, m, k).to(dtype), torch.randn(batch, k, n).to(dtype)
    (got,) = run_session(session("bmm", [dtype] * 2, [dtype], threads), a, b)
    assert_near(got, torch.matmul(a, b))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", PRODUCTS)
def test_products(sizes: tuple[int, int, int], dtype: torch.dtype, threads: int) -> None:
    m, k, n = sizes
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    (got,) = run_session(session("mm", [dtype] * 2, [dtype], threads), a, b)
    assert_near(got, a @ b, k)
    turned = session("mm", [dtype] * 2, [dtype], threads, perm0=[1, 0], perm1=[1, 0])
    assert_near(run_session(turned, a.t(), b.t())[0], a @ b, k)
    for shape in ((m, n), (n,), (1, n), (m, 1), ()):
        c = torch.randn(shape).to(dtype)
        made = session("addmm", [dtype] * 3, [dtype], threads, beta=0.5, alpha=2.0)
        added = torch.addmm(c, a, b, beta=0.5, alpha=2.0)
        assert_near(run_session(made, c, a, b)[0], added, 2 * k)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_products_of_batches(batch: int, dtype: torch.dtype, threads: int) -> None:
    for m, k, n in ((200, 64, 150), (40, 64, 800)):
        a, b = torch.randn(batch, m, k).to(dtype), torch.randn(batch, k, n).to(dtype)
        (got,) = run_session(session("bmm", [dtype] * 2, [dtype], threads), a, b)
        assert_near(got, torch.bmm(a, b))
        for shape in ((batch, m, n), (1, m, 1), (m, n), (n,), (batch, 1, 1)):
            c = torch.randn(shape).to(dtype)
            made = session("baddbmm", [dtype] * 3, [dtype], threads, beta=1.0, alpha=0.5)
            assert_near(run_session(made, c, a, b)[0], torch.baddbmm(c, a, b, alpha=0.5))


MASKS: dict[str, Any] = {
    "none": None,
    "of all": (2, 3, 4, 5),
    "of batches": (2, 1, 1, 5),
    "of heads": (1, 3, 4, 5),
    "a matrix": (4, 5),
}


def masked(sizes: tuple[int, ...], dtype: torch.dtype, kind: str) -> dict[str, torch.Tensor]:
    """A mask for a batch, heads, queries and keys; the numbers in a shape say which of them."""
    shape = MASKS[kind]
    if shape is None:
        return {}
    known = {2: sizes[0], 3: sizes[1], 4: sizes[2], 5: sizes[3], 1: 1}
    return {"attn_mask": torch.randn([known[d] for d in shape]).to(dtype)}


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", [1, 2, 3])
def test_attention(batch: int, mask: str, dtype: torch.dtype, threads: int) -> None:
    """Forward and backward, by batches or heads; what it gives lies in another order."""
    q = torch.randn(batch, 6, 70, 16).to(dtype)
    k, v = (torch.randn(batch, 6, 90, 16).to(dtype) for _ in range(2))
    given = masked((batch, 6, 70, 90), dtype, mask)
    out, sums = getattr(torch.ops.aten, FLASH)(q, k, v, 0.0, False, **given)
    types = [dtype] * (3 + len(given))
    order = {"order0": [0, 2, 1, 3]}
    made = session(FLASH, types, [dtype, torch.float32], threads, is_causal=0, **order)
    got = run_session(made, q, k, v, *given.values())
    assert_near(got[0].transpose(1, 2), out)
    assert_near(got[1], sums)
    read = (torch.randn(out.shape).to(dtype), q, k, v, out, sums)
    expected = getattr(torch.ops.aten, f"{FLASH}_backward")(*read, 0.0, False, **given)
    types = [t.dtype for t in (*read, *given.values())]
    made = session(f"{FLASH}_backward", types, [dtype] * 3, threads, is_causal=0)
    for a, b in zip(run_session(made, *read, *given.values()), expected, strict=True):
        assert_near(a, b)


def test_heads_in_groups() -> None:
    """A part of the heads of keys, and those of queries that share them."""
    q = torch.randn(1, 6, 70, 16)
    k, v = (torch.randn(1, 3, 90, 16) for _ in range(2))
    wide = [t.repeat_interleave(2, 1) for t in (k, v)]
    expected, sums = getattr(torch.ops.aten, FLASH)(q, *wide)
    if not torch.allclose(getattr(torch.ops.aten, FLASH)(q, k, v)[0], expected, atol=1e-5):
        pytest.skip("the kernel of this torch takes no groups")
    made = session(FLASH, [torch.float32] * 3, [torch.float32] * 2, 3, is_causal=0)
    got = run_session(made, q, k, v)
    assert_near(got[0], expected)
    assert_near(got[1], sums)


def test_several_callers_at_once() -> None:
    """torch's number of threads is left alone, in each of them."""
    made = session("mm", [torch.bfloat16] * 2, [torch.bfloat16], 2)
    a, b = torch.randn(300, 200).bfloat16(), torch.randn(200, 300).bfloat16()

    def call(_: int) -> tuple[torch.Tensor, int]:
        (result,) = run_session(made, a, b)
        return result, torch.get_num_threads()

    with ThreadPoolExecutor(3) as callers:
        results = list(callers.map(call, range(12)))
    assert all(torch.equal(r, results[0][0]) for r, _ in results)
    assert {threads for _, threads in results} == {torch.get_num_threads()}


def test_a_session_keeps_its_own_threads() -> None:
    """They spin as those of others do, and torch's are ended before a run."""
    types = [torch.bfloat16] * 2
    model = model_of("mm", types, types[:1])
    assert not uses_torch_kernels(model)
    assert not create_session(model).beside_torch
