"""Whether what `nox -s release` built can be given away: its files, metadata, installation.

python scripts/check_release.py files dist     # the archives, before they are installed
python scripts/check_release.py installed      # the package that this Python imports
"""

from __future__ import annotations

import argparse
import email
import importlib.metadata
import re
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PACKAGE = "dort_rewriter"
NEEDED_AT_RUN_TIME = ("py.typed", "kernels/cpp/library.cpp", "hook/installer.py")
NEEDED_TO_BUILD = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
NOT_GIVEN_AWAY = ("tests", "scripts", "docs", "noxfile.py")


def version() -> str:
    found = re.search(r'^version = "(.+)"$', PROJECT, flags=re.MULTILINE)
    assert found is not None
    return found[1]


def missing(needed: Iterable[str], names: Sequence[str], where: str) -> list[str]:
    return [f"{where} lacks {name}" for name in needed if name not in names]


def sources_of_the_package() -> list[str]:
    """Each module of the package and each patch, as the wheel names them."""
    modules = [path.relative_to(ROOT) for path in (ROOT / PACKAGE).rglob("*.py")]
    patches = [
        Path(PACKAGE, path.relative_to(ROOT)) for path in (ROOT / "patches").rglob("*.diff")
    ]
    return [path.as_posix() for path in (*modules, *patches)]


def check_wheel(path: Path, kernels: bool) -> list[str]:
    """Everything that runs is in it, nothing else is, and its metadata say what it is."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        information = f"{PACKAGE}-{version()}.dist-info/"
        if f"{information}METADATA" not in names:
            return [f"{path.name} is not of version {version()}"]
        metadata = email.message_from_bytes(archive.read(f"{information}METADATA"))
    needed = [f"{PACKAGE}/{name}" for name in NEEDED_AT_RUN_TIME] + sources_of_the_package()
    needed += [
        "dort_rewriter_autoload.py",
        *(information + n for n in ("RECORD", "licenses/LICENSE")),
    ]
    wrong = missing(needed, names, path.name)
    known = (f"{PACKAGE}/", information)
    extra = [n for n in names if not n.startswith(known) and n != "dort_rewriter_autoload.py"]
    wrong += [f"{path.name} installs {name}" for name in extra]
    if kernels and not any(name.endswith(".so") for name in names):
        wrong.append(f"{path.name} has no kernels, though there is a compiler")
    if kernels and "-linux_" in path.name:
        wrong.append(f"{path.name} is for this machine's Linux alone: auditwheel repair")
    for field, value in (("License-Expression", "Apache-2.0"), ("License-File", "LICENSE")):
        if metadata[field] != value:
            wrong.append(f"{path.name}: {field} is {metadata[field]}")
    return wrong


def check_source_distribution(path: Path) -> list[str]:
    """A wheel can be made of it, and it holds no half of what is not given away."""
    with tarfile.open(path) as archive:
        inside = [member.name.partition("/")[2] for member in archive.getmembers()]
    sources = [path.relative_to(ROOT) for name in (PACKAGE, "patches") for path in files_of(name)]
    wrong = missing([*NEEDED_TO_BUILD, *map(Path.as_posix, sources)], inside, path.name)
    tops = {name.split("/")[0] for name in inside}
    return wrong + [f"{path.name} holds {name}" for name in NOT_GIVEN_AWAY if name in tops]


def files_of(folder: str) -> list[Path]:
    kept = (".py", ".h", ".cpp", ".diff", ".typed")
    return [
        path
        for path in (ROOT / folder).rglob("*")
        if path.suffix in kept or path.name == "py.typed"
    ]


def check_files(folder: Path, kernels: bool) -> list[str]:
    wheels, archives = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    wrong = [] if len(archives) == 1 else [f"{folder} holds {len(archives)} source distributions"]
    wrong += [] if wheels else [f"{folder} holds no wheel"]
    for path in wheels:
        wrong += check_wheel(path, kernels)
    for path in archives:
        wrong += check_source_distribution(path)
    return wrong


def check_installed(kernels: bool) -> list[str]:
    """The installed package is not this clone, and a model trains through it, by name."""
    import torch

    import dort_rewriter
    from dort_rewriter.kernels.library import installed_library

    place = Path(dort_rewriter.__file__)
    if place.is_relative_to(ROOT / PACKAGE):
        return [f"{place} is the clone: run this outside of it, with python -P"]
    installed = importlib.metadata.version("dort-rewriter")
    wrong = [] if installed == version() else [f"version {installed} is installed"]
    if kernels and installed_library() is None:
        wrong.append("the kernels that were installed are not those that were built")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    x = torch.randn(4, 8)
    expected = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    options = {"fallback": False}
    compiled = torch.compile(model, backend="onnxrt", options=options)
    computed = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    for one, other in zip(expected, computed, strict=True):
        torch.testing.assert_close(one, other)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    parser.add_argument("--no-kernels", action="store_true", help="they were not compiled")
    files = commands.add_parser("files", help="check the archives of a folder")
    files.add_argument("folder", type=Path)
    commands.add_parser("installed", help="check the package that this Python imports")
    given = parser.parse_args(arguments)
    if given.command == "files":
        wrong = check_files(given.folder, kernels=not given.no_kernels)
    else:
        wrong = check_installed(kernels=not given.no_kernels)
    for line in wrong:
        print(line, file=sys.stderr)
    print("nothing is wrong" if not wrong else f"{len(wrong)} things are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
