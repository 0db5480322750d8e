"""Products of float32 by MKL, in the threads of a session."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels import torch_library
from dort_rewriter.kernels.operators import MKL_PRODUCT, OWN_DOMAIN
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.runtime.session import Session, create_session
from tests.kernels.test_torch_kernels import model_of, run_session

pytestmark = pytest.mark.skipif(
    not (has_function("sgemm_") and has_function("MKL_Set_Num_Threads_Local")),
    reason="this torch was built without MKL",
)

Array = np.ndarray[Any, np.dtype[np.float32]]


def session(
    inputs: int = 2, threads: int = 1, dtype: int = TensorProto.FLOAT, **attributes: Any
) -> Session:
    """A session of one product, whose sizes are known when it runs."""
    names = ["a", "b", "c", "d"][:inputs]
    node = helper.make_node(MKL_PRODUCT, names, ["y"], domain=OWN_DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info(n, dtype, None) for n in names],
        [helper.make_tensor_value_info("y", dtype, None)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(OWN_DOMAIN, 1)]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return create_session(model, options=options)


def product(*given: Array, threads: int = 1, **attributes: Any) -> Array:
    """What is multiplied, and what is added, if anything."""
    made = session(len(given), threads, **attributes)
    result: Array = made.ort.run(None, dict(zip("abcd", given, strict=False)))[0]
    return result


def random(*sizes: int) -> Array:
    return np.random.default_rng(len(sizes)).standard_normal(sizes).astype(np.float32)


def turned(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, -1, -2))


THREADS = [1, 2, 3]
SIZES = [(1, 1, 1), (5, 7, 3), (64, 96, 33), (300, 200, 100), (100, 300, 700), (700, 64, 20)]
"""Some are parted between threads by rows, some by columns, the last parts smaller."""


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("sizes", SIZES)
def test_factors_are_read_both_ways(sizes: tuple[int, int, int], threads: int) -> None:
    m, k, n = sizes
    a, b = random(m, k), random(k, n)
    expected = 1.5 * (a @ b)
    for turn_a, turn_b in itertools.product((0, 1), (0, 1)):
        given = (turned(a) if turn_a else a), (turned(b) if turn_b else b)
        how = {"transA": turn_a, "transB": turn_b, "alpha": 1.5}
        got = product(*given, threads=threads, **how)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shape", [(), (1,), (700,), (1, 700), (300, 1), (300, 700), (1, 1)])
def test_something_is_added(shape: tuple[int, ...], threads: int) -> None:
    """What broadcasts to the product, times a number."""
    a, b, c = random(300, 40), random(40, 700), random(*shape)
    got = product(a, b, c, threads=threads, alpha=2.0, beta=0.5)
    np.testing.assert_allclose(got, 2 * (a @ b) + 0.5 * c, rtol=1e-4, atol=1e-4)
    nothing = product(a, b, np.full(shape, np.nan, np.float32), threads=threads, beta=0.0)
    np.testing.assert_allclose(nothing, a @ b, rtol=1e-4, atol=1e-4)


BATCHES = [
    ((3, 4, 5), (3, 5, 6)),
    ((3, 4, 5), (5, 6)),
    ((4, 5), (3, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((2, 1, 400, 50), (1, 3, 50, 60)),
    ((2, 3, 400, 50), (1, 1, 50, 60)),
]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("shapes", BATCHES)
def test_batches_repeat(shapes: tuple[tuple[int, ...], tuple[int, ...]], threads: int) -> None:
    """As those of MatMul do."""
    a, b = (random(*s) for s in shapes)
    np.testing.assert_allclose(product(a, b, threads=threads), a @ b, rtol=1e-4, atol=1e-4)
    got = product(turned(a), turned(b), threads=threads, transA=1, transB=1)
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "shapes", [((0, 4), (4, 3)), ((4, 0), (0, 3)), ((4, 5), (5, 0)), ((0, 4, 5), (5, 6))]
)
def test_products_of_nothing(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = (random(*s) for s in shapes)
    np.testing.assert_array_equal(product(a, b), a @ b)
    if a.ndim == 2:
        np.testing.assert_array_equal(product(a, b, random(3, 1)[:1]), a @ b + random(3, 1)[:1])


def test_one_thread_has_the_bits_of_eager_mode() -> None:
    """It is the same call, of the same library."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a, b, c = random(128, 256), random(64, 256), random(64)
        x, w, added = map(torch.from_numpy, (a, b, c))
        got = product(a, b, c, transB=1)
        assert torch.equal(torch.from_numpy(got), torch.addmm(added, x, w.t()))
    finally:
        torch.set_num_threads(before)


def test_numbers_that_are_none_stay() -> None:
    a, b = random(4, 5), random(5, 6)
    a[1, 2], b[0, 3] = np.inf, np.nan
    expected = torch.from_numpy(a) @ torch.from_numpy(b)
    np.testing.assert_allclose(product(a, b), expected.numpy(), rtol=1e-5)


def test_several_callers_at_once() -> None:
    """MKL works in the thread that calls it, and leaves torch's number of threads alone."""
    made, threads = session(threads=2), torch.get_num_threads()
    feeds = {"a": random(300, 200), "b": random(200, 300)}
    with ThreadPoolExecutor(3) as callers:
        results = list(callers.map(lambda _: made.ort.run(None, feeds)[0], range(12)))
    assert all(np.array_equal(r, results[0]) for r in results)
    assert torch.get_num_threads() == threads


BAD_NODES: dict[str, dict[str, Any]] = {
    "one factor": {"inputs": 1},
    "four inputs": {"inputs": 4},
    "float64": {"dtype": TensorProto.DOUBLE},
    "no flag": {"transA": 2},
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_a_node_that_nobody_wrote_is_refused(case: str) -> None:
    """When its kernel is made."""
    with pytest.raises(ExecutionError):
        session(**BAD_NODES[case])


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 3), (4, 2)],
        [(3,), (3, 2)],
        [(2, 3), (3,)],
        [(2, 2, 3), (3, 3, 4)],
        [(2, 3), (3, 4), (3,)],
        [(2, 3), (3, 4), (3, 4)],
        [(2, 3), (3, 4), (1, 2, 4)],
        [(2, 2, 3), (2, 3, 4), (4,)],
    ],
)
def test_sizes_that_do_not_fit_are_refused(shapes: Sequence[tuple[int, ...]]) -> None:
    with pytest.raises(Exception, match=r"do not fit|no matrix|does not broadcast"):
        product(*(random(*s) for s in shapes))


def halves(
    *given: torch.Tensor, threads: int = 1, name: str = "", **attributes: Any
) -> torch.Tensor:
    """A product by torch's kernel, which leaves small ones to MKL."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    name = name or ("mm" if len(given) == 2 else "addmm")
    types = [t.dtype for t in given]
    model = model_of(name, types, types[:1], small_by_mkl=1, **attributes)
    (result,) = run_session(create_session(model, options=options).ort, *given)
    return result


HALVES = [(1, 1, 1), (5, 7, 3), (64, 96, 33), (1, 40, 900), (900, 40, 1), (200, 100, 300)]


@pytest.mark.skipif(not has_function("gemm_bf16bf16f32_"), reason="this MKL has no such product")
@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("sizes", HALVES)
def test_small_products_of_bfloat16(sizes: tuple[int, int, int], threads: int) -> None:
    """Rounded once, of factors and addends that lie in any order, written in parts."""
    m, k, n = sizes
    generator = torch.Generator().manual_seed(0)

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, generator=generator).bfloat16()

    a, b = drawn(m, k), drawn(k, n)
    exact = a.double() @ b.double()
    for turn_a, turn_b in itertools.product((0, 1), (0, 1)):
        given = (a.t() if turn_a else a), (b.t() if turn_b else b)
        perms = {f"perm{i}": [1, 0] for i, turn in enumerate((turn_a, turn_b)) if turn}
        got = halves(*(t.contiguous() for t in given), threads=threads, **perms)
        torch.testing.assert_close(got.double(), exact, rtol=2**-8, atol=1e-4)
    for shape in ((), (1,), (n,), (1, n), (m, 1), (m, n)):
        c = drawn(*shape)
        got = halves(c, a, b, threads=threads, beta=0.5, alpha=2.0)
        expected = 0.5 * c.double() + 2 * exact
        torch.testing.assert_close(got.double(), expected, rtol=2**-8, atol=1e-4)
        none = halves(torch.full_like(c, torch.nan), a, b, threads=threads, beta=0.0, alpha=1.0)
        torch.testing.assert_close(none.double(), exact, rtol=2**-8, atol=1e-4)
    turned = halves(c.t().contiguous(), a, b, perm0=[1, 0], beta=0.5, alpha=2.0)
    torch.testing.assert_close(turned.double(), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.skipif(not has_function("gemm_bf16bf16f32_"), reason="this MKL has no such product")
def test_large_products_of_bfloat16_stay_with_torch() -> None:
    """Bit for bit with one thread: of many multiplications, or of many results."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for m, k, n in ((300, 500, 200), (300, 4, 300)):
            a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
            assert torch.equal(halves(a, b), a @ b)
        empty = halves(torch.ones(3, 0).bfloat16(), torch.ones(0, 2).bfloat16())
        assert torch.equal(empty, torch.zeros(3, 2).bfloat16())
        assert halves(torch.ones(3, 2).bfloat16(), torch.ones(2, 0).bfloat16()).shape == (3, 0)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("name", "dtype"), [("mm", torch.float16), ("bmm", torch.bfloat16)])
def test_other_products_are_not_by_mkl(name: str, dtype: torch.dtype) -> None:
    with pytest.raises(ExecutionError):
        halves(torch.ones(2, 2).to(dtype), torch.ones(2, 2).to(dtype), name=name)


def test_who_multiplies_faster_is_asked_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = torch_library.multiplies_faster.__wrapped__
    monkeypatch.setattr(torch_library, "comes_with_mkl", torch_library.comes_with_mkl.__wrapped__)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    for maker, expected in (("GenuineIntel", True), ("AuthenticAMD", False)):
        text = f"processor\t: 0\nvendor_id\t: {maker}\nflags\t: avx512f\n"
        monkeypatch.setattr("builtins.open", lambda *a, text=text, **k: io.StringIO(text))
        assert ask() is expected
        assert torch_library.comes_with_mkl()  # gradients of attention ask for no more
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    assert not ask()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch_library, "has_function", lambda name: name == "sgemm_")
    assert not ask()
