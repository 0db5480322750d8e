"""compare_exporters: three exporters, their nodes, numbers and times."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from dort_rewriter import OptionError, compare_exporters
from dort_rewriter.runtime.providers import CPU, Provider
from dort_rewriter.runtime.session import create_session
from dort_rewriter.tools import comparison
from dort_rewriter.tools import judgment as judgment_module
from dort_rewriter.tools.cli import main


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        return y if shift is None else y + shift


def compare(*args: Any, **options: Any) -> comparison.Comparison:
    return compare_exporters(Small().eval(), (torch.randn(2, 4), *args), repeat=2, **options)


def test_three_exporters_agree_with_eager() -> None:
    found = compare(torch.ones(3))
    assert [r.exporter for r in found.results] == ["torch", "torchlib", "dort_rewriter"]
    for result in found.results:
        assert result.error is None
        assert result.agrees, result
        assert result.nodes["Relu"] == 1
        assert result.opset == 18
        assert result.max_difference is not None
        assert result.max_difference < 1e-5
        assert result.run_milliseconds is not None
        assert result.run_milliseconds > 0
    text = str(found)
    assert text.startswith("Small, eager: ")
    (relu,) = (line for line in text.splitlines() if line.startswith("Relu"))
    assert relu.split() == ["Relu", "1", "1", "1"]


def test_data_and_page() -> None:
    found = compare(exporters=["dort_rewriter"])
    data = json.loads(json.dumps(found.to_dict()))
    assert data["results"][0]["nodes"] == found["dort_rewriter"].nodes
    tags: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            last = max(i for i, t in enumerate(tags) if t == tag)
            del tags[last]

    page = found.to_html()
    assert found._repr_html_() == page
    Reader().feed(page)
    assert tags == ["meta", "meta", "link"], "every other tag is closed"
    assert "<td>Relu</td>" in page


def test_keyword_arguments_and_dynamic_shapes() -> None:
    found = compare_exporters(
        Small().eval(),
        (torch.randn(2, 4),),
        {"shift": torch.ones(3)},
        exporters=["torchlib", "dort_rewriter"],
        dynamic_shapes={"x": {0: torch.export.Dim("batch")}, "shift": None},
        repeat=1,
    )
    assert all(r.agrees for r in found.results)


def test_a_dictionary_may_be_the_last_argument() -> None:
    class Cached(torch.nn.Module):
        def forward(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
            return x * cache["k"]

    args = (torch.randn(3), {"k": torch.randn(3)})
    found = compare_exporters(Cached(), args, exporters=["torch", "dort_rewriter"], repeat=1)
    assert [(r.error, r.agrees) for r in found.results] == [(None, True)] * 2


def test_an_exporter_that_fails_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> onnx.ModelProto:
        raise NotImplementedError("no <support>\nand more")

    monkeypatch.setitem(comparison.EXPORTERS, "torch", fail)
    found = compare(exporters=["torch", "dort_rewriter"])
    assert found["torch"].error == "NotImplementedError: no <support>"
    assert found["torch"].agrees is None
    assert found["dort_rewriter"].agrees
    assert "torch failed: NotImplementedError: no <support>" in str(found)
    assert "no &lt;support&gt;" in found.to_html()


def spoiled(before: str, after: str) -> Any:
    """An exporter that writes one operator for another."""
    right = comparison.EXPORTERS["dort_rewriter"]

    def wrong(*args: Any) -> onnx.ModelProto:
        model = right(*args)
        for node in model.graph.node:
            node.op_type = node.op_type.replace(before, after)
        return model

    return wrong


def test_what_an_exporter_writes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(comparison.EXPORTERS, "dort_rewriter", spoiled("Relu", "Neg"))
    found = compare(exporters=["torch", "dort_rewriter"])
    assert found["torch"].agrees
    assert found["torch"].judgment is None
    assert found["dort_rewriter"].agrees is False
    judgment = found["dort_rewriter"].judgment
    assert judgment is not None
    assert (judgment.fault, judgment.node) == ("exporter", "Neg -> output_0")
    assert judgment.line is not None
    assert "test_comparison.py" in judgment.line
    assert "torch.relu(self.linear(x))" in judgment.line
    assert "NO" in str(found)
    assert "differs, by the exporter" in str(found)
    assert "Neg -&gt; output_0" in found.to_html()
    json.dumps(found.to_dict())


class Attended(torch.nn.Module):
    """Attention, which torch's graph has as one node, and a name that the file gives another."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.linear(x).view(2, 3, 2, 2).transpose(1, 2)
        attended = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        return torch.relu(attended.transpose(1, 2).reshape(2, 3, 4)).exp()


def test_what_torch_has_as_one_node_is_located_among_few(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (torch.randn(2, 3, 4),)
    for before, after in (("Softmax", "LogSoftmax"), ("Relu", "Neg")):
        monkeypatch.setitem(comparison.EXPORTERS, "dort_rewriter", spoiled(before, after))
        found = compare_exporters(Attended(), args, exporters=["dort_rewriter"], repeat=1)
        monkeypatch.undo()
        judgment = found["dort_rewriter"].judgment
        assert judgment is not None
        assert judgment.fault == "exporter"
        assert judgment.line is not None
        (at,) = (n for n in judgment.nodes if n.startswith(after))
        if before == "Softmax":
            assert "scaled_dot_product_attention(q, q, q)" in judgment.line
            assert 1 < len(judgment.nodes) < 12
        else:
            assert judgment.node == at
            assert judgment.nodes == (at,)


def test_arguments_by_name_are_judged_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor, by: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
            return torch.relu(x * by + to).exp()

    monkeypatch.setitem(comparison.EXPORTERS, "dort_rewriter", spoiled("Relu", "Neg"))
    named = {"to": torch.ones(3), "by": torch.full((3,), 2.0)}
    found = compare_exporters(
        Scaled(), torch.ones(3), named, exporters=["dort_rewriter"], repeat=1
    )
    judgment = found["dort_rewriter"].judgment
    assert judgment is not None
    assert judgment.node == "Neg -> relu"


def test_what_a_kernel_computes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = judgment_module._by_onnxruntime

    def wrong(proto: onnx.ModelProto, feeds: Any) -> Any:
        return {name: v + (name == "output_0") for name, v in right(proto, feeds).items()}

    monkeypatch.setattr(judgment_module, "_by_onnxruntime", wrong)
    run = comparison._Candidate.run

    def run_wrong(self: Any) -> float:
        time = run(self)
        self.outputs = [value + 1 for value in self.outputs]
        return time

    monkeypatch.setattr(comparison._Candidate, "run", run_wrong)
    judgment = compare(exporters=["dort_rewriter"])["dort_rewriter"].judgment
    assert judgment is not None
    assert (judgment.fault, judgment.node) == ("kernel", "Relu -> output_0")


def test_rounding_is_no_fault() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Softmax(-1)).eval()
    found = compare_exporters(
        model, (torch.randn(8, 64),), exporters=["dort_rewriter"], atol=1e-12, rtol=0, repeat=1
    )
    assert found.eager_difference is not None
    assert 0 < found.eager_difference < 1e-5
    result = found["dort_rewriter"]
    assert result.exact_difference is not None
    assert result.bytes is not None
    assert result.exact_difference < 1e-5
    assert result.bytes > 64 * 64 * 4
    if not result.agrees:
        assert result.judgment is not None
        assert result.judgment.fault == "tolerance"


def test_control_flow_by_numbers_has_its_reason_once(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As outside of these tests: some of them leave torch a handler that shows what it traces.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)

    class Branching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

    hooks = set(torch.nn.modules.module._global_buffer_registration_hooks)
    text = str(compare_exporters(Branching(), (torch.randn(3),), repeat=1))
    assert set(torch.nn.modules.module._global_buffer_registration_hooks) == hooks
    assert text.count("data-dependent") == 1
    assert "torchlib, dort_rewriter failed: " in text
    assert re.search(r"at .*test_comparison.py:\d+ in forward: return x \* 2 if x.sum\(\)", text)
    assert "\x1b" not in text
    shown = capfd.readouterr()
    assert shown.out == ""
    assert shown.err == ""


def test_other_runtimes_run_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """One agrees, one does not, one fails: neither is the fault of the file."""

    def wrong(proto: onnx.ModelProto, feeds: Any) -> Any:
        return lambda: [v + 0.5 for v in comparison.RUNTIMES["reference"](proto, feeds)()]

    def absent(proto: onnx.ModelProto, feeds: Any) -> Any:
        raise NotImplementedError("no such operator")

    monkeypatch.setitem(comparison.RUNTIMES, "wrong", wrong)
    monkeypatch.setitem(comparison.RUNTIMES, "openvino", absent)
    found = compare(exporters=["dort_rewriter"], runtimes=["reference", "wrong", "openvino"])
    result = found["dort_rewriter"]
    assert result.agrees
    assert [(r.runtime, r.agrees) for r in result.elsewhere] == [
        ("reference", True), ("wrong", False), ("openvino", None)
    ]  # fmt: skip
    assert result.elsewhere[1].max_difference == pytest.approx(0.5, rel=1e-4)
    text = str(found)
    assert "dort_rewriter on reference: as eager mode" in text
    assert "on wrong: differs from eager mode by 5.0e-01, by the runtime" in text
    assert "on openvino: NotImplementedError: no such operator" in text


def test_openvino_runs_the_files() -> None:
    pytest.importorskip("openvino", reason="OpenVINO is no requirement")
    (result,) = compare(exporters=["dort_rewriter"], runtimes=["openvino"]).results
    assert [r.agrees for r in result.elsewhere] == [True]


def test_providers_run_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said whose nodes are whose, as the session tells."""
    asked: list[Any] = []

    def create(model: Any, *, providers: Any) -> Any:
        asked.append(providers)
        built = create_session(model)
        placement = {"Other": {"Gemm": 2, "Tanh": 1}}
        both = (Provider("Other"), *built.providers)
        return dataclasses.replace(built, providers=both, placement=placement)

    monkeypatch.setattr(comparison, "create_session", create)
    chosen = (CPU, {"use_arena": "0"})
    found = compare(exporters=["dort_rewriter"], providers=[chosen])
    assert asked == [[chosen]]
    result = found["dort_rewriter"]
    assert result.agrees
    assert result.providers == ("Other", CPU)
    assert result.placement == {"Other": {"Gemm": 2, "Tanh": 1}}
    assert f"dort_rewriter ran on Other (3 nodes), {CPU} (0 nodes)" in str(found)


class Stateful(torch.nn.Module):
    """Counts its calls, and writes to its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        x.mul_(2)
        return torch.relu(x + self.calls).exp()


@pytest.mark.parametrize("spoil", [False, True])
def test_state_is_the_same_for_all_and_left(spoil: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Stateful(), torch.ones(3)
    if spoil:
        monkeypatch.setitem(comparison.EXPORTERS, "dort_rewriter", spoiled("Relu", "Neg"))
    found = compare_exporters(model, x, repeat=2)
    assert [r.agrees for r in found.results] == [True, True, not spoil]
    assert (model.calls, x.tolist()) == (0, [1.0, 1.0, 1.0])
    assert found.eager_difference is not None
    assert found.eager_difference < 1e-5
    judgment = found["dort_rewriter"].judgment
    if spoil:
        assert judgment is not None
        assert judgment.node == "Neg -> relu"
        assert "torch.relu(x + self.calls)" in (judgment.line or "")


def test_a_model_that_draws_random_numbers_is_not_judged(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5))
    chosen: dict[str, Any] = {"exporters": ["dort_rewriter"], "runtimes": ["reference"]}
    found = compare_exporters(model, torch.randn(3, 4), repeat=1, **chosen)
    result = found["dort_rewriter"]
    assert (result.error, result.agrees, result.judgment) == (None, None, None)
    text = str(found)
    assert re.search(r"random\n", text)
    assert "on reference: other random numbers" in text
    assert "differs" not in text
    source = tmp_path / "random_model.py"
    source.write_text("import torch\npair = torch.nn.Dropout(0.5), torch.ones(9, 9)\n")
    arguments = ["compare", f"{source}:pair", "--exporters", "dort_rewriter", "--repeat", "1"]
    assert main(arguments) == 0


@pytest.mark.parametrize(
    "options",
    [{"exporters": ["tensorrt"]}, {"repeat": 0}, {"runtimes": ["x"]}, {"providers": ["Nowhere"]}],
)
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"tensorrt|repeat|Unknown runtime|'Nowhere' is not"):
        compare_exporters(Small(), (torch.randn(2, 4),), **options)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "compared_model.py"
    source.write_text("import torch\npair = torch.nn.Linear(3, 2), torch.randn(1, 3)\n")
    page = tmp_path / "page.html"
    arguments = ["compare", f"{source}:pair", "--exporters", "dort_rewriter", "--repeat", "1"]
    assert main([*arguments, "--html", str(page)]) == 0
    assert "dort_rewriter" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["agrees"] is True
    assert main([*arguments, "--html", str(tmp_path / "nowhere" / "page.html")]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("Linear, eager: ")
    assert shown.err.startswith("dort-rewriter compare: The page cannot be written: ")


def test_a_tensor_stands_for_one_argument_and_exporters_are_quiet(
    capfd: pytest.CaptureFixture[str],
) -> None:
    found = compare_exporters(torch.nn.Linear(3, 2), torch.randn(1, 3), repeat=1)
    assert [r.agrees for r in found.results] == [True, True, True]
    assert capfd.readouterr().err == ""
