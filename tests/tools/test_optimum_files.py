"""Files that choose their inputs and outputs are compared as a call has them."""

from __future__ import annotations

import sys
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from dort_rewriter import ExportError, compare_exporters, to_onnx
from dort_rewriter.tools import comparison
from dort_rewriter.tools.optimum_files import as_called, export_with_optimum


class Encoder(nn.Module):
    """As those of transformers: arguments with defaults, results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.pool = nn.Linear(4, 3)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> dict[str, Any]:
        rows = self.table(input_ids)
        if attention_mask is not None:
            rows = rows * attention_mask[..., None]
        return {"logits": rows.sum(1), "states": (rows, rows + 1), "pooled": self.pool(rows[:, 0])}


IDS = torch.randint(0, 10, (2, 5))


def chosen(model: nn.Module) -> onnx.ModelProto:
    """A file with the mask for an input, and two of four results, in another order."""
    mask = torch.ones_like(IDS)
    proto = to_onnx(model, (IDS, mask), output_names=["logits", "rows", "more", "pooled"])
    del proto.graph.output[1:3]
    proto.graph.output.sort(key=lambda output: output.name, reverse=True)
    proto.graph.input.reverse()
    return proto


def test_inputs_and_outputs_are_those_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Encoder()

    def export(model: Any, args: Any, kwargs: Any, opset: int, shapes: Any) -> Any:
        return as_called(chosen(model), model, args, kwargs)

    monkeypatch.setitem(comparison.EXPORTERS, "optimum", export)
    for args, kwargs in (((IDS,), {}), ((), {"input_ids": IDS, "attention_mask": IDS % 2})):
        found = compare_exporters(
            model, args, kwargs, exporters=["optimum"], runtimes=["reference"], repeat=1
        )
        result = found["optimum"]
        assert result.agrees, str(found)
        assert result.elsewhere[0].agrees
        assert result.left_out == ("states.0", "states.1")
        assert "optimum leaves out: states.0, states.1" in str(found)


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def export(model: Any, args: Any, kwargs: Any, opset: int, shapes: Any) -> Any:
        proto = chosen(model)
        (node,) = (n for n in proto.graph.node if n.op_type == "ReduceSum")
        node.op_type = "ReduceMax"
        return as_called(proto, model, args, kwargs)

    monkeypatch.setitem(comparison.EXPORTERS, "optimum", export)
    found = compare_exporters(Encoder(), (IDS,), exporters=["optimum"], repeat=1)["optimum"]
    assert found.agrees is False
    assert found.judgment is not None
    assert found.judgment.fault == "exporter"


def test_what_optimum_does_not_take_is_said_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Encoder()
    with pytest.raises(ExportError, match="takes 'attention_mask', which is no tensor of the"):
        as_called(chosen(model), nn.Linear(2, 2), (torch.ones(1, 2),), {})
    monkeypatch.setitem(sys.modules, "optimum.exporters.onnx", None)
    found = compare_exporters(model, (IDS,), repeat=1)
    assert [r.exporter for r in found.results] == ["torch", "torchlib", "dort_rewriter"]
    found = compare_exporters(model, (IDS,), exporters=["optimum"], repeat=1)
    assert "pip install optimum-onnx" in str(found["optimum"].error)


def test_optimum_itself() -> None:
    pytest.importorskip("optimum.exporters.onnx", reason="it wants an older transformers")
    with pytest.raises(ExportError, match="takes models of transformers, not Encoder"):
        export_with_optimum(Encoder(), (IDS,), {}, 18, None)
