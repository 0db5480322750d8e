"""What operators declare: a table that is the library's, and lists that are derived of it."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
from pathlib import Path
from typing import Any

from dort_rewriter.kernels.loading import custom_ops_library
from dort_rewriter.kernels.operators import (
    OPERATORS,
    TORCH_FLASH,
    TORCH_KERNELS,
    Operator,
    own_roots,
)
from dort_rewriter.kernels.table import TABLE

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("operator_table", SCRIPTS / "operator_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_what_the_library_declares() -> None:
    """Else ``python scripts/operator_table.py`` writes it."""
    assert script().declared(Path(custom_ops_library())) == list(TABLE)


def test_the_table_leaves_out_what_an_operator_has_by_default() -> None:
    defaults = {f.name: f.default for f in dataclasses.fields(Operator)}
    assert {k: v for k, v in defaults.items() if v is not dataclasses.MISSING} == script().DEFAULTS


def test_names_that_the_package_uses_are_declared() -> None:
    assert {TORCH_FLASH, "MklProduct", "MklAttentionGrad", "TorchCall"} <= set(OPERATORS)
    assert {"mm", "bmm", "addmm", "baddbmm", "convolution", TORCH_FLASH} <= TORCH_KERNELS
    assert own_roots({"b", "a"}) == ("dort_rewriter::a", "dort_rewriter::b")


def test_a_library_has_each_operator_once() -> None:
    ask = ctypes.CDLL(custom_ops_library()).declared_operators
    ask.restype = ctypes.c_char_p
    assert ask().count(b'"name"') == len(OPERATORS) == len(TABLE)
