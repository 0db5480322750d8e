"""The guides for those who add something: what they name is there, what they promise holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from dort_rewriter import UnsupportedOpError, to_onnx
from dort_rewriter.hook.versions import PATCHES, PRISTINE, ships_backend
from dort_rewriter.kernels.operators import OPERATORS
from dort_rewriter.optimize.patterns import kernels, onnxruntime, standard
from tests.backends.interface.test_every_backend import BACKENDS
from tests.gates.sources import PACKAGE, ROOT
from tests.gates.test_generated_docs import make_docs
from tests.gates.test_readme import nox_sessions

GUIDES = sorted((ROOT / "docs").glob("add_a_*.md"))
CPP = PACKAGE / "kernels" / "cpp"
PLACES = (ROOT, PACKAGE)


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named_files(guide: Path) -> list[str]:
    code = re.findall(r"`([^`\n]+)`", guide.read_text(encoding="utf-8"))
    return [c for c in code if re.fullmatch(r"[\w./]*(/|\.(py|h|cpp|md|toml))", c)]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_files_that_a_guide_names_exist(guide: Path) -> None:
    named = named_files(guide)
    assert len(named) >= 3
    missing = [n for n in named if not any((p / n).exists() for p in PLACES)]
    assert [n for n in missing if n != "__init__.py"] == []


def test_every_guide_can_be_found() -> None:
    index, navigation = text_of("docs/index.md"), text_of("mkdocs.yml")
    assert [g.name for g in GUIDES if g.name not in index or g.name not in navigation] == []


def registered_kernels() -> list[str]:
    return [o.name for o in OPERATORS.values() if o.library == "own"]


def test_the_steps_of_the_example_of_a_kernel() -> None:
    """Each file that the guide sends to has to do with its example, or serves all kernels."""
    guide = ROOT / "docs" / "add_a_kernel.md"
    for_all = {"kernel.h", "tensors.h", "rows.h", "reach.h", "floats.h", "sums.h", "compiler.h"}
    for_all |= {"own_kernels.py", "bench_models.py", "sanitize_kernels.py"}
    for_all |= {"test_kernel_vectors.py"}
    files = [n for n in named_files(guide) if not n.endswith("/") and Path(n).name not in for_all]
    assert [n for n in files if "Rotary" not in text_of(n)] == []
    assert "Rotary" in registered_kernels()


@pytest.mark.parametrize("name", registered_kernels())
def test_every_kernel_went_through_each_step(name: str) -> None:
    headers = [p.read_text(encoding="utf-8") for p in CPP.rglob("*.h")]
    assert any(f'"{name}"' in h for h in headers)
    python = [p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py")]
    assert any(f'"{name}"' in p for p in python), "nobody writes such a node"
    assert f'"{name}"' in text_of("scripts/kernel_cases.py")
    tests = [p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py")]
    assert any(name in t for t in tests)


def test_the_operator_of_the_guide_has_no_converter() -> None:
    """What the guide starts from is what a reader sees."""
    (name, *_) = re.findall(r"`(aten::\w+)`", text_of("docs/add_a_converter.md"))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 1]))

    with pytest.raises(UnsupportedOpError, match=name):
        to_onnx(Model(), (torch.ones(3),))


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_sessions_scripts_and_tests_of_a_guide_exist(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    sessions = set(re.findall(r"nox -s ([\w-]+)", text))
    assert sessions <= nox_sessions()
    lines = re.findall(r"nox -s [\w-]+ -- ([^`\n]+)", text)
    given = [word for line in lines for word in re.sub(r" -k \w+", "", line).split()]
    scripts = re.findall(r"(?<!tests/)\bscripts/\w+\.py", text)
    assert [path for path in (*given, *scripts) if not (ROOT / path).exists()] == []


def test_the_guides_say_who_writes_a_page() -> None:
    """`make_docs.py` writes some pages, `opset_coverage.py` the one that takes a sweep."""
    text = " ".join(" ".join(guide.read_text(encoding="utf-8").split()) for guide in GUIDES)
    by_make_docs = set(re.findall(r"make_docs\.py` writes `docs/(\w+\.md)`", text))
    by_sweep = set(re.findall(r"opset_coverage\.py --markdown docs/(\w+\.md)`", text))
    by_sweep |= set(re.findall(r"`--markdown docs/(\w+\.md)` writes the page", text))
    assert by_make_docs
    assert by_make_docs <= {path.name for path in make_docs.pages()}
    assert by_sweep == {"coverage.md"}
    assert "--markdown docs/coverage.md" in text_of("scripts/opset_coverage.py")


@pytest.mark.parametrize(
    ("rules", "folder"),
    [(s.RULES, s.__name__.rpartition(".")[2]) for s in (standard, onnxruntime, kernels)],
    ids=["standard", "onnxruntime", "kernels"],
)
def test_every_rule_has_its_files(rules: tuple[type, ...], folder: str) -> None:
    tests = [
        p.read_text(encoding="utf-8") for p in (ROOT / "tests" / "optimize").rglob("test_*.py")
    ]
    for rule in rules:
        assert rule.__module__.split(".")[-2] == folder
        assert any(rule.__name__ in t for t in tests), rule


def test_every_backend_has_its_row() -> None:
    page = text_of("docs/how_it_works/backends.md")
    for file in BACKENDS:
        assert (PACKAGE / "backends" / file).exists()
        assert f"| `{file}` |" in page
    assert set(re.findall(r"^\| `(\w+\.py)` \|", page, flags=re.MULTILINE)) == set(BACKENDS)


def test_what_the_guide_to_a_new_torch_says_of_versions() -> None:
    folders = {p.name for p in (ROOT / "patches").iterdir() if p.is_dir()}
    assert folders == {f"torch-{series}" for series in PRISTINE}
    assert all(ships_backend(series) for series in PRISTINE)
    assert all(p.reason and p.since for p in PATCHES)
    assert "LATEST = (" in text_of("noxfile.py")
