"""A folder about a graph that went wrong: what someone else needs to see the same.

::

    folder/graph.txt       the FX graph, with the Python lines it comes from
    folder/model.onnx      the model, if there is one
    folder/test_case_0/    the arguments (runtime/stored_inputs.py)
    folder/reproduce.py    runs the graph in torch and through ONNX Runtime, and compares
    folder/problem.json    what happened, the options, the versions

NOTE: nothing is pickled: the arguments are read as data, the script is there to be read first.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import platform
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

from dort_rewriter import env
from dort_rewriter.aten import hint_of
from dort_rewriter.compiler.minifier import OptionWriter
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.model_files import write_model
from dort_rewriter.runtime.stored_inputs import describe_inputs, store_case

if TYPE_CHECKING:
    from dort_rewriter.plan.recipe import ExportedBlock

logger = logging.getLogger(__name__)

FOLDER = "dort_reports"
"""Where folders go when the environment does not say it, below the current one."""


def report_when_asked(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any] | None,
    options: OrtBackendOptions,
    problem: str,
) -> None:
    """Write about a graph that falls back, if ``DORT_REPORT_DIR`` is set."""
    if env.read("DORT_REPORT_DIR"):
        report_problem(graph_module, args, options, problem)


def report_problem(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any] | None,
    options: OrtBackendOptions,
    problem: str,
    block: ExportedBlock | None = None,
) -> Path | None:
    """Write a folder about a graph and return it; None, with a warning, if that fails.

    It appears complete or not at all.
    """
    place = Path(env.read("DORT_REPORT_DIR") or FOLDER)
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".problem-", dir=place) as around:
            staged = Path(around) / "problem"
            staged.mkdir(mode=0o700)
            with unset_fake_temporarily():  # AOTAutograd compiles under it
                _write(staged, graph_module, args, options, problem, block)
            folder = place / f"problem_{Path(around).name.removeprefix('.problem-')}"
            staged.rename(folder)
    except Exception as error:  # the graph is strange already, and the program is to go on
        logger.warning("The report of a problem cannot be written to %s: %s", place, error)
        _unwritten.append(problem)
        return None
    logger.warning("What happened is written to %s: reproduce.py there runs it again.", folder)
    return folder


_unwritten: list[str] = []


def unwritten() -> tuple[str, ...]:
    """The problems of this process that could not be written about, the oldest first."""
    return tuple(_unwritten)


def _write(
    folder: Path,
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any] | None,
    options: OrtBackendOptions,
    problem: str,
    block: ExportedBlock | None,
) -> None:
    (folder / "graph.txt").write_text(f"{graph_module.graph}\n", encoding="utf-8")
    text = json.dumps({"problem": problem, **_versions(), "options": repr(options)}, indent=1)
    (folder / "problem.json").write_text(text, encoding="utf-8")
    if block is not None:
        write_model(block.model, folder / "model.onnx")
    if args is None or any(isinstance(a, FakeTensor) for a in args):
        args = list(_examples(graph_module))
    given = [_without_symbols(a) for a in args]
    tensors = dict(_tensors_of(graph_module))
    (folder / "reproduce.py").write_text(
        _script(graph_module, given, options, problem), encoding="utf-8"
    )
    store_case(describe_inputs([*given, tensors]), folder / "test_case_0")


def _versions() -> dict[str, str]:
    """The versions that a problem may depend on."""
    found = {"python": platform.python_version(), "machine": platform.platform()}
    names = ("dort-rewriter", "torch", "onnx", "onnx-ir", "onnxscript", "numpy")
    runtimes = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-training")
    for name in (*names, *runtimes):
        if version := next((d.version for d in importlib.metadata.distributions(name=name)), None):
            found[name] = version
    return found


def _examples(graph_module: torch.fx.GraphModule) -> Iterator[Any]:
    """Yield arguments like those that a graph was traced for: their values are not known."""
    for node in graph_module.graph.nodes:
        if node.op != "placeholder":
            continue
        value = node.meta.get("val", node.meta.get("example_value"))
        if not isinstance(value, torch.Tensor):
            yield value
            continue
        sizes = [hint_of(d, counted=1) for d in value.shape]
        yield torch.ones(sizes, dtype=value.dtype)


def _without_symbols(value: Any) -> Any:
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.hint
    return value.detach() if isinstance(value, torch.Tensor) else value


def _tensors_of(graph_module: torch.fx.GraphModule, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors that a graph and the graphs inside it hold, by their path."""
    for node in graph_module.graph.nodes:
        if node.op != "get_attr":
            continue
        value: Any = graph_module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        path = f"{prefix}{node.target}"
        if isinstance(value, torch.Tensor):
            yield path, value.detach()
        elif isinstance(value, torch.fx.GraphModule):
            yield from _tensors_of(value, f"{path}.")


# -- the script -------------------------------------------------------------------------------

_SCRIPT = '''"""Run a graph in torch and through ONNX Runtime, and compare.

{problem}
"""

import os
from pathlib import Path

os.environ.setdefault("ONNXRT_CHANGE_REWRITER", "1")

import torch
from torch import device, inf, nan  # noqa: F401  # the graph may name them

import dort_rewriter

{classes}

def strided(value, stride):
    """Give a tensor the strides it had."""
    if not isinstance(value, torch.Tensor) or stride is None:
        return value
    sizes = [1 if step == 0 else size for size, step in zip(value.shape, stride, strict=True)]
    whole = value[tuple(slice(size) for size in sizes)]
    return torch.empty_strided(sizes, stride, dtype=value.dtype).copy_(whole).expand(value.shape)


*given, held = dort_rewriter.replay_dumped_data(Path(__file__).parent).inputs
STRIDES = {strides}
module = Graph()
for path, value in held.items():
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, value)


def run(function):
    with torch.no_grad():
        results = function(*[strided(v, s) for v, s in zip(given, STRIDES, strict=True)])
    return list(results) if isinstance(results, tuple | list) else [results]


expected = run(module)
compiled = torch.compile(module, backend="onnxrt", dynamic=False, options={options})
torch.testing.assert_close(run(compiled), expected, equal_nan=True)
print("Both ways give the same.")
'''


def _script(
    graph_module: torch.fx.GraphModule,
    args: Sequence[Any],
    options: OrtBackendOptions,
    problem: str,
) -> str:
    plain = dataclasses.replace(options, verify=False, fallback=False)
    strides = [list(a.stride()) if isinstance(a, torch.Tensor) else None for a in args]
    return _SCRIPT.format(
        problem=problem.replace("\\", "/").replace('"', "'"),
        classes="\n\n".join(_classes(graph_module, "Graph")) + "\n",
        strides=strides,
        options=OptionWriter(functions=False).changed(plain),
    )


def _classes(graph_module: torch.fx.GraphModule, name: str) -> Iterator[str]:
    """Yield the source of a graph as a class, those of the graphs inside it before."""
    parts = []
    for field, child in graph_module.named_children():
        if isinstance(child, torch.fx.GraphModule):
            yield from _classes(child, f"{name}_{field}")
            parts.append(f"        self.{field} = {name}_{field}()")
    body = [f"    {line}" if line else "" for line in graph_module.code.strip().splitlines()]
    start = ["    def __init__(self):", "        super().__init__()", *parts, ""]
    yield "\n".join([f"class {name}(torch.nn.Module):", *start, *body])
