from __future__ import annotations

import importlib.util
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/check_release.py"
METADATA = "License-Expression: Apache-2.0\nLicense-File: LICENSE\n"


@pytest.fixture(name="script", scope="module")
def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_release", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Archives:
    """A folder with archives that nothing is wrong with, but for what a test changes."""

    def __init__(self, script: ModuleType, folder: Path) -> None:
        self.folder, self.version = folder, script.version()
        information = f"dort_rewriter-{self.version}.dist-info/"
        names = [f"dort_rewriter/{name}" for name in script.NEEDED_AT_RUN_TIME]
        names += ["dort_rewriter_autoload.py", "dort_rewriter/kernels/built/kernels.so"]
        names += [f"{information}RECORD", f"{information}licenses/LICENSE"]
        self.wheel = dict.fromkeys([*names, *script.sources_of_the_package()], "")
        self.wheel[f"{information}METADATA"] = METADATA
        files = [p for folder in ("dort_rewriter", "patches") for p in script.files_of(folder)]
        self.sources = [*script.NEEDED_TO_BUILD, *(str(p.relative_to(script.ROOT)) for p in files)]

    def write(self, platform: str = "manylinux_2_28_x86_64") -> Path:
        name = f"dort_rewriter-{self.version}"
        with zipfile.ZipFile(self.folder / f"{name}-py3-none-{platform}.whl", "w") as archive:
            for inside, text in self.wheel.items():
                archive.writestr(inside, text)
        with tarfile.open(self.folder / f"{name}.tar.gz", "w:gz") as archive:
            for inside in self.sources:
                archive.addfile(tarfile.TarInfo(f"{name}/{inside}"), io.BytesIO())
        return self.folder


@pytest.fixture(name="archives")
def make_archives(script: ModuleType, tmp_path: Path) -> Archives:
    return Archives(script, tmp_path)


def test_whole_archives_pass(script: ModuleType, archives: Archives) -> None:
    assert script.check_files(archives.write(), kernels=True) == []
    assert script.main(["files", str(archives.folder)]) == 0


@pytest.mark.parametrize(
    "lost",
    [
        "dort_rewriter/py.typed",
        "dort_rewriter/kernels/cpp/library.cpp",
        "dort_rewriter/patches/torch-2.8/onnxruntime.diff",
        "dort_rewriter/kernels/built/kernels.so",
        "dort_rewriter_autoload.py",
    ],
)
def test_a_file_that_a_wheel_lost_is_named(
    script: ModuleType, archives: Archives, lost: str
) -> None:
    del archives.wheel[lost]
    (said,) = script.check_files(archives.write(), kernels=True)
    assert "kernels" in said if lost.endswith(".so") else lost in said


def test_what_does_not_belong_to_the_package_is_named(
    script: ModuleType, archives: Archives
) -> None:
    archives.wheel["tests/test_setup.py"] = ""
    archives.sources.append("tests/test_setup.py")
    first, second = script.check_files(archives.write(), kernels=True)
    assert "installs tests/test_setup.py" in first
    assert "holds tests" in second


def test_sources_without_their_build_are_named(script: ModuleType, archives: Archives) -> None:
    archives.sources.remove("setup.py")
    (said,) = script.check_files(archives.write(), kernels=True)
    assert "lacks setup.py" in said


def test_a_wheel_for_one_linux_is_named(script: ModuleType, archives: Archives) -> None:
    (said,) = script.check_files(archives.write("linux_x86_64"), kernels=True)
    assert "auditwheel repair" in said


def test_an_empty_folder_is_wrong(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["files", str(tmp_path)]) == 1
    assert "holds no wheel" in capsys.readouterr().err


def test_a_clone_is_not_an_installation() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "installed"],
        cwd=SCRIPT.parents[1],
        env={"PYTHONPATH": str(SCRIPT.parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "is the clone" in done.stderr
