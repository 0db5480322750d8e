"""A folder of a training step trains in C++ as it does in torch. ``nox -s runtimes-cpp`` runs it.

The library of onnxruntime is that of its wheel. Its headers are in no wheel: they are those of the
folder that ``ONNXRUNTIME_INCLUDE`` names, or of an installed ``libonnxruntime-dev``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnxruntime

from tests.runtimes.beside_torch import EXAMPLE, check_runner


def test_losses_are_those_of_torch(tmp_path: Path) -> None:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    assert compiler is not None, "A C++ compiler is needed"
    headers = Path(os.environ.get("ONNXRUNTIME_INCLUDE", "/usr/include/onnxruntime"))
    assert (headers / "onnxruntime_cxx_api.h").exists(), (
        f"No headers of onnxruntime in {headers}: ONNXRUNTIME_INCLUDE says where they are"
    )
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):  # to link with, and to load
        (tmp_path / name).symlink_to(library)
    program = tmp_path / "train"
    options = ["-std=c++17", "-O1", f"-I{headers}", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    command = [compiler, *options, str(EXAMPLE / "train.cpp"), "-lonnxruntime", "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    check_runner([program], tmp_path, tmp_path / "step")
