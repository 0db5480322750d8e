"""What torch's kernels refuse for its types is raised by a compiled program as by eager mode."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import tensor as T
from torch.nn import functional as F

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.capture import taken_types
from dort_rewriter.capture.taken_types import refusal_of
from tests.torch_facts import REFUSES_GRADIENTS_OF_TYPES

ones, aten = torch.ones, torch.ops.aten
LAYER, NORM = torch.nn.Linear(3, 2), torch.nn.LayerNorm(2)
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
LONG, WIDE, BOOL, SHORT = torch.int64, torch.float64, torch.bool, torch.float16

REFUSED: dict[str, Callable[[], Any]] = {
    # products and layers
    "linear of integers": lambda: LAYER(ones(2, 3, dtype=LONG)),
    "linear of bool": lambda: LAYER(ones(2, 3, dtype=BOOL)),
    "mm": lambda: torch.mm(ones(2, 2), ones(2, 2, dtype=WIDE)),
    "mm of bool": lambda: torch.mm(ones(2, 2, dtype=BOOL), ones(2, 2, dtype=BOOL)),
    "mv": lambda: torch.mv(ones(2, 2), ones(2, dtype=WIDE)),
    "addmm": lambda: torch.addmm(ones(2, 2), ones(2, 2), ones(2, 2, dtype=WIDE)),
    "matmul": lambda: ones(3, 2, 2) @ ones(2, 2, dtype=WIDE),
    "bmm of bool": lambda: torch.bmm(ones(3, 2, 2, dtype=BOOL), ones(3, 2, 2, dtype=BOOL)),
    # norms, losses and writes of mixed types
    "layer_norm": lambda: F.layer_norm(ones(2, 3, dtype=WIDE), (3,), ones(3)),
    "group_norm": lambda: F.group_norm(ones(2, 4, dtype=WIDE), 2, ones(4)),
    "batch_norm": lambda: F.batch_norm(ones(2, 4, dtype=WIDE), ones(4), ones(4), ones(4)),
    "index_copy": lambda: ones(3).index_copy(0, T([1]), ones(1, dtype=WIDE)),
    "index_add": lambda: ones(3).index_add(0, T([1]), ones(1, dtype=WIDE)),
    "put": lambda: ones(3).put(T([1]), ones(1, dtype=WIDE)),
    "heaviside": lambda: torch.heaviside(ones(3), ones(3, dtype=WIDE)),
    "nll_loss": lambda: F.nll_loss(ones(3, 2), T([0, 1, 1]), ones(2, dtype=WIDE)),
    # types without a kernel
    "var": lambda: T([1, 2, 4]).var(),
    "pool of integers": lambda: F.adaptive_avg_pool2d(ones(1, 1, 4, 4, dtype=LONG), 2),
    "unfold of integers": lambda: F.unfold(ones(1, 1, 4, 4, dtype=LONG), 2),
    "prelu of integers": lambda: F.prelu(T([1, 2]), T([1])),
    "hardswish of integers": lambda: F.hardswish(T([1, 2])),
    "logaddexp2 of integers": lambda: torch.logaddexp2(T([1, 2]), T([1, 2])),
    "round of integers": lambda: torch.round(T([1, 2]), decimals=1),
    "batch_norm of integers": lambda: F.batch_norm(
        ones(2, 4, dtype=LONG), ones(4, dtype=LONG), ones(4, dtype=LONG)
    ),
    "searchsorted of bool": lambda: torch.searchsorted(T([False, True]), T([True])),
    "argmax of bool": lambda: T([True, False]).argmax(),
    "cross of bool": lambda: torch.linalg.cross(ones(2, 3, dtype=BOOL), ones(2, 3, dtype=BOOL)),
    "abs of bool": lambda: T([True, False]).abs(),
    "ceil of bool": lambda: T([True, False]).ceil(),
    "softmax of bool": lambda: T([True, False]).softmax(0),
    "relu of bool": lambda: T([True, False]).relu(),
    "silu of bool": lambda: F.silu(T([True, False])),
    "glu of bool": lambda: F.glu(T([True, False])),
    "addcmul of bool": lambda: torch.addcmul(T([True]), T([True]), T([True])),
    "nanmedian of bool": lambda: T([True, False]).nanmedian(),
    "avg_pool1d of bool": lambda: F.avg_pool1d(ones(1, 1, 4, dtype=BOOL), 2),
    "cdist of float16": lambda: torch.cdist(ones(2, 2, dtype=SHORT), ones(2, 2, dtype=SHORT)),
    "avg_pool3d of float16": lambda: F.avg_pool3d(ones(1, 1, 4, 4, 4, dtype=SHORT), 2),
    "bessel_j0 of bfloat16": lambda: torch.special.bessel_j0(ones(2, dtype=torch.bfloat16)),
    "mse_loss of complex": lambda: F.mse_loss(
        ones(2, dtype=torch.complex64), ones(2, dtype=torch.complex64)
    ),
    "flash attention of bool": lambda: FLASH(*[ones(1, 2, 4, 8, dtype=BOOL)] * 3)[0],
    "flash attention": lambda: FLASH(
        ones(1, 2, 4, 8, dtype=WIDE), ones(1, 2, 4, 8), ones(1, 2, 4, 8)
    )[0],
    # what is made of others before a table of decompositions is asked, or kept from that
    "hardshrink of integers": lambda: F.hardshrink(T([0, 1, 3])),
    "hardshrink of complex": lambda: F.hardshrink(ones(2, dtype=torch.complex64)),
    "multi_margin_loss of float16": lambda: F.multi_margin_loss(ones(1, 3, dtype=SHORT), T([0])),
    "multilabel_margin_loss of integers": lambda: F.multilabel_margin_loss(
        ones(1, 3, dtype=LONG), T([[0, 1, -1]])
    ),
    "max_pool1d of integers": lambda: F.max_pool1d(ones(1, 1, 4, dtype=LONG), 2),
    "interpolate of integers": lambda: F.interpolate(ones(1, 1, 2, 2, dtype=LONG), scale_factor=2),
    "interpolate of bool": lambda: F.interpolate(ones(1, 1, 2, dtype=BOOL), 4),
    # numbers
    "full_like": lambda: torch.full_like(ones(2, dtype=torch.uint8), 300),
    "full_like of float16": lambda: torch.full_like(ones(2, dtype=SHORT), 1e6),
    "add": lambda: torch.add(ones(2), ones(2), alpha=True),
    "sub": lambda: torch.sub(ones(2), ones(2), alpha=True),
    "fmod": lambda: torch.fmod(T([1, 2]), 0),
}


def raised(function: Callable[..., Any], *args: Any) -> Exception | None:
    try:
        function(*args)
    except Exception as error:  # to be compared
        return error
    return None


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    return torch.compile(function, backend=OrtBackend(options))


@pytest.mark.parametrize("name", REFUSED)
def test_a_call_raises_what_eager_mode_raises(name: str) -> None:
    program = REFUSED[name]
    eager, ours = raised(program), raised(compiled(program, fallback=False))
    assert eager is not None
    assert (type(ours), str(ours)) == (type(eager), str(eager))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
def test_the_python_line_is_said() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return torch.mm(y, y.double())

    error = raised(compiled(program), ones(2, 2))
    assert error is not None
    assert "return torch.mm(y, y.double())" in "".join(error.__notes__)


@pytest.mark.skipif(not REFUSES_GRADIENTS_OF_TYPES, reason="this torch has all gradients")
def test_a_gradient_raises_where_eager_mode_does() -> None:
    x = ones(3, dtype=torch.bfloat16, requires_grad=True)
    result = compiled(torch.special.i1, fallback=False)(x)
    expected = raised(torch.special.i1(x).sum().backward)
    assert repr(raised(result.sum().backward)) == repr(expected) != "None"


def test_what_was_written_before_is_written() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.mm(x, x.double()) + x.mul_(2)

    eager, ours = ones(2, 2), ones(2, 2)
    assert repr(raised(program, eager)) == repr(raised(compiled(program), ours)) != "None"
    assert torch.equal(ours, eager)


def test_a_graph_of_symbolic_sizes_is_asked_for_too() -> None:
    program = torch.compile(lambda x: torch.mm(x, x.long()), backend=OrtBackend(), dynamic=True)
    for size in (3, 4):
        with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
            program(ones(size, size))


def test_asking_leaves_the_random_generator_as_it_is() -> None:
    before = torch.get_rng_state()
    assert refusal_of(aten.rrelu_with_noise_functional.default, (ones(2), ones(2)), {}) is None
    assert refusal_of(aten._fused_dropout.default, (ones(2), 0.5), {}) is None
    assert torch.equal(torch.get_rng_state(), before)


def test_operators_of_others_are_not_called() -> None:
    calls = []

    @torch.library.custom_op("refusals_test::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.dtype)
        return x.clone()

    noted.register_fake(torch.empty_like)
    assert torch.equal(compiled(lambda x: noted(x) + 1)(ones(2)), ones(2) + 1)
    assert len(calls) == 1


WRONG = {
    "sizes": (aten.mm.default, (ones(2, 3), ones(2, 3))),
    "a number that is no number of dimensions": (aten.softmax.int, (ones(2), 3)),
    "a singular matrix": (aten.linalg_cholesky_ex.default, (ones(3, 3), False)),
    "a division by zero": (aten.fmod.Tensor, (ones(3, dtype=LONG), ones(3, dtype=LONG))),
    "a check": (aten._assert_async.msg, (ones(1, dtype=BOOL), "no")),
}


@pytest.mark.parametrize("name", WRONG)
def test_only_types_are_refused(name: str) -> None:
    op, args = WRONG[name]
    assert refusal_of(op, args, {}) is None


def test_torch_is_asked_once_and_with_tensors_that_are_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[torch.Tensor] = []
    call = taken_types._Maker.tensor

    def noted(self: Any, like: torch.Tensor) -> torch.Tensor:
        asked.append(call(self, like))
        return asked[-1]

    monkeypatch.setattr(taken_types, "_known", {})
    monkeypatch.setattr(taken_types._Maker, "tensor", noted)
    with torch._subclasses.FakeTensorMode():
        large = torch.empty(2**20, 2**10), torch.empty(2**10, 2**20, dtype=LONG)
    assert isinstance(refusal_of(aten.mm.default, large, {}), RuntimeError)
    assert max(t.numel() for t in asked) <= 64
    asked.clear()
    assert isinstance(refusal_of(aten.mm.default, large, {}), RuntimeError)
    assert asked == []


def test_common_types_are_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.gelu(NORM(LAYER(x))).softmax(-1).mean()

    monkeypatch.setattr(taken_types._Question, "ask", None)
    compiled(program, fallback=False)(ones(2, 3)).backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_classes_of_another_type(dtype: torch.dtype) -> None:
    """Dynamo raises it itself where torch is 2.8."""
    with pytest.raises(RuntimeError, match="one_hot is only applicable to index tensor"):
        compiled(lambda x: F.one_hot(x, 3), fallback=False)(ones(2, dtype=dtype))


def test_what_is_decomposed_early_is_still_compiled() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        pooled = F.hardshrink(F.max_pool1d(x, 2)) + F.softshrink(
            F.interpolate(x, scale_factor=1.0)
        )
        margins = F.multilabel_margin_loss(x[0], T([[0, -1]]).expand(2, 2))
        return pooled.sum() + F.multi_margin_loss(x[0], T([0, 1])) + margins

    x = torch.linspace(-1, 1, 4).view(1, 2, 2)
    found = []
    for function in (program, compiled(program, fallback=False)):
        given = x.clone().requires_grad_()
        result = function(given)
        found.append((result.detach(), *torch.autograd.grad(result, given)))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (
            "linalg_ldl_solve",
            (torch.eye(3).half(), torch.ones(3, dtype=torch.int32), torch.eye(3)),
        ),
        ("_convert_indices_from_csr_to_coo", (torch.tensor([0, 2, 3]), torch.tensor([0, 1, 2]))),
        ("_jagged_to_padded_dense_forward", (ones(4, 2).half(), [torch.tensor([0, 4])], [4])),
        (
            "_segment_reduce_backward",
            (ones(2).half(), ones(2).half(), ones(3).half(), "sum"),
        ),
    ],
)
def test_torch_is_not_asked_with_places_that_are_made_up(
    monkeypatch: pytest.MonkeyPatch, name: str, given: tuple[Any, ...]
) -> None:
    """Its kernels read and write where pivots and offsets say, outside of their memory too."""
    monkeypatch.setattr(taken_types._Question, "ask", lambda _: pytest.fail("torch was asked"))
    named = {"lengths": torch.tensor([1, 2])} if name.startswith("_segment") else {}
    assert taken_types.refusal_of(getattr(torch.ops.aten, name).default, given, named) is None
