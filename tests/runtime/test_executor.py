"""Calls: what goes in and out of a session, in every form an argument can have."""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from collections.abc import Callable

import pytest
import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime import executor as executor_module
from dort_rewriter.runtime.executor import Executor, KnownArguments
from dort_rewriter.runtime.session import create_session
from dort_rewriter.signature import (
    InputDim,
    InputSize,
    InputSlot,
    OutputSlot,
    SizeExpression,
    ViewStep,
)
from tests.runtime.graphs import add_one, executor, number, parse, result, signature, tensor


def add() -> Executor:
    return executor(
        "(float[M, N] x, float[M, N] y) => (float[M, N] z) { z = Add(x, y) }",
        [tensor("x", shape=("M", "N")), tensor("y", shape=("M", "N"))],
        [result("z")],
    )


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often Python looks at the arguments."""
    found: list[int] = []
    learn = KnownArguments.learn
    monkeypatch.setattr(
        KnownArguments, "learn", lambda known, given: found.append(1) or learn(known, given)
    )
    return found


def test_the_like_of_earlier_arguments_is_recognized(looks: list[int]) -> None:
    run = add()
    weight = torch.nn.Parameter(torch.randn(3, 3))
    for _ in range(5):
        x = torch.randn(3, 3)
        (z,) = run(x, weight)
        assert torch.equal(z, x + weight)
    assert len(looks) == 1


def negated(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(x)


def inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return x.clone()


STRANGE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.t(),
    "with a negation bit": negated,
    "expanded": lambda x: x[:1].expand(3, 3),
    "every other column": lambda x: torch.cat([x, x], 1)[:, ::2],
    "smaller": lambda x: x[:2, :2],
    "empty": lambda x: x[:0],
    "a parameter": torch.nn.Parameter,
    "of inference mode": inference,
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE.keys())
def test_others_are_looked_at(
    change: Callable[[torch.Tensor], torch.Tensor], looks: list[int]
) -> None:
    run = add()
    for turn in range(3):
        usual = torch.randn(3, 3)
        run(usual, usual)
        looks.clear()
        x = change(usual)
        (z,) = run(x, x)
        assert torch.equal(z, x + x)
        assert turn or looks, "it was taken for what it is not"


def test_what_cannot_go_in_is_refused_after_calls_that_went_well() -> None:
    run = add()
    x = torch.randn(3, 3)
    run(x, x)
    for strange in (x.double(), x.to_sparse(), x.to("meta")):
        with pytest.raises(ExecutionError):
            run(x, strange)
    freed = torch.randn(3, 3)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ExecutionError, match="no memory"):
        run(x, freed)


def test_numbers_keep_their_places_beside_recognized_tensors() -> None:
    run = executor(
        "(float[N] x, int64 n, double a) => (float[N] z) "
        "{ m = Cast<to=1>(n)  b = Cast<to=1>(a)  y = Mul(x, m)  z = Add(y, b) }",
        [tensor("x"), number("n", "int"), number("a", "float")],
        [result("z")],
    )
    for n in range(4):
        x = torch.randn(5)
        (z,) = run(x, n, 0.5 * n)
        torch.testing.assert_close(z, x * n + 0.5 * n)


def test_sizes_that_always_vary_are_learnt_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    check = executor_module._check
    monkeypatch.setattr(
        executor_module, "_check", lambda guards, given: built.append(1) or check(guards, given)
    )
    executor_module._tensor_guards()
    built.clear()
    run = add()
    for rows in range(1, 101):
        x = torch.randn(rows, 2)
        (z,) = run(x, x)
        assert torch.equal(z, x + x)
    assert len(built) == 7  # 1, 2, 4 ... 64


def test_classes_that_may_go_are_not_kept(looks: list[int]) -> None:
    class Own(torch.Tensor):
        pass

    run = add()
    x = torch.randn(2, 2).as_subclass(Own)
    for _ in range(2):
        run(x, x)
    assert len(looks) == 2


@pytest.mark.parametrize("guards", [None, "always yes", "no such keywords"])
def test_without_the_guards_of_torch_python_looks(
    guards: str | None, looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Yes:
        def __init__(self, *tensors: object, **keywords: object) -> None:
            if guards != "always yes":
                raise TypeError("unexpected keyword")

        def check(self, *tensors: object) -> bool:
            return True

    monkeypatch.setattr(torch._C._dynamo.guards, "TensorGuards", None if guards is None else Yes)
    executor_module._tensor_guards.cache_clear()
    try:
        run = add()
        x = torch.randn(2, 3)
        for y in (x, x, torch.randn(3, 2).t()):
            (z,) = run(x, y)
            assert torch.equal(z, x + y)
        assert len(looks) == 3
    finally:
        executor_module._tensor_guards.cache_clear()


def test_this_torch_has_the_guards() -> None:
    assert executor_module._tensor_guards() is not None


TYPES = {
    "float": torch.float32,
    "double": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
}


def identity(name: str, dtype: torch.dtype, dims: str = "N", shape: tuple = ("N",)) -> Executor:
    return executor(
        f"({name}[{dims}] x) => ({name}[{dims}] y) {{ y = Identity(x) }}",
        [tensor("x", dtype, shape)],
        [result("y", dtype=dtype)],
    )


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_each_type_goes_through(name: str, dtype: torch.dtype) -> None:
    run = identity(name, dtype)
    for values in ([0, 1, 1, 0, 5], []):
        x = torch.tensor(values).to(dtype)
        (y,) = run(x)
        assert y.dtype is dtype
        assert torch.equal(y, x)


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_rank_0(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor(1).to(dtype)
    (y,) = identity(name, dtype, "", ())(x)
    assert y.shape == ()
    assert torch.equal(y, x)


def test_float8_is_refused_by_name() -> None:
    slots = [tensor("x", torch.float8_e4m3fn)], [result("y", dtype=torch.float8_e4m3fn)]
    with pytest.raises(ExecutionError, match=r"'x' is torch.float8_e4m3fn"):
        executor("(float8e4m3fn[N] x) => (float8e4m3fn[N] y) { y = Identity(x) }", *slots, 19)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    symbols = ("A", "B")[: len(shape)]
    (y,) = add_one(symbols)(torch.empty(shape))
    assert y.shape == shape


LAYOUTS = {
    "transposed": lambda x: x.t(),
    "sliced": lambda x: x[:, ::2],
    "offset": lambda x: x[1:],
    "expanded": lambda x: x[:1].expand(5, -1),
    "parameter": torch.nn.Parameter,
    "requires_grad": lambda x: x.clone().requires_grad_(),
    "conjugate": lambda x: torch.complex(x, x).conj().imag,
    "conjugate of one": lambda x: torch.complex(x[:1, :1], x[:1, :1]).conj().imag,
    "negated": torch._neg_view,
    "channels_last-like": lambda x: x.as_strided((3, 4), (1, 3)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["float", "bfloat16"])
@pytest.mark.parametrize("static", [False, True])
def test_each_layout_is_read_right(layout: str, name: str, static: bool) -> None:
    if layout == "conjugate" and name == "bfloat16":
        layout = "conjugate of one"
    x = LAYOUTS[layout](torch.arange(1.0, 13.0).reshape(3, 4)).to(TYPES[name])
    shape = tuple(x.shape) if static else ("A", "B")
    run = identity(name, TYPES[name], ",".join(map(str, shape)), shape)
    (y,) = run(x)
    assert torch.equal(y, x)
    assert not y.requires_grad
    (z,) = run.boxed([x])
    assert torch.equal(z, x)


@pytest.mark.parametrize("name", ["float", "bfloat16"])
@pytest.mark.parametrize("static", [False, True])
def test_what_is_empty_is_read_whatever_its_strides_are(name: str, static: bool) -> None:
    x = torch.ones(0, 6, dtype=TYPES[name])[:, ::2]
    assert x.stride() == (6, 2)
    shape = (0, 3) if static else ("A", "B")
    (y,) = identity(name, TYPES[name], ",".join(map(str, shape)), shape)(x)
    assert y.shape == (0, 3)


@pytest.mark.parametrize("name", ["int64", "int8", "float16", "double"])
def test_a_lazily_negated_tensor_of_any_type(name: str) -> None:
    x = torch._neg_view(torch.tensor([0, 1, 1, 0, 5]).to(TYPES[name]))
    assert x.is_neg()
    assert torch.equal(identity(name, TYPES[name], "5", (5,))(x)[0], x)


def test_tensor_subclass() -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Tagged)
    (y,) = add_one()(x)
    assert y.tolist() == [2.0, 2.0, 2.0]


def test_inputs_that_alias_each_other() -> None:
    run = executor(
        "(float[N] a, float[M] b) => (float[N] y) { y = Sub(a, b) }",
        [tensor("a"), tensor("b", shape=("M",))],
        [result("y")],
    )
    x = torch.arange(4.0)
    assert run(x, x)[0].tolist() == [0.0] * 4
    assert run(x[1:], x[:3])[0].tolist() == [1.0] * 3


def test_inputs_are_read_in_place() -> None:
    """Zero-copy: a view of the input made elsewhere sees what the session saw."""
    run = add_one()
    x = torch.zeros(5)
    view = x[:]
    assert run(x)[0].tolist() == [1.0] * 5
    view += 1
    assert run(x)[0].tolist() == [2.0] * 5


def test_python_numbers() -> None:
    run = executor(
        "(int64 i, double f, bool b, int64 j) => (int64 i2, double f2, bool b2, int64 d)"
        " { i2 = Add(i, i) f2 = Add(f, f) b2 = Not(b) d = Sub(i, j) }",
        [number("i", "int"), number("f", "float"), number("b", "bool"), number("j", "int")],
        [
            result("i2", 0, torch.int64, "int"),
            result("f2", 1, torch.float64, "float"),
            result("b2", 2, torch.bool, "bool"),
            result("d", 3, torch.int64, "int"),
        ],
    )
    values = run(2**40 + 1, 1e-300, True, 7)
    assert values == (2**41 + 2, 2e-300, False, 2**40 - 6)
    assert [type(v) for v in values] == [int, float, bool, int]
    assert math.isinf(run(1, math.inf, False, 0)[1])


def test_unread_arguments_and_none() -> None:
    run = executor(
        "(float[N] x) => (float[N] y) { y = Neg(x) }",
        [InputSlot(name=None, kind="none"), tensor("x"), number(None, "int")],
        [OutputSlot(kind="none", source="constant"), result("y")],
    )
    first, second = run(None, torch.ones(2), 3)
    assert first is None
    assert second.tolist() == [-1.0, -1.0]


def test_model_without_inputs() -> None:
    run = executor(
        "() => (float[2] y) { y = Constant<value_floats = [1.0, 2.0]>() }", [], [result("y")]
    )
    (first,), (second,) = run(), run.boxed([])
    first += 1  # a result is the caller's: the session's constant must not change with it
    assert second.tolist() == [1.0, 2.0]
    assert run()[0].tolist() == [1.0, 2.0]


def test_nothing_to_compute_needs_no_session() -> None:
    run = Executor(
        None,
        signature(
            [tensor(None), number(None, "int")],
            [
                OutputSlot(kind="tensor", source="input", index=0),
                OutputSlot(kind="int", source="input", index=1),
                OutputSlot(kind="float", source="constant", value=math.inf),
                OutputSlot(kind="bool", source="constant", value=True),
                OutputSlot(kind="none", source="constant"),
            ],
        ),
    )
    x = torch.ones(3)
    values = run(x, 4)
    assert values[0] is x
    assert values[1:] == (4, math.inf, True, None)
    arguments = [x, 4]
    assert run.boxed(arguments)[0] is x
    assert arguments == []


def test_a_session_is_required_to_compute() -> None:
    with pytest.raises(ExecutionError, match="compute y"):
        Executor(None, signature([], [result("y")]))


def test_views_of_inputs_and_outputs() -> None:
    rows, columns = InputSize(1), InputDim(0, 1)
    product = SizeExpression("mul", (rows, columns))
    run = executor(
        "(float[A,B] x) => (float[A,B] y) { y = Neg(x) }",
        [tensor("x", shape=("A", "B")), number(None, "int")],
        [
            result("y"),
            OutputSlot(kind="tensor", source="output", index=0, views=(ViewStep("aten::t"),)),
            OutputSlot(
                kind="tensor",
                source="input",
                index=0,
                views=(
                    ViewStep("aten::view", ((product,),)),
                    ViewStep("aten::slice.Tensor", (0, None, SizeExpression("sub", (rows, 1)))),
                ),
            ),
            OutputSlot(kind="int", source="size", size=product),
        ],
    )
    x = torch.arange(12.0).reshape(3, 4)
    y, transposed, flat, size = run(x, 3)
    assert torch.equal(y, -x)
    assert torch.equal(transposed, -x.t())
    assert transposed.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    assert flat.tolist() == [0.0, 1.0]
    assert flat.data_ptr() == x.data_ptr()
    assert size == 12


def test_results_that_are_one_piece_are_two_tensors() -> None:
    split = ViewStep("aten::split.Tensor", (2,))
    ways = ((0,), (0,), (1,), (0, ViewStep("aten::t")), (0,))
    run = executor(
        "(float[4,3] x) => (float[4,3] y) { y = Neg(x) }",
        [tensor("x")],
        [
            result("y", views=(split, ViewStep("getitem", (piece,)), *more))
            for piece, *more in ways
        ],
    )
    x = torch.arange(12.0).reshape(4, 3)
    pieces = run(x)
    assert len(set(map(id, pieces))) == 5
    assert len({p.untyped_storage().data_ptr() for p in pieces}) == 1
    assert [p.storage_offset() for p in pieces] == [0, 0, 6, 0, 0]
    assert torch.equal(pieces[4], -x[:2])
    assert run.source.count("split") == 3  # a list has each of its pieces once


def test_a_result_is_permuted_in_place_once() -> None:
    permuted = ViewStep("permute_", ((2, 0, 1),))
    run = executor(
        "(float[2,3,4] x) => (float[2,3,4] y) { y = Neg(x) }",
        [tensor("x")],
        [
            result("y", views=(permuted, ViewStep("aten::slice.Tensor", (0, 1)))),
            result("y", views=(permuted,)),
        ],
    )
    x = torch.randn(2, 3, 4)
    part, whole = run(x)
    assert torch.equal(whole, -x.permute(2, 0, 1))
    assert whole.stride() == (1, 12, 4)
    assert part._base is whole
    assert whole._base is None


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("add", (7, InputSize(0), 1), 3),
        ("sub", (7, InputSize(0)), 12),
        ("floordiv", (InputSize(0), 2), -3),
        ("mod", (InputSize(0), 3), 1),
        ("min", (InputSize(0), 2), -5),
        ("max", (InputSize(0), 2), 2),
        ("mul", (SizeExpression("add", (InputSize(0), 1)), 2), -8),
    ],
)
def test_size_expressions(op: str, args: tuple, expected: int) -> None:
    slot = OutputSlot(kind="int", source="size", size=SizeExpression(op, args))
    assert Executor(None, signature([number(None, "int")], [slot]))(-5) == (expected,)


def test_unknown_view_is_named() -> None:
    slot = OutputSlot(kind="tensor", source="input", views=(ViewStep("aten::no_such_view"),))
    with pytest.raises(ExecutionError, match="aten::no_such_view"):
        Executor(None, signature([tensor(None)], [slot]))


@pytest.mark.load_sensitive
def test_a_boxed_call_releases_its_inputs() -> None:
    run = executor(
        "(float[N] x, float[N] k) => (float[N] y) { y = Add(x, k) }",
        [tensor("x"), tensor("k")],
        [result("y"), OutputSlot(kind="tensor", source="input", index=1)],
    )
    assert run.boxed._boxed_call
    x, k = torch.ones(2), torch.ones(2)
    gone, kept = weakref.ref(x), weakref.ref(k)
    arguments = [x, k]
    del x, k
    results = run.boxed(arguments)
    assert arguments == []
    assert gone() is None
    assert kept() is results[1]


def test_failed_boxed_call_leaves_its_inputs() -> None:
    run = executor(
        "(float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }",
        [tensor("a"), tensor("b")],
        [result("y")],
    )
    arguments = [torch.ones(2), torch.ones(3)]
    with pytest.raises(ExecutionError, match="ONNX Runtime failed"):
        run.boxed(arguments)
    assert len(arguments) == 2


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (torch.ones(3, dtype=torch.float64), "'x' is torch.float64 on cpu"),
        (torch.ones(3, device="meta"), "'x' is torch.float32 on meta"),
        (torch.ones(3).to_sparse(), "layout torch.sparse_coo"),
    ],
)
def test_wrong_tensor_is_refused(argument: torch.Tensor, message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        add_one()(argument)


def test_tensor_whose_storage_was_freed_is_refused() -> None:
    x = torch.ones(3)
    x.untyped_storage().resize_(0)
    with pytest.raises(ExecutionError, match="no memory"):
        add_one()(x)


def test_shape_against_the_model_is_refused() -> None:
    with pytest.raises(ExecutionError, match="Got: 3 Expected: 2"):
        add_one((2,))(torch.ones(3))


def test_signature_against_the_model_is_refused() -> None:
    session = create_session(parse("(float[N] x) => (float[N] y) { y = Neg(x) }"))
    with pytest.raises(ExecutionError, match=r"reads \['x'\], the signature gives \['z'\]"):
        Executor(session, signature([tensor("z")], [result("y")]))
    with pytest.raises(ExecutionError, match=r"does not compute \['w'\]"):
        Executor(session, signature([tensor("x")], [result("w")]))
    with pytest.raises(ExecutionError, match=r"'x' is tensor\(float\).*torch.int64"):
        Executor(session, signature([tensor("x", torch.int64)], [result("y")]))
    on_cuda = dataclasses.replace(tensor("x"), device=torch.device("cuda", 0))
    with pytest.raises(ExecutionError, match="runs on the CPU only: install onnxruntime-gpu"):
        Executor(session, signature([on_cuda], [result("y")]))
    on_meta = dataclasses.replace(tensor("x"), device=torch.device("meta"))
    with pytest.raises(ExecutionError, match=r"on meta, .* CPU only: move the model to the CPU"):
        Executor(session, signature([on_meta], [result("y")]))


def test_outputs_keep_order_and_may_repeat() -> None:
    run = executor(
        "(float[N] x) => (float[N] b, float[N] a) { a = Neg(x) b = Abs(x) }",
        [tensor("x")],
        [result("a", 1), result("b", 0), result("a", 1)],
    )
    first, second, third = run(torch.tensor([-1.0, 2.0]))
    assert first.tolist() == [1.0, -2.0]
    assert second.tolist() == [1.0, 2.0]
    assert third is first or torch.equal(third, first)


@pytest.mark.load_sensitive
def test_threads_share_one_executor() -> None:
    run = add_one()
    failures: list[int] = []

    def work(seed: int) -> None:
        for step in range(100):
            x = torch.full((16 + seed,), float(step))
            if not torch.equal(run(x)[0], x + 1):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_source_is_straight() -> None:
    """What is decided at build time leaves no loop, dictionary or branch statement behind."""
    run = executor(
        "(float[N] x, int64 k) => (float[N] y) { f = Cast<to=1>(k) y = Add(x, f) }",
        [tensor("x"), number("k", "int")],
        [result("y")],
    )
    for word in ("for ", "while ", "{", "import"):
        assert word not in run.source


@pytest.mark.parametrize(("name", "dtype"), TYPES.items())
def test_torch_allocates_results_of_fixed_sizes(name: str, dtype: torch.dtype) -> None:
    made: list[torch.Tensor] = []
    model = parse(f"({name}[2,3] x) => ({name}[3,2] y) {{ y = Transpose(x) }}")
    slots = signature(
        [tensor("x", dtype, (2, 3))],
        [result("y", dtype=dtype, views=(ViewStep("aten::t"),))],
    )
    run = Executor(create_session(model), slots, preallocate=True)
    run.boxed.__globals__["empty"] = lambda *a, **k: made.append(torch.empty(*a, **k)) or made[-1]
    x = torch.tensor([[0, 1, 1], [0, 5, 2]]).to(dtype)
    results = [run(x)[0], run(x)[0], run.boxed([x])[0]]
    assert all(torch.equal(y, x) and y.dtype is dtype for y in results)
    assert len({y.data_ptr() for y in results}) == 3
    addresses = [m.data_ptr() for m in made]
    # bfloat16 goes by dlpack: onnxruntime makes it.
    assert addresses == ([] if name == "bfloat16" else [y.data_ptr() for y in results])


@pytest.mark.parametrize("shape", [("N",), (0,)])
def test_onnxruntime_allocates_results_of_other_sizes(shape: tuple) -> None:
    run = executor(
        f"(float[{shape[0]}] x) => (float[{shape[0]}] y) {{ y = Neg(x) }}",
        [tensor("x", shape=shape)],
        [result("y")],
    )
    assert run.session is not None
    again = Executor(run.session, run.signature, preallocate=True)
    assert again.source == run.source
    assert again(torch.ones(0))[0].shape == (0,)


def test_allocated_numbers_and_repeated_results() -> None:
    run = executor(
        "(float[4] x) => (float[4] y, int64 n) { y = Neg(x) n = Size(x) }",
        [tensor("x", shape=(4,))],
        [result("y"), result("n", 1, torch.int64, "int"), result("y")],
    )
    assert run.session is not None
    first, count, again = Executor(run.session, run.signature, preallocate=True)(torch.ones(4))
    assert first.tolist() == again.tolist() == [-1.0] * 4
    assert count == 4
