"""What happens in a program that only imports torch: nothing heavy, nothing slow, no failure."""

from __future__ import annotations

import re

import pytest
import torch

from dort_rewriter.hook.versions import parse_series
from tests.gates.sources import ROOT
from tests.hook.conftest import HAS_ORT_BACKEND, Program, entry_points

LOADS_ENTRY_POINTS = parse_series(torch.__version__) >= (2, 5)

needs_entry_points = pytest.mark.skipif(
    not LOADS_ENTRY_POINTS, reason="torch loads entry points since 2.5"
)

STATE = "import dort_rewriter; print(dort_rewriter.status().state)"

MODEL = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
x = torch.randn(4, 10, requires_grad=True)
model(x).sum().backward()
expected, x.grad = x.grad, None
torch.compile(model, backend="onnxrt")(x).sum().backward()
torch.testing.assert_close(x.grad, expected)
import torch.onnx
from torch.onnx._internal.onnxruntime import OrtBackend
(backend,) = OrtBackend.get_cached_instances()
print(backend.execution_count)
"""


@needs_entry_points
def test_importing_torch_loads_the_package_and_nothing_heavy(program: Program) -> None:
    code = (
        "import sys, torch\n"
        "assert 'dort_rewriter.hook.autoload' in sys.modules\n"
        "names = 'torch.onnx wrapt onnx onnx_ir onnxscript onnxruntime dort_rewriter.backends'\n"
        "print(*sorted(set(names.split()) & set(sys.modules)))"
    )
    without = program(code.replace("assert", "0 and"), DORT_DISABLE="1")
    assert program(code) == without
    assert not {"torch.onnx", "onnxscript", "onnxruntime"} & set(without.split())


@needs_entry_points
def test_importing_torch_loads_little(program: Program) -> None:
    """Nothing but these files is read, of the package or of the standard library."""
    code = (
        "import os, sys\n"
        "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"
        "import torch\n"
        "from importlib.metadata import entry_points\n"
        "(point,) = [p for p in entry_points(group='torch.backends') if 'dort' in p.value]\n"
        "before = set(sys.modules)\n"
        "point.load()()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    package = ["", ".env", ".forks", ".hook", ".hook.autoload", ".hook.imports"]
    loaded = set(program(code).split()) - {"dort_rewriter_autoload"}
    assert loaded == {f"dort_rewriter{name}" for name in package}


@needs_entry_points
def test_the_hook_waits_for_its_modules(program: Program) -> None:
    assert program(f"import torch; {STATE}") == "waiting"
    assert program(f"import torch.onnx; {STATE}") == "installed"
    left = "import dort_rewriter; print(*dort_rewriter.status().pending)"
    assert program(f"import torch.onnx; {left}").startswith("torch._dynamo.backends.registry.")
    assert program(f"import torch._dynamo; {left}") == ""


GONE = "import sys; sys.modules['dort_rewriter'] = None\n"
BROKEN = "import sys, types; sys.modules['dort_rewriter'] = types.ModuleType('dort_rewriter')\n"


@needs_entry_points
@pytest.mark.parametrize("absence", [GONE, BROKEN], ids=["gone", "broken"])
def test_torch_is_imported_without_the_package(program: Program, absence: str) -> None:
    """What was installed has moved, or metadata were left behind: one line says so."""
    code = (
        "import contextlib, io\n"
        "said = io.StringIO()\n"
        "with contextlib.redirect_stderr(said):\n"
        "    import torch\n"
        "print(torch.ones(2).sum().item(), said.getvalue().strip())"
    )
    total, said = program(absence + code).split(" ", 1)
    assert float(total) == 2
    assert said.startswith("dort-rewriter is installed and cannot be imported (")
    assert said.endswith("Install it again, or `pip uninstall dort-rewriter`.")
    assert len(said.splitlines()) == 1


@needs_entry_points
def test_the_entry_point_stands_beside_the_package() -> None:
    """In it, it would be gone with it."""
    (target,) = re.findall(r"^dort_rewriter = (.*):autoload", entry_points(), re.MULTILINE)
    assert (ROOT / f"{target}.py").is_file()


def test_the_package_hooks_whichever_is_imported_first(program: Program) -> None:
    for code in ("import dort_rewriter, torch.onnx", "import torch.onnx, dort_rewriter"):
        assert program(f"{code}; {STATE}", TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "installed"


@needs_entry_points
def test_torch_is_told_to_load_nothing(program: Program) -> None:
    code = "import sys, torch; print('dort_rewriter' in sys.modules)"
    assert program(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "False"


def test_uninstalled_before_torch_is_imported(program: Program) -> None:
    code = f"import dort_rewriter; dort_rewriter.uninstall(); import torch.onnx; {STATE}"
    assert program(code) == "not installed"


def test_disabled_means_inert(program: Program) -> None:
    watches = "any(type(f).__module__ == 'dort_rewriter.hook.imports' for f in sys.meta_path)"
    code = f"import sys, torch.onnx; {STATE}; assert not {watches}"
    assert program(code, DORT_DISABLE="1") == "disabled"


def test_a_failure_never_breaks_an_import(program: Program) -> None:
    code = (
        "import dort_rewriter.hook.installer as installer\n"
        "def fail(): raise ValueError('on purpose')\n"
        "installer.make_changes = fail\n"
        "import torch, torch.onnx\n"
        "print(torch.onnx.__name__)"
    )
    assert program(code) == "torch.onnx"


def test_a_torch_that_cannot_be_patched_is_left_alone(program: Program) -> None:
    code = (
        "import dataclasses\n"
        "import dort_rewriter.hook.versions as versions\n"
        "versions.PATCHES = tuple(dataclasses.replace(p, attribute='No.thing', absent=None)"
        " for p in versions.PATCHES)\n"
        f"import torch.onnx; {STATE}"
    )
    assert program(code) == "failed"


def test_nothing_is_printed_by_a_program_that_uses_torch_alone(program: Program) -> None:
    assert program("import warnings; warnings.simplefilter('error'); import torch") == ""


def test_the_backend_runs_without_an_import(program: Program) -> None:
    assert program(MODEL, ONNXRT_CHANGE_REWRITER="1") == "2"


@pytest.mark.skipif(HAS_ORT_BACKEND, reason="torch's own backend runs here unless told otherwise")
def test_the_restored_backend_needs_no_variable(program: Program) -> None:
    assert program(MODEL) == "2"


def test_the_name_is_known_to_torch(program: Program) -> None:
    code = "import torch; print('onnxrt' in torch._dynamo.list_backends())"
    assert program(code, DORT_DISABLE="1") == "True"
