"""What can be wrong with an installation, and the line that fixes it.

Each check is a function of plain facts, so that every answer can be tested anywhere;
:func:`examine` collects the facts of this machine.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dort_rewriter import env
from dort_rewriter.compiler.model_key import installed_version
from dort_rewriter.errors import DortError
from dort_rewriter.files import cache_folder, private_folder, why_not_private
from dort_rewriter.hook.report import HookStatus, status
from dort_rewriter.hook.versions import ships_backend
from dort_rewriter.kernels.build import COMPILER, excuse, features, find_compiler, supported_levels
from dort_rewriter.kernels.library import installed_library, kernel_library
from dort_rewriter.tools.command import answer, brief, make_parser
from dort_rewriter.tools.machine import (
    Finding,
    check_plugins,
    check_processor,
    check_threads,
    note,
    ok,
    plugins,
    problem,
)

DISTRIBUTION = "dort-rewriter"
TRAINING, GPU = "onnxruntime-training", "onnxruntime-gpu"
TELEMETRY = "ORT_DISABLE_TELEMETRY"
REINSTALL = "pip install --force-reinstall --no-deps dort-rewriter"


def examine(trial: bool = True) -> Iterator[Finding]:
    """Yield what is found on this machine; with ``trial``, train a small model at the end."""
    yield ok("python", platform.python_version())
    yield from check_requirements(_requirements(), installed_version)
    report = status()
    flavours = [name.split()[0] for name in report.onnxruntime]
    yield from check_flavours(flavours)
    torch, failure = _import("torch")
    if torch is None:
        yield problem("torch", f"cannot be imported: {failure}", "pip install torch")
        return
    if flavours:  # without one, everything below that needs it says the same again
        mode = env.read(TELEMETRY) if env.is_set(TELEMETRY) else ""
        yield from check_telemetry(installed_version(flavours[0]), mode)
        yield from check_onnxruntime(
            torch.cuda.is_available(), installed_version("numpy"), flavours
        )
        yield from check_plugins(plugins())
    importlib.import_module("torch.onnx")  # where the hook has its work
    yield from check_hook(status())
    dynamo = importlib.import_module("torch._dynamo")
    yield from check_backend_name(dynamo.list_backends(exclude_tags=()))
    yield from check_dump_path(env.read("ONNXRT_DUMP_PATH"))
    yield from check_package(Path(__file__).resolve().parents[1])
    yield check_cache(cache_folder)
    yield check_compiler(env.read("CXX"))
    compile_now = kernel_library if trial else None
    yield check_kernels(installed_library(), compile_now, compiler=env.read("CXX"))
    yield from _machine(torch)
    yield check_graphviz(shutil.which("dot"))
    if trial and flavours:
        yield check_training(train_a_little)


def _machine(torch: Any) -> Iterator[Finding]:
    from dort_rewriter.kernels.torch_library import multiplies_bfloat16
    from dort_rewriter.runtime.threads import usable_cores

    yield from check_processor(
        [level.name for level in supported_levels()],
        installed_library(),
        torch.backends.cpu.get_cpu_capability(),
        features(),
        multiplies_bfloat16(),
    )
    yield check_threads(torch.get_num_threads(), usable_cores(), os.cpu_count() or 1)


def check_requirements(
    requirements: Sequence[str] | None, version_of: Callable[[str], str | None]
) -> Iterator[Finding]:
    """Compare the versions of the packages with what the package asks for."""
    if requirements is None:
        text = "is used without being installed: torch cannot find its backend by name"
        yield problem(DISTRIBUTION, text, "pip install -e .")
        return
    for requirement in requirements:
        match = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement.replace(" ", ""))
        if match is None:  # an extra, or a condition
            continue
        name, lowest = match.groups()
        found = version_of(name)
        fix = f"pip install --upgrade '{name}>={lowest}'"
        if not found:
            yield problem(name, "is not installed", fix)
        elif _numbers(found) < _numbers(lowest):
            yield problem(name, f"{found} is older than {lowest}", fix)
        else:
            yield ok(name, found)


def check_flavours(names: Sequence[str]) -> Iterator[Finding]:
    """Find the distributions of onnxruntime, which overwrite each other's files."""
    if not names:
        yield problem("onnxruntime", "is not installed", 'pip install "dort-rewriter[cpu]"')
    elif len(names) > 1:
        text = f"{' and '.join(names)} are installed over each other: parts of each are lost"
        fix = f'pip uninstall -y {" ".join(names)} && pip install "dort-rewriter[{_extra(names)}]"'
        yield problem("onnxruntime", text, fix)


def _extra(names: Sequence[str]) -> str:
    """The extra to install: what has more in it was installed on purpose."""
    kept = next((n for n in (GPU, TRAINING) if n in names), "")
    return {GPU: "gpu", TRAINING: "training"}.get(kept, "cpu")


def check_onnxruntime(cuda: bool, numpy: str, names: Sequence[str] = ()) -> Iterator[Finding]:
    """Import onnxruntime and look at what it can do; builds for numpy 1 do not load with 2."""
    from dort_rewriter import ort_module
    from dort_rewriter.runtime import providers

    try:
        text = (
            f"{ort_module.describe()}, opset up to {ort_module.max_opset()}, IR version up to "
            f"{ort_module.max_ir_version()}"
        )
    except DortError as error:
        fix = f'pip install --upgrade "dort-rewriter[{_extra(names)}]"'  # it may be too old
        if "numpy" in str(error).lower() and numpy.startswith("2"):
            fix = "pip install 'numpy<2'"
        yield problem("onnxruntime", str(error), fix)
        return
    yield ok("onnxruntime", text)
    yield from check_providers(providers.available(), cuda)


def check_telemetry(version: str, mode: str) -> Iterator[Finding]:
    """Whether onnxruntime may send anything; ``mode`` is what its variable says."""
    if _numbers(version) < (1, 29):
        return
    if mode == "1":
        yield ok("telemetry", f"of onnxruntime is off: {TELEMETRY}=1")
    else:
        text = "of onnxruntime is on where a program imports it before this package does"
        if mode:
            text = f"of onnxruntime is on: {TELEMETRY}={mode}"
        yield note("telemetry", text, f"export {TELEMETRY}=1")


def check_providers(names: Sequence[str], cuda: bool) -> Iterator[Finding]:
    """Compare the execution providers with the devices of torch."""
    if not cuda or "CUDAExecutionProvider" in names:
        yield ok("providers", ", ".join(names))
    else:
        text = f"torch has CUDA, onnxruntime only {', '.join(names)}: models on CUDA do not run"
        fix = 'pip uninstall -y onnxruntime && pip install "dort-rewriter[gpu]"'
        yield problem("providers", text, fix)


def check_hook(report: HookStatus) -> Iterator[Finding]:
    """Look at the hook, and at whether it has anything to do."""
    if report.state == "failed":
        text = f"took itself back: {report.failure}"
        yield problem("hook", text, "pip install --upgrade dort-rewriter")
    elif report.state == "disabled":
        yield note("hook", "DORT_DISABLE=1 keeps the package inert", "unset DORT_DISABLE")
    elif report.state == "not installed":
        yield note("hook", "was uninstalled in this process", "dort_rewriter.install()")
    else:
        yield ok("hook", f"{report.state}, {len(report.applied)} change(s) to torch")
    if report.rewriter:
        yield ok("rewriter", "on: graphs are exported by this package")
    elif report.torch is not None and ships_backend(report.torch):
        text = "off: torch's own exporter runs, which fails with onnxscript 0.4 and newer"
        yield note("rewriter", text, "export ONNXRT_CHANGE_REWRITER=1")
    else:
        text = "off: graphs are exported by onnxscript's torchlib alone"
        yield note("rewriter", text, "unset ONNXRT_CHANGE_REWRITER")


def check_backend_name(names: Sequence[str]) -> Iterator[Finding]:
    """Look for the backend under its name."""
    if "onnxrt" in names:
        yield ok("backend", "torch.compile knows backend='onnxrt'")
    else:
        text = "torch.compile knows no backend='onnxrt': the entry points are not installed"
        yield problem("backend", text, REINSTALL)


def check_dump_path(prefix: str) -> Iterator[Finding]:
    """Look at the variable that makes every graph a file."""
    folder = Path(prefix).parent
    if prefix and folder.is_dir():
        text = f"ONNXRT_DUMP_PATH writes every graph to {prefix}<N>.onnx"
        yield note("dump", text, "unset ONNXRT_DUMP_PATH")
    elif prefix:
        text = f"ONNXRT_DUMP_PATH={prefix} is in a folder that does not exist"
        yield problem("dump", text, f"mkdir -p {folder}")


def check_package(folder: Path) -> Iterator[Finding]:
    """Look at who else can change the code of this package."""
    if reason := why_not_private(folder):
        text = f"{reason}: what is written there runs in every program that imports torch"
        fix = f"chmod -R go-w {folder}  # and the folder named, if it is another"
        yield note("package", text, fix)


def check_cache(choose: Callable[[], Path]) -> Finding:
    """Try to write where models and kernels are kept between processes, and look who else can."""
    try:
        folder = private_folder(choose())
        with tempfile.TemporaryFile(dir=folder):
            return ok("cache", str(folder))
    except OSError as error:
        text = f"no process finds what others made, for its folder is not used: {error}"
        fix = "export DORT_CACHE_DIR=$(mktemp -d)  # or any folder of yours, or correct that one"
        return problem("cache", text, fix)


def check_kernels(
    installed: Path | None, compile_now: Callable[[], Path] | None, *, compiler: str = COMPILER
) -> Finding:
    """Look for the library of our own kernels; without ``compile_now``, do not make it."""
    if installed is not None:
        return ok("kernels", f"installed, {installed.name}")
    if why := excuse():
        return note("kernels", f"{why}, and the patterns 'kernels' apply nothing")
    if compile_now is None:
        if find_compiler(compiler) is not None:
            return ok("kernels", "not installed: they are compiled at first use")
        why = f"there is no C++ compiler {compiler!r}"
    else:
        try:
            return ok("kernels", f"compiled here, {compile_now()}")
        except DortError as error:
            why = str(error)
    text = f"there are none, and the patterns 'kernels' apply nothing: {why}"
    return note("kernels", text, f"{REINSTALL}  # with a C++ compiler at hand")


def check_compiler(name: str) -> Finding:
    """Look for the compiler of kernels that were not installed."""
    if (found := find_compiler(name)) is not None:
        return ok("compiler", " ".join(found))
    return note(
        "compiler",
        f"there is no C++ compiler {name!r}: kernels are there if they were installed, and "
        "Inductor does not work",
        "apt-get install g++  # or set CXX to the one that is installed",
    )


def check_graphviz(program: str | None) -> Finding:
    """Look for what draws models to files."""
    if program is not None:
        return ok("graphviz", program)
    text = "its program `dot` is missing: drawings have a plainer layout, and are no .png"
    return note("graphviz", text, "apt-get install graphviz")


def check_training(train: Callable[[], float]) -> Finding:
    """Train, and say how far the gradients are from those of eager mode."""
    start = time.perf_counter()
    try:
        error = train()
    except Exception as failure:  # torch wraps what a backend raises in types of its own
        fix = "fix the problems above first; then report this with `dort-rewriter doctor --json`"
        return problem("trial", f"a training step failed: {brief(failure)}", fix)
    seconds = time.perf_counter() - start
    if error > 1e-4:
        text = f"a training step gives wrong gradients, off by {error:.1e}"
        return problem("trial", text, 'pip install --upgrade "dort-rewriter[cpu]"')
    return ok("trial", f"a training step matches eager mode ({seconds:.1f} s)")


def train_a_little() -> float:
    """The largest difference of gradients between eager mode and this backend."""
    import copy

    import torch

    from dort_rewriter.backends.onnxrt import make_aot_ort
    from dort_rewriter.compiler.differences import farthest
    from dort_rewriter.tools.training import train_loop

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    twin = copy.deepcopy(model)
    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    backend, _ = make_aot_ort(fallback=False)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    pairs = zip(train_loop(compiled, x), train_loop(twin, x), strict=True)
    return max(farthest(given, expected) for given, expected in pairs)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3])


def _import(name: str) -> tuple[Any, str]:
    try:
        return importlib.import_module(name), ""
    except (ImportError, OSError) as error:  # OSError: a shared library is missing
        return None, str(error)


def _requirements() -> list[str] | None:
    try:
        return importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return None


def run_doctor(arguments: Sequence[str]) -> int:
    """Print the findings; 1 if one of them is a problem."""
    parser = make_parser(
        "doctor",
        "Look at the versions, the flavours of onnxruntime, its providers, the hook and the\n"
        "environment, then train a small model for a step and compare it with eager mode.\n"
        "Ends with 1 if there is a problem; each comes with the line that fixes it.",
    )
    parser.add_argument("--no-trial", action="store_true", help="do not train anything")
    options = parser.parse_args(arguments)
    findings = list(examine(trial=not options.no_trial))
    problems = sum(finding.state == "problem" for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.state:<8} {finding.subject}: {finding.text}")
        lines += [f"{'':<8} fix: {finding.fix}"] if finding.fix else []
    lines.append(f"{problems} problem(s)." if problems else "No problem found.")
    data = {"problems": problems, "findings": [dataclasses.asdict(f) for f in findings]}
    answer(options.json, data, "\n".join(lines))
    return int(problems > 0)
