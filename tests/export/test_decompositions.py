from __future__ import annotations

import pytest
import torch

from dort_rewriter import Dispatcher, OptionError, to_onnx
from dort_rewriter.errors import UnsupportedOpError
from dort_rewriter.export.decompositions import (
    filter_decomposition_table,
    get_decomposition_table,
    get_decomposition_table_by_name,
)


class Polar(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.complex(x, x).abs()


def test_complex_numbers_are_refused_by_the_operator_that_makes_them() -> None:
    with pytest.raises(UnsupportedOpError) as raised:
        to_onnx(Polar(), (torch.ones(2),))
    assert raised.value.unsupported[0].op == "aten::complex"
    assert "complex64" in raised.value.unsupported[0].reason


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
