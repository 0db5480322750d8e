"""Each defect is in the torch that is said to have it: what was fixed can be deleted here."""

from __future__ import annotations

import importlib
import pkgutil
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch
from packaging.version import Version

from dort_rewriter import torch_defects
from dort_rewriter.torch_defects.defect import Defect

SERIES = "{}.{}".format(*Version(torch.__version__).release)
REPORTS = Path(torch_defects.__path__[0]) / "reports"
TESTED = ("2.8", "2.13")
MODULES = [
    module
    for found in pkgutil.iter_modules(torch_defects.__path__)
    if hasattr(
        module := importlib.import_module(f"{torch_defects.__name__}.{found.name}"), "DEFECT"
    )
]


@pytest.mark.skipif(SERIES not in TESTED, reason="this torch was not asked yet")
@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_defect_is_where_it_was_seen(module: ModuleType) -> None:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, for writes to an expanded tensor
        assert module.present() == (SERIES in module.DEFECT.seen_in)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_a_defect_is_described(module: ModuleType) -> None:
    defect = module.DEFECT
    assert isinstance(defect, Defect)
    assert set(defect.seen_in) <= set(TESTED)
    assert all(vars(defect).values())
    for report in re.findall(r"`reports/(\w+\.md)`", defect.upstream):
        assert (REPORTS / report).is_file()
