"""Programs at random: a seed is one program, eager mode runs it, and a failing one shrinks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.backends.memory.aliases import aot_alone
from tests.backends.programs.program_check import judge, shrink
from tests.backends.programs.random_programs import RandomProgram, generate
from tests.backends.programs.roundings import ExactResults, Roundings

pytestmark = pytest.mark.filterwarnings("ignore")  # eager mode warns of what it refuses


def test_a_seed_is_one_program() -> None:
    assert generate(3).text() == generate(3).text()
    assert len({generate(seed).text() for seed in range(20)}) == 20


@pytest.mark.parametrize("seed", range(20))
def test_eager_mode_runs_what_is_made(seed: int) -> None:
    program = generate(seed, (5, 12))
    given = program.functions()
    with torch.no_grad(), warnings.catch_warnings():
        for size in program.sizes:
            assert len(given.function(*given.make(size))) == len(program.results)


def test_a_failing_program_shrinks_to_what_fails() -> None:
    program = RandomProgram(
        arguments=("torch.randn((n, 3))", "torch.randn((3,))"),
        lines=("v0 = a0 + 1", "v1 = v0.exp()", "v2 = v1.sum()", "v3 = a1.tan()"),
        results=("v2", "v3", "a0"),
        grad=True,
        dynamic=True,
    )
    small = shrink(program, lambda p: any("exp" in line for line in p.lines))
    assert small.lines == ("v1 = a0.exp()",)
    assert (small.grad, small.dynamic, small.arguments) == (False, False, ("torch.randn((n, 3))",))


def test_a_right_program_does_not_fail() -> None:
    program = RandomProgram(("torch.randn((n, 3))",), ("v0 = a0.exp()", "v1 = v0.t()"), ("v1",))
    assert judge(program).kind == "right"


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(graph_module: torch.fx.GraphModule, args: object, **_: object) -> object:
        return lambda *given: tuple(r * 2 for r in graph_module.forward(*given))

    compile_it = torch.compile
    monkeypatch.setattr(
        torch,
        "compile",
        lambda f, backend, **more: compile_it(
            f, backend=wrong if backend == "onnxrt" else backend, **more
        ),
    )
    program = RandomProgram(("torch.randn((n, 3))",), ("v0 = a0.exp()",), ("v0",))
    verdict = judge(program)
    assert verdict.kind == "wrong"
    assert verdict.failed
    assert verdict.text.startswith("size 4, r0")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_rounding_changes_numbers_of_each_type(dtype: torch.dtype) -> None:
    given = torch.linspace(1, 2, 100).to(dtype)
    with Roundings(0):
        rounded = given * 1.3
    changed = (rounded != given * 1.3).double().mean()
    assert 0.3 < changed < 1
    torch.testing.assert_close(rounded, given * 1.3, rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_what_hangs_on_a_rounding_of_float64_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cosine of a vector and itself is one, or above it by a rounding."""
    compile_it = torch.compile

    def compiled(function: Callable[..., Any], backend: str, **more: Any) -> Any:
        if backend != "onnxrt":
            return compile_it(function, backend=backend, **more)
        return lambda x: tuple(torch.ones_like(r) for r in function(x))

    monkeypatch.setattr(torch, "compile", compiled)
    lines = ("v0 = F.cosine_similarity(a0, a0, dim=1)", "v1 = torch.ceil(v0)")
    made = ("torch.linspace(0.1, 40, 40 * n, dtype=torch.float64).reshape(-1, n)",)
    assert judge(RandomProgram(made, lines, ("v1",))).kind == "right"


def test_what_is_known_to_be_traced_wrongly_is_left() -> None:
    """Writes to what overlaps itself run in eager mode."""
    program = RandomProgram(
        ("torch.randn((n, 3))",), ("v0 = a0.unfold(0, 2, 1)", "v0.clamp_(-1, 1)"), ("v0",)
    )
    verdict = judge(program)
    assert verdict.kind == "left"
    assert not verdict.failed
    assert "one in memory" in verdict.text


def test_a_refusal_that_names_an_address_is_torchs() -> None:
    """A stride of what two arguments are parts of has no symbol of its own."""
    program = RandomProgram(
        ("torch.randn((2, n, n))", "a0[..., :1]"),
        ("v0 = a1.gather(1, torch.zeros(a1.shape, dtype=torch.int64))", "a0.relu_()"),
        ("v0",),
        dynamic=True,
    )
    assert not judge(program).failed


def test_an_error_of_dynamo_is_torchs_if_aot_autograd_raises_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compiled(function: Callable[..., Any], backend: str, **options: Any) -> Any:
        def call(*args: torch.Tensor) -> None:
            raise ValueError("traced") if backend is aot_alone else IndexError("guarded")

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    program = RandomProgram(("torch.randn((2, n))",), ("v0 = a0 * 2",), ("v0",))
    verdict = judge(program)
    assert verdict.kind == "torch's"
    assert "guarded" in verdict.text


@pytest.mark.parametrize(("alone", "kind"), [(IndexError, "torch's"), (None, "wrong")])
def test_what_falls_back_and_ends_as_by_aot_autograd_is_torchs(
    monkeypatch: pytest.MonkeyPatch, alone: type[Exception] | None, kind: str
) -> None:
    """A session cannot be built of an index that is out of bounds in each call."""

    def compiled(function: Callable[..., Any], backend: str, **options: Any) -> Any:
        def call(*args: torch.Tensor) -> Any:
            if backend == "onnxrt":
                logging.getLogger("dort_rewriter").warning("from now on: idx=3 of [-1,0]")
                raise IndexError("index 3 is out of bounds")
            if alone is not None:
                raise alone("index 3 is out of bounds")
            return function(*args)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    program = RandomProgram(("torch.randn((2, n))",), ("v0 = a0 * 2",), ("v0",))
    assert judge(program).kind == kind


@pytest.mark.parametrize("results", [("v0",), ("v0", "v1"), ("v1",)])
def test_where_a_copy_begins_in_its_memory_is_as_it_happens(results: tuple[str, ...]) -> None:
    """Eager mode copies what is before the argument, too."""
    lines = ("v0 = a0.slice_scatter(a0[:1] * 2, 0, 0, 1)", "v1 = v0[1:]")
    assert judge(RandomProgram(("torch.randn((n, 3))[1:]",), lines, results)).kind == "right"


@pytest.mark.parametrize(("size", "kind"), [("0", "right"), ("n", "wrong")])
def test_only_what_has_elements_shares_memory(
    monkeypatch: pytest.MonkeyPatch, size: str, kind: str
) -> None:
    compile_it = torch.compile

    def compiled(function: Callable[..., Any], backend: str, **more: Any) -> Any:
        if backend != "onnxrt":
            return compile_it(function, backend=backend, **more)
        return lambda x: tuple(r.clone() for r in function(x))

    monkeypatch.setattr(torch, "compile", compiled)
    program = RandomProgram(
        (f"torch.ones(({size}, 3))",), ("v0 = a0 * 2", "v1 = v0.t()"), ("v0", "v1")
    )
    assert judge(program).kind == kind


def test_a_part_elsewhere_in_its_memory_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_it = torch.compile

    def compiled(function: Callable[..., Any], backend: str, **more: Any) -> Any:
        if backend != "onnxrt":
            return compile_it(function, backend=backend, **more)

        def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            whole, part = function(x.contiguous().clone())
            return whole, whole[: part.shape[0]].copy_(part.clone())

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    lines = ("v0 = a0.slice_scatter(a0[:1] * 2, 0, 0, 1)", "v1 = v0[1:]")
    program = RandomProgram(("torch.ones((n + 1, 3))[1:]",), lines, ("v0", "v1"))
    verdict = judge(program)
    assert verdict.kind == "wrong"
    assert "r1 layout" in verdict.text


def test_one_graph_that_aot_autograd_refuses_is_judged_beside_another() -> None:
    """What it makes of the second, behind a break, is a view on some torch."""
    program = RandomProgram(
        ("torch.randn((1, 3)).expand(n, 3)",),
        ("a0.masked_fill_(a0 > 1, 2.5)", "a0.unsqueeze_(0)", "v0 = a0 @ a0.mT"),
        ("v0",),
    )
    assert not judge(program).failed


def test_gradients_that_torch_loses_too_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the second argument, under each backend."""

    def compiled(function: Callable[..., Any], **options: Any) -> Any:
        return lambda first, second: function(first, second.detach())

    monkeypatch.setattr(torch, "compile", compiled)
    arguments = ("torch.randn((2, n))", "torch.rand((2, n))")
    verdict = judge(RandomProgram(arguments, ("v0 = a0 * a1",), ("v0",), grad=True))
    assert verdict.kind == "torch's"
    assert "gradient 1" in verdict.text


def test_zeros_for_no_gradient_are_torchs_where_its_own_backward_raises() -> None:
    """It refuses ``clamp_`` of what ``max`` is to be derived by, which our backward takes."""
    program = RandomProgram(
        ("torch.randn((2 * n,))[::2]", "torch.randn((3,))"),
        ("v0, v1 = a0.max(-1)", "a1[0] = 2.5", "a0.clamp_(-1, 1)"),
        ("v0",),
        grad=True,
    )
    verdict = judge(program)
    assert verdict.kind == "torch's"
    assert "gradient 1: got tensor([0., 0., 0.]), eager None" in verdict.text


def let_results_be_off(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Have the backend, and no other one, add a number to its result."""
    compile_it = torch.compile

    def replaced(function: Callable[..., Any], backend: str, **more: Any) -> Any:
        if backend != "onnxrt":
            return compile_it(function, backend=backend, **more)
        return lambda *args: (function(*args)[0] + by,)

    monkeypatch.setattr(torch, "compile", replaced)


def test_a_defect_that_torch_does_not_share_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """AOTAutograd has one in this program too: of another kind."""
    program = RandomProgram(
        ("torch.randn((n, 3))",),
        ("v0 = a0.unfold(0, 2, 1)", "v0.clamp_(-1, 1)", "v1 = a0 + 1"),
        ("v1",),
    )
    let_results_be_off(monkeypatch, 1)
    assert judge(program).kind == "wrong"


def test_gradients_that_eager_mode_refuses_are_not_asked_for() -> None:
    """What is left of the program is compared."""
    program = RandomProgram(
        ("torch.randn((n, 3))",),
        ("v0 = a0.exp()", "v1 = v0 * 2", "v0.add_(1)"),
        ("v1",),
        grad=True,
    )
    assert judge(program).kind == "right"


def test_an_operator_without_a_converter_is_left_to_torch() -> None:
    """That is said, and no failure."""
    program = RandomProgram(
        ("torch.randn((n, n))",), ("v0 = torch.linalg.matrix_exp(a0)",), ("v0",)
    )
    verdict = judge(program)
    assert verdict.kind == "left"
    assert not verdict.failed


def test_what_eager_mode_refuses_is_no_program() -> None:
    program = RandomProgram(("torch.randn((n, 3))",), ("v0 = a0 @ a0",), ("v0",))
    assert judge(program).kind == "refused"


def test_what_hangs_on_a_rounding_is_no_difference() -> None:
    """Eager mode rounds between two operators, and just meets the threshold."""
    program = RandomProgram(
        ("torch.randn((2, 3, n, 2), dtype=torch.bfloat16)",),
        (
            "v0 = F.mish(a0)",
            "v0.addcmul_(v0 * 1, a0, value=0.5)",
            "v1 = F.threshold(v0, 0.1, 2.0)",
        ),
        ("v1",),
    )
    assert judge(program).kind == "right"


def test_what_hangs_on_a_rounding_of_a_step_is_no_difference() -> None:
    """The mean of equal numbers is off by one here, and by nothing there."""
    program = RandomProgram(
        ("torch.ones((n, n))",),
        (
            "v0 = F.gelu(a0, approximate='tanh')",
            "v1 = v0.sum(1)",
            "v2 = F.layer_norm(v1, v1.shape)",
        ),
        ("v2",),
    )
    given = program.functions()
    (argument,) = given.make(4)
    nudged = []
    for seed in range(8):
        with Roundings(seed):
            nudged += given.function(argument)
    assert max(float(v.abs().max()) for v in nudged) > 1e-5
    assert judge(program).kind == "right"


def test_what_hangs_on_roundings_of_equal_rows_is_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twelve numbers that are 1, or above it by a rounding, seldom change one by one."""
    compile_it = torch.compile

    def compiled(function: Callable[..., Any], backend: str, **more: Any) -> Any:
        if backend != "onnxrt":
            return compile_it(function, backend=backend, **more)
        return lambda x: (torch.tensor(0),)

    monkeypatch.setattr(torch, "compile", compiled)
    lines = ("v0 = a0.float() * 1.0000001", "v1 = (v0 > 1).sum()")
    program = RandomProgram(("torch.ones((12,), dtype=torch.int64)",), lines, ("v1",))
    assert program.functions().function(torch.ones(12, dtype=torch.int64)) == (12,)
    assert judge(program).kind == "right"


def test_what_no_operator_rounds_stays() -> None:
    x = torch.tensor([0.5, -1.25, float("nan"), float("inf")])
    with Roundings(1):
        results = [x.clone(), -x, x.flip(0).abs(), torch.cat([x, x])[4:], torch.ones(4) * 3]
    wanted = [x, -x, x.flip(0).abs(), x, torch.full((4,), 3.0)]
    torch.testing.assert_close(results, wanted, rtol=0, atol=0, equal_nan=True)


def test_what_cancels_is_nothing_in_exact_results() -> None:
    x = torch.tensor([[0.3], [1.7]], dtype=torch.float16)
    before = x.clone()
    assert F.layer_norm(x, (1,)).any()
    with ExactResults():
        v, mask = F.layer_norm(x, (1,)), F.dropout(torch.ones(1000), 0.5)
        written = torch.zeros(2, 1, dtype=torch.float16).add_(x)
    torch.testing.assert_close(v, torch.zeros_like(x), rtol=0, atol=0)
    torch.testing.assert_close(written, before, rtol=0, atol=0)
    torch.testing.assert_close(x, before, rtol=0, atol=0)
    assert set(mask.tolist()) == {0.0, 2.0}


def test_what_eager_mode_has_of_numbers_that_cancel_is_no_difference() -> None:
    """The cosine of what is nothing but roundings: nan where it is nothing."""
    lines = ("v0 = F.layer_norm(a0, a0.shape[-1:])", "v1 = F.cosine_similarity(v0, a0, dim=-2)")
    program = RandomProgram(("torch.linspace(0.1, 1, n).half().unsqueeze(1)",), lines, ("v1",))
    assert judge(program).kind == "right"


def test_a_jump_that_no_rounding_makes_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    program = RandomProgram(
        ("torch.full((n,), 0.25)",), ("v0 = F.threshold(a0, 0.1, 2.0)",), ("v0",)
    )
    let_results_be_off(monkeypatch, 0.01)
    assert judge(program).kind == "wrong"


@pytest.mark.parametrize("seed", [50011, 60516, 60551, 60556, 300240, 1001557, 3043211, 3043243])
def test_programs_that_failed(seed: int) -> None:
    verdict = judge(generate(seed, (5, 40)))
    assert not verdict.failed, verdict.text
