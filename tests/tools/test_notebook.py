"""What notebooks show of the objects of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import dort_rewriter
from dort_rewriter import OrtBackend, notebook


def html_of(value: Any) -> str:
    found: str = value._repr_html_()
    assert found.count("<table>") == found.count("</table>") > 0
    return found


def test_words_are_escaped() -> None:
    made = notebook.table([("<b>", 1234, 0.5, True)], ("a&b",))
    assert "&lt;b&gt;" in made
    assert "a&amp;b" in made
    assert ">1,234<" in made
    assert ">0.500<" in made
    assert ">True<" in made
    assert notebook.table([]) == ""


def test_an_explanation() -> None:
    torch._dynamo.reset()

    def partly(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x + torch.eye(3)) * 2

    found = html_of(dort_rewriter.explain(partly, torch.rand(3, 3) / 9, times=True))
    assert "in torch, called by sessions" in found
    assert "aten::linalg_inv_ex" in found
    assert "torch.linalg.inv(x" in found
    assert "medians and quartiles" in found


def test_status() -> None:
    assert "dort_rewriter hook" in html_of(dort_rewriter.status())


def test_a_backend_and_a_loaded_model(tmp_path: Path) -> None:
    torch._dynamo.reset()
    backend = OrtBackend({"freeze": True})
    assert repr(backend) == "<OrtBackend freeze=True: 0 graphs, 0 models, 0 runs>"
    compiled = torch.compile(torch.nn.Linear(4, 2), backend=backend, dynamic=True)
    with torch.no_grad():
        compiled(torch.ones(3, 4))
    assert repr(backend) == "<OrtBackend freeze=True: 1 graphs, 1 models, 1 runs>"
    assert "freeze" in html_of(backend)
    dort_rewriter.save(compiled, tmp_path)
    loaded = html_of(dort_rewriter.load(tmp_path))
    assert "input: (2+, 4)" in loaded
    assert "input: (1, 4)" in loaded
    assert "no gradients" in loaded
