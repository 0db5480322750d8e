"""The guides for those who add something: what they name is there, what they promise holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dort_rewriter.export import converters
from dort_rewriter.export.registry import builtin_converters
from dort_rewriter.hook.versions import PATCHES, PRISTINE, ships_backend
from dort_rewriter.optimize.patterns import kernels, onnxruntime, standard
from tests.backends.test_every_backend import BACKENDS
from tests.gates.sources import PACKAGE, ROOT

GUIDES = sorted((ROOT / "docs").glob("add_a_*.md"))
CPP = PACKAGE / "runtime" / "kernels_cpp"
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
    library = (CPP / "library.cpp").read_text(encoding="utf-8")
    return re.findall(r"operator_of<(\w+)>\(\)", library)


def test_the_steps_of_the_example_of_a_kernel() -> None:
    """Each file that the guide sends to has to do with its example, or serves all kernels."""
    guide = ROOT / "docs" / "add_a_kernel.md"
    for_all = {"kernel.h", "floats.h", "sums.h", "own_kernels.py"}
    for_all |= {"bench_models.py", "sanitize_kernels.py"}
    files = [n for n in named_files(guide) if not n.endswith("/") and Path(n).name not in for_all]
    assert [n for n in files if "Rotary" not in text_of(n)] == []
    assert "Rotary" in registered_kernels()


@pytest.mark.parametrize("name", registered_kernels())
def test_every_kernel_went_through_each_step(name: str) -> None:
    headers = [p.read_text(encoding="utf-8") for p in CPP.glob("*.h")]
    assert any(f'"{name}"' in h for h in headers)
    python = [p.read_text(encoding="utf-8") for p in PACKAGE.rglob("*.py")]
    assert any(f'"{name}"' in p for p in python), "nobody writes such a node"
    assert f'"{name}"' in text_of("scripts/kernel_cases.py")
    tests = [p.read_text(encoding="utf-8") for p in (ROOT / "tests").rglob("test_*.py")]
    assert any(name in t for t in tests)


def test_every_family_of_converters_is_registered() -> None:
    assert list(converters.FAMILIES) == sorted(set(converters.FAMILIES))
    registered = {c.function.__module__.rpartition(".")[2] for c in builtin_converters().values()}
    assert registered <= set(converters.FAMILIES)
    folder = PACKAGE / "export" / "converters"
    deciding = {
        p.stem
        for p in folder.glob("*.py")
        if re.search(r"^@converter\(", p.read_text(encoding="utf-8"), flags=re.MULTILINE)
    }
    assert deciding <= set(converters.FAMILIES)


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
