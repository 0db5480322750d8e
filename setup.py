"""What ``pyproject.toml`` cannot say: where ``patches`` goes, and kernels that may be compiled.

The kernels are optional: without a compiler the package is installed without them, and they are
compiled at first use if that can be done then.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from setuptools import Command, Distribution, find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

ROOT = Path(__file__).resolve().parent
AUTOLOAD = "dort_rewriter_autoload"


def load_kernel_build() -> ModuleType:
    """Load the file by its path: the package itself may not be importable here."""
    path = ROOT / "dort_rewriter" / "kernels" / "build.py"
    spec = importlib.util.spec_from_file_location("kernel_build", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


kernel_build = load_kernel_build()


class BuildKernels(Command):
    """Compile the kernels: for all levels of processors, in an editable installation for one."""

    description = "compile the kernels of our own operators, if there is a compiler"
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None:
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    @property
    def folder(self) -> Path:
        if self.editable_mode:
            return kernel_build.BUILT
        return Path(self.build_lib) / kernel_build.BUILT.relative_to(ROOT)

    def run(self) -> None:
        compiler = kernel_build.find_compiler(os.environ.get("CXX", ""))
        levels = kernel_build.supported_levels()[:1]
        if not self.editable_mode:
            levels = kernel_build.processor_levels(kernel_build.platform.machine())
        why = kernel_build.excuse()
        if why or compiler is None:
            no_compiler = "there is no C++ compiler: the kernels are compiled at first use"
            self.warn(why or no_compiler)
            shutil.rmtree(self.folder, ignore_errors=True)  # CXX=none makes a wheel without them
        elif not all(kernel_build.find_installed(self.folder, level) for level in levels):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.compile(compiler, levels)
        if self.editable_mode:  # a copy that outlives the folder of the sources
            install = self.get_finalized_command("install")
            self.copy_file(str(ROOT / f"{AUTOLOAD}.py"), install.install_lib)

    def compile(self, compiler: Sequence[str], levels: Sequence[object]) -> None:
        """Compile at the same time; what fails is said, and left out."""
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as pool:
            made = Path(name)
            failures = list(pool.map(lambda level: self.attempt(compiler, level, made), levels))
            kept = [level for level, why in zip(levels, failures, strict=True) if not why]
            for why in filter(None, failures):
                self.warn(f"the kernels are compiled at first use: {why}")
            if not kept:
                return
            kernel_build.record(made, kept)
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(made.iterdir(), reverse=True):  # the record comes last
                shutil.copyfile(path, self.folder / path.name)

    def attempt(self, compiler: Sequence[str], level: object, folder: Path) -> str:
        """Compile the library of a level; return why it could not be done."""
        target = folder / kernel_build.library_name(level)
        command = kernel_build.command(compiler, level, target)
        try:
            done = subprocess.run(command, capture_output=True, timeout=kernel_build.TIME_LIMIT)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode == 0 and target.exists():
            return ""
        said = done.stderr.decode(errors="replace").strip()[-2000:]
        return said or f"{compiler[0]} made no library and said nothing"

    def get_source_files(self) -> list[str]:
        sources = [*kernel_build.sources(), Path(kernel_build.__file__)]
        return [path.relative_to(ROOT).as_posix() for path in sources]

    def get_outputs(self) -> list[str]:
        return [str(path) for path in sorted(self.folder.glob("*"))]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class Build(build):
    """The usual build, then the kernels."""

    sub_commands: ClassVar = [*build.sub_commands, ("build_kernels", None)]

    def run(self) -> None:
        """Begin with the compiled kernels alone: setuptools keeps modules that are gone."""
        kept = Path(self.build_lib) / kernel_build.BUILT.relative_to(ROOT)
        for path in Path(self.build_lib).glob("dort_rewriter*"):
            for found in (path, *path.rglob("*")):
                if found.is_file() and found.parent != kept:
                    found.unlink()
        super().run()


class MaybeCompiled(Distribution):
    """What setuptools asks whether files are for one platform: known once they are built."""

    has_kernels = False

    def has_ext_modules(self) -> bool:
        return self.has_kernels


class PlatformWheel(bdist_wheel):
    """A wheel for one platform and all versions of Python if the kernels are in it."""

    def run(self) -> None:
        self.run_command("build")
        self.distribution.has_kernels = bool(
            self.get_finalized_command("build_kernels").get_outputs()
        )
        self.root_is_pure = not self.distribution.has_kernels
        shutil.rmtree(self.bdist_dir, ignore_errors=True)  # of a build that was interrupted
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        interpreter, abi, platform = super().get_tag()
        return (interpreter, abi, platform) if self.root_is_pure else ("py3", "none", platform)


setup(
    distclass=MaybeCompiled,
    packages=[*find_packages(include=["dort_rewriter*"]), "dort_rewriter.patches"],
    package_dir={"dort_rewriter.patches": "patches"},
    py_modules=[AUTOLOAD],
    include_package_data=False,  # what is data is listed here
    package_data={
        "dort_rewriter": [
            "py.typed",
            "capture/taken_types.txt",
            "kernels/cpp/*",
            "kernels/cpp/operators/*",
        ],
        "dort_rewriter.patches": ["*/*.diff"],
    },
    cmdclass={"build": Build, "build_kernels": BuildKernels, "bdist_wheel": PlatformWheel},
)
