"""How torch traces: dropout as a draw, resizing operators whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from dort_rewriter import OrtBackend
from dort_rewriter.capture import tracing
from dort_rewriter.capture.aot import compile_with_aot
from dort_rewriter.capture.tracing import RANDOM_DECOMPOSITIONS, keep_resizing
from dort_rewriter.plan.random_order import hoist_random

aten = torch.ops.aten


def _inputs_of_random(graph: torch.fx.GraphModule) -> list[list[str]]:
    return [
        [n.op for n in node.all_input_nodes]
        for node in graph.graph.nodes
        if node.op == "call_function" and torch.Tag.nondeterministic_seeded in node.target.tags
    ]


@pytest.mark.parametrize("like", [torch.rand_like, torch.randn_like])
def test_a_draw_depends_on_no_computed_tensor(like: object) -> None:
    graph = make_fx(lambda x: like(x.exp()) + x, tracing_mode="fake")(torch.zeros(2, 3))  # type: ignore[operator]
    x = torch.randn(2, 3)
    torch.manual_seed(1)
    expected = graph(x)
    hoist_random(graph)
    assert _inputs_of_random(graph) == [[]]
    torch.manual_seed(1)
    torch.testing.assert_close(graph(x), expected)


def test_dropout_draws_as_eager_does_on_the_cpu() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return aten.native_dropout.default(x.exp(), 0.3, True)

    x = torch.randn(4, 5)
    graph = make_fx(function, RANDOM_DECOMPOSITIONS, tracing_mode="fake")(x)
    hoist_random(graph)
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    torch.testing.assert_close(graph(x), expected)
    drawn = next(n for n in graph.graph.nodes if n.target is aten.bernoulli.p)
    assert drawn.args[0].target is aten.empty.memory_format


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_a_kernel_that_draws_and_multiplies_is_parted(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CUDA has one: its mask is drawn for memory of the same layout, which nobody reads."""
    monkeypatch.setattr(tracing, "_has_a_kernel_for_both", lambda x: True)

    def function(x: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return aten.native_dropout.default(x.exp(), 0.3, True)

    x = torch.randn(4, 5)
    graph = make_fx(function, RANDOM_DECOMPOSITIONS, tracing_mode=mode)(x, 4)
    assert [n.target for n in graph.graph.nodes].count(aten.native_dropout.default) == 1
    hoist_random(graph)
    (drawn,) = (n for n in graph.graph.nodes if n.target is aten.native_dropout.default)
    assert drawn.args[1:] == (0.3, True)
    assert [n.op for n in drawn.args[0].all_input_nodes if n.op != "placeholder"] == (
        [] if mode == "fake" else ["call_function"]
    )
    values = [n.meta["val"] for n in graph.graph.nodes if n.target is aten.mul.Tensor]
    assert len({v.untyped_storage()._cdata for v in values}) == 2, "one is a view of the other"
    results = []
    for call in (function, graph):
        torch.manual_seed(1)
        results.append((*call(x, 4), torch.rand(1)))
    torch.testing.assert_close(results[0], results[1])


def test_a_symbolic_size_must_be_an_argument() -> None:
    graph = make_fx(lambda x: torch.rand_like(x + 1), tracing_mode="symbolic")(torch.zeros(2, 3))
    hoist_random(graph)
    assert [n.target for n in graph.graph.nodes if "rand" in n.name] == [aten.rand_like.default]


DRAWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exponential": lambda x: torch.empty_like(x).exponential_(2.0),
    "cauchy": lambda x: torch.empty_like(x).cauchy_(),
    "geometric": lambda x: torch.empty_like(x).geometric_(0.3),
    "log_normal": lambda x: torch.empty_like(x).log_normal_(),
    "gumbel_softmax": lambda x: functional.gumbel_softmax(x),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "random": lambda x: torch.empty_like(x).random_(0, 10),
    "normal": lambda x: torch.normal(x, x.abs()),
    "uniform": lambda x: torch.empty_like(x).uniform_(1, 2),
    "randint_like": lambda x: torch.randint_like(x, 0, 9) + x,
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 3),
    "randperm": lambda x: x[torch.randperm(6)],
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "dropout": lambda x: functional.dropout(x, 0.4),
    "alpha_dropout": lambda x: functional.alpha_dropout(x, 0.3, True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_eager_for_one_seed(name: str) -> None:
    torch._dynamo.reset()
    function, x = DRAWS[name], torch.linspace(-2, 2, 42).reshape(6, 7)
    torch.manual_seed(1)
    expected = function(x)
    compiled = torch.compile(function, backend=OrtBackend())
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize(
    "order",
    [DRAWS, [*reversed(DRAWS)], ["multinomial", "gumbel_softmax"]],
    ids=["as listed", "reversed", "computed from and not"],
)
def test_draws_of_a_graph_keep_their_order(order: Iterable[str]) -> None:
    """Each waits for those before it, whatever they are computed from."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [DRAWS[name](x) for name in order]

    torch._dynamo.reset()
    x = torch.linspace(-2, 2, 42).reshape(6, 7)
    torch.manual_seed(1)
    expected = function(x)
    compiled = torch.compile(function, backend=OrtBackend())
    torch.manual_seed(1)
    torch.testing.assert_close(compiled(x), expected)


def test_what_a_program_draws_by_itself_keeps_its_order() -> None:
    seen = []
    draws = (torch.Tag.nondeterministic_seeded,)

    @torch.library.custom_op("dort_tests::note", mutates_args=(), tags=draws)
    def note(x: torch.Tensor, place: int) -> torch.Tensor:
        seen.append(place)
        return x + place

    @note.register_fake
    def _(x: torch.Tensor, place: int) -> torch.Tensor:
        return torch.empty_like(x)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = note(x.softmax(-1).relu(), 1)
        second = note(torch.ones(3), 2).exp().relu()
        return first.exp().relu(), note(second.exp() + first, 3), note(x, 4).relu()

    torch._dynamo.reset()
    torch.compile(function, backend=OrtBackend())(torch.randn(2, 3))
    assert seen == [1, 2, 3, 4]


CASES = [
    ((2, 3, 7), {"scale_factor": 2.0, "mode": "nearest"}),
    ((2, 3, 7, 6), {"scale_factor": 1.5, "mode": "nearest"}),
    ((2, 3, 7, 6), {"size": (5, 9), "mode": "nearest-exact"}),
    ((2, 3, 4, 5, 6), {"scale_factor": 2.0, "mode": "nearest"}),
    ((2, 3, 7), {"scale_factor": 1.5, "mode": "linear"}),
    ((2, 3, 7, 6), {"scale_factor": 2.0, "mode": "bilinear"}),
    ((2, 3, 7, 6), {"size": (5, 9), "mode": "bilinear", "align_corners": True}),
    ((2, 3, 7, 6), {"scale_factor": 2.0, "mode": "bicubic"}),
    ((2, 3, 4, 5, 6), {"scale_factor": 2.0, "mode": "trilinear"}),
]


def _kernels() -> list[dict[Any, Any]]:
    aten = torch.ops.aten
    overloads = (aten.upsample_bilinear2d.vec, aten.upsample_bilinear2d.default)
    return [dict(op.py_kernels) for op in (*overloads, aten.upsample_bilinear2d_backward.default)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("shape", "options"), CASES, ids=str)
def test_resizing_reaches_the_compiler_whole(
    shape: tuple[int, ...], options: dict[str, Any], dynamic: bool
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def compile_graph(graph: torch.fx.GraphModule, args: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def backend(graph: torch.fx.GraphModule, args: Any) -> Any:
        return compile_with_aot(graph, args, compile_graph=compile_graph, decompositions={})

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x, **options)

    torch._dynamo.reset()
    x = torch.randn(shape, requires_grad=True)
    result = torch.compile(function, backend=backend, dynamic=dynamic)(x)
    gradient = torch.randn_like(result)
    (got,) = torch.autograd.grad(result, x, gradient)
    expected = function(x)
    (wanted,) = torch.autograd.grad(expected, x, gradient)
    torch.testing.assert_close((result, got), (expected, wanted))
    called = [str(n.target) for g in graphs for n in g.graph.nodes if "aten" in str(n.target)]
    assert len(called) == 2
    assert all("upsample" in name for name in called)


def test_torchs_kernels_come_back() -> None:
    before = _kernels()
    with keep_resizing({}):
        assert _kernels() != before
    assert _kernels() == before
    with pytest.raises(RuntimeError, match="stop"), keep_resizing({}):
        raise RuntimeError("stop")
    assert _kernels() == before


def test_what_the_table_decomposes_is_left_alone() -> None:
    before = _kernels()
    with keep_resizing({torch.ops.aten.upsample_bilinear2d.default: lambda *args: None}):
        assert _kernels() == before
