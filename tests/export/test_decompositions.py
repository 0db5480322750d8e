from __future__ import annotations

import pytest
import torch

from dort_rewriter import Dispatcher, OptionError, to_onnx
from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.export.decompositions import (
    filter_decomposition_table,
    get_decomposition_table,
    get_decomposition_table_by_name,
    get_tracing_table,
)
from dort_rewriter.export.oxs_dispatcher import OxsDispatcher


class Roots(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x).sqrt().abs()


def test_what_takes_complex_numbers_is_refused_by_its_name() -> None:
    with pytest.raises(UnsupportedOpError) as raised:
        to_onnx(Roots(), (torch.ones(2),))
    assert [u.op for u in raised.value.unsupported] == ["aten::sqrt"]
    assert raised.value.unsupported[0].reason == "no converter for complex numbers"


def test_transforms_are_decomposed_as_eager_mode_does_it() -> None:
    table = get_decomposition_table()
    with torch.no_grad():
        got = table[torch.ops.aten.fft_rfft2.default](torch.ones(2, 3))
    torch.testing.assert_close(got, torch.fft.rfft2(torch.ones(2, 3)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 3), 0), ((4, 3), 1), ((2, 3, 4, 5), 0), ((5,), 0)]
)
def test_gradients_of_weight_norms(shape: tuple[int, ...], dim: int, dtype: torch.dtype) -> None:
    op = torch.ops.aten._weight_norm_interface_backward.default
    grad, v = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype)
    g = torch.rand([n if i == dim else 1 for i, n in enumerate(shape)]).to(dtype)
    norms = torch.ops.aten._weight_norm_interface(v, g, dim)[1]
    got = get_decomposition_table()[op](grad, v, g, norms, dim)
    torch.testing.assert_close(got, op(grad, v, g, norms, dim))


def test_what_has_a_converter_is_not_decomposed() -> None:
    table = get_decomposition_table()
    assert torch.ops.aten.gelu.default not in table
    assert torch.ops.aten.soft_margin_loss.default in table
    mine = Dispatcher({"aten::soft_margin_loss": lambda op, *args: args[0]})
    assert torch.ops.aten.soft_margin_loss.default not in get_decomposition_table(mine)


def test_a_table_by_its_name() -> None:
    assert get_decomposition_table_by_name("none") == {}
    core, full = (get_decomposition_table_by_name(n) for n in ("core", "all"))
    assert set(core) < set(full)
    assert torch.ops.aten.gelu.default in full
    with pytest.raises(OptionError, match=r"'cores'.*'core'"):
        get_decomposition_table_by_name("cores")


def test_a_table_is_filtered() -> None:
    gelu, silu = torch.ops.aten.gelu.default, torch.ops.aten.silu.default
    full = get_decomposition_table_by_name("all")
    kept = filter_decomposition_table(full, lambda op: op is gelu)
    assert set(kept) == {gelu}
    assert {gelu, silu}.isdisjoint(filter_decomposition_table(full))


def test_tracing_leaves_out_only_what_is_composed_of_other_operators() -> None:
    dispatcher = OxsDispatcher()
    full, traced = get_decomposition_table(dispatcher), get_tracing_table(dispatcher)
    assert set(traced) - {torch.ops.aten.zero.default} < set(full)  # torch 2.8 traces it wrongly
    assert torch.ops.aten.soft_margin_loss.default in traced
    composed = torch._C.DispatchKey.CompositeImplicitAutograd.name
    for op in set(full) - set(traced):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composed), op


def test_tracing_tables_are_for_one_dispatcher_and_one_caller() -> None:
    loss = torch.ops.aten.soft_margin_loss.default
    mine = OxsDispatcher({"aten::soft_margin_loss": lambda op, *args: args[0]})
    assert loss not in get_tracing_table(mine)
    assert torch.ops.aten.gelu.default in get_tracing_table(Dispatcher(own_converters=False))
    get_tracing_table(OxsDispatcher()).clear()
    assert loss in get_tracing_table(OxsDispatcher())
