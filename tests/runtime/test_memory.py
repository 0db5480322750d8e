"""Who owns memory, when it is freed, and that nothing grows."""

from __future__ import annotations

import gc
import multiprocessing
import weakref
from pathlib import Path

import pytest
import torch

from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.ort_values import from_ort, to_ort
from tests.collecting import IS_FREE_THREADED
from tests.runtime.graphs import add_one, executor, result, tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_both_directions_share_memory(dtype: torch.dtype) -> None:
    x = torch.ones(2, 3).to(dtype)
    vector = to_ort([x])
    (back,) = from_ort(vector, [dtype])
    assert back.data_ptr() == x.data_ptr()
    assert back.dtype is dtype
    assert torch.equal(back, x)


def test_bfloat16_outlives_the_tensor() -> None:
    x = torch.full((1000,), 3.0, dtype=torch.bfloat16)
    vector = to_ort([x])
    del x
    torch.full((1000,), 9.0, dtype=torch.bfloat16)  # would reuse the memory, were it free
    (back,) = from_ort(vector, [torch.bfloat16])
    assert back.eq(3).all()


@pytest.mark.load_sensitive
def test_result_outlives_session_and_arguments() -> None:
    run = add_one()
    x = torch.zeros(10_000)
    (y,) = run(x)
    address = y.data_ptr()
    del run, x
    gc.collect()
    scratch = [torch.full((10_000,), 7.0) for _ in range(20)]
    assert y.data_ptr() == address
    assert y.eq(1).all()
    assert len(scratch) == 20


def test_identity_of_an_input_is_not_the_input() -> None:
    """onnxruntime may elide the node; the result must survive the argument all the same."""
    run = executor(
        "(float[N] x) => (float[N] y) { y = Identity(x) }", [tensor("x")], [result("y")]
    )
    x = torch.ones(5)
    (y,) = run(x)
    assert y.data_ptr() != x.data_ptr()


@pytest.mark.load_sensitive
@pytest.mark.skipif(IS_FREE_THREADED, reason="functions are freed by collections alone there")
def test_session_dies_with_the_executor_without_a_collection() -> None:
    run = add_one()
    assert run.session is not None
    session = weakref.ref(run.session.ort)
    gc.disable()
    try:
        del run
        assert session() is None
    finally:
        gc.enable()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _growth(run: Executor, calls: int) -> int:
    for _ in range(300):
        run.boxed([torch.ones(4096)])
    gc.collect()
    before = _resident_bytes()
    for _ in range(calls):
        run.boxed([torch.ones(4096)])
    gc.collect()
    return _resident_bytes() - before


@pytest.mark.load_sensitive
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize("name", ["float", "bfloat16"])
def test_calls_do_not_grow_memory(name: str) -> None:
    dtype = {"float": torch.float32, "bfloat16": torch.bfloat16}[name]
    run = executor(
        f"({name}[N] x) => ({name}[M] y, {name}[N] z)"
        " { y = Concat<axis=0>(x, x) z = Identity(x) }",
        [tensor("x", dtype)],
        [result("y", 0, dtype), result("z", 1, dtype)],
    )
    plain = run.boxed
    # A leak of one result a call would be 16 KB a call: 160 MB.
    run.boxed = lambda arguments: plain([arguments[0].to(dtype)])
    assert _growth(run, 10_000) < 4_000_000


@pytest.mark.load_sensitive
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_failures_do_not_grow_memory() -> None:
    from dort_rewriter.errors import ExecutionError

    run = add_one((2,))

    def fail() -> None:
        with pytest.raises(ExecutionError):
            run(torch.ones(4096))

    for _ in range(100):
        fail()
    gc.collect()
    before = _resident_bytes()
    for _ in range(500):
        fail()
    gc.collect()
    assert _resident_bytes() - before < 4_000_000


def test_vector_types_are_kept() -> None:
    vector = to_ort([torch.ones(2), torch.ones(2, dtype=torch.int64)])
    assert isinstance(vector, bindings().OrtValueVector)
    assert [v.data_type() for v in vector] == ["tensor(float)", "tensor(int64)"]


class Doubled(torch.utils.data.Dataset):
    """Computes its items with an executor made before the workers are forked."""

    def __init__(self, run: Executor) -> None:
        self.run = run

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.run(torch.full((64,), float(index)))[0]


@pytest.mark.load_sensitive
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs fork")
def test_forked_data_loader() -> None:
    run = add_one()
    run(torch.ones(4))  # onnxruntime's threads exist before the fork
    loader = torch.utils.data.DataLoader(
        Doubled(run), batch_size=4, num_workers=2, multiprocessing_context="fork", timeout=500
    )
    rows = torch.cat(list(loader))
    assert torch.equal(rows[:, 0], torch.arange(8.0) + 1)
