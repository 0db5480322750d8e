"""A program that writes all that the package writes, until somebody kills it.

usage: python -m tests.backends.lifetime.killed_while_writing FOLDER
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from dort_rewriter.compiler.problem_report import report_problem
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.runtime.disk_cache import DiskCache
from dort_rewriter.runtime.model_files import dump_graph

__all__ = ["CACHE", "CONTENT", "DUMP", "REPORTS"]

CONTENT = bytes(range(256)) * 2**13
CACHE, DUMP, REPORTS = "cache", "dump_", "reports"


def write(folder: Path) -> None:
    os.environ["DORT_REPORT_DIR"] = str(folder / REPORTS)
    cache = DiskCache(folder / CACHE)
    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    given = (graph, [torch.zeros(2**16)], OrtBackendOptions(), "a problem")
    number = 0
    while True:
        cache.put(f"{number % 5:064x}", CONTENT)
        dump_graph(CONTENT, "graph", f"{folder / DUMP}{number % 5}_")
        report_problem(*given)
        if not number:
            print("writing", flush=True)
        number += 1


if __name__ == "__main__":
    write(Path(sys.argv[1]))
