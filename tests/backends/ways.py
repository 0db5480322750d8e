"""How a program reaches the ``onnxrt`` backend on the torch at hand.

torch <= 2.8 has a class of its own under that name, which the hook turns to this package; newer
ones find the backend there. What follows behind is the same: so are the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dort_rewriter import OrtBackend

HAS_ORT_BACKEND = tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 8)
"""Whether torch ships ``OrtBackend``: the hook serves then."""


def compile_strictly(
    function: Callable[..., Any],
    *,
    dynamic: bool | None = False,
    fullgraph: bool = True,
    **options: Any,
) -> tuple[Callable[..., Any], Any]:
    """Compile a function; return it with the backend that serves it.

    What cannot be converted is an error unless ``fallback=True`` is given: nothing may be left to
    torch unseen. The environment is the business of :func:`tests.backends.conftest.onnxrt`.
    """
    chosen = {"fallback": False, **options}
    compiled = torch.compile(
        function, backend="onnxrt", options=chosen, dynamic=dynamic, fullgraph=fullgraph
    )
    return compiled, backend_class().get_cached_instance_for_options(chosen)


def backend_class() -> Any:
    """The class that the name ``onnxrt`` stands for."""
    if not HAS_ORT_BACKEND:
        return OrtBackend
    from torch.onnx._internal.onnxruntime import OrtBackend as TorchBackend

    return TorchBackend


def models(backend: Any) -> list[int]:
    """How many models each graph of a backend became."""
    infos = backend._all_ort_execution_info.execution_info_per_graph_module
    return [len(i) for i in infos.values()]
