"""What scripts of torch's minifier call: the ``onnxrt`` backend in place of Inductor's compiler.

``compiler/minifier.py`` writes the call; what the script runs, checks and minifies is compiled by
the backend then, and so are the smaller scripts that it writes.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from dort_rewriter.backends.onnxrt import OrtBackend
from dort_rewriter.capture.interface import complete_metadata
from dort_rewriter.capture.updates import apply_updates, take_updates
from dort_rewriter.compiler.minifier import begin_with, beginning
from dort_rewriter.options import OrtBackendOptions, from_mapping
from dort_rewriter.plan.partition import copy_graph


def stand_in(options: Mapping[str, Any]) -> None:
    """Let torch's minifier compile by the backend with these options, in this process."""
    backend = OrtBackend(options)
    inductor = importlib.import_module("torch._inductor.compile_fx")
    vars(inductor)["compile_fx_inner"] = functools.partial(_compile, backend)
    _hash_without_compiler()
    begin_with(beginning(from_mapping(OrtBackendOptions, options)))


def _hash_without_compiler() -> None:
    """Let torch name the tensors that it writes by their bytes.

    NOTE: by default it compiles a kernel for that, which only Inductor can.
    """
    store = vars(importlib.import_module("torch.utils._content_store"))
    store["hash_storage"] = functools.partial(_hash_bytes, store["hash_storage"])


def _hash_bytes(hash_storage: Callable[..., str], storage: Any, **_: Any) -> str:
    return hash_storage(storage, stable_hash=True)


def _compile(
    backend: OrtBackend, graph_module: torch.fx.GraphModule, args: Sequence[Any], **_: Any
) -> Callable[..., Any]:
    """Compile a graph of ATen operators to what takes the list of its arguments."""
    graph = copy_graph(graph_module)  # torch runs it too
    complete_metadata(graph, args)
    updated = take_updates(graph)
    run = apply_updates(backend.compile(graph, args), updated)
    run._boxed_call = True  # type: ignore[attr-defined]  # read by torch
    return run
