"""What a backend keeps of each compiled graph, in the dictionary a user hands to it."""

from __future__ import annotations

from typing import Any

import torch

from dort_rewriter.plan.recipe import BuiltBlock, RunBoxed
from dort_rewriter.runtime.model_files import to_proto


class StorageKeeper:
    """Fills ``storage["instance"]``, one dictionary for each graph that runs in ONNX Runtime.

    =================== ======================================================================
    ``graph_module``    the graph of ATen operators
    ``onnx``            the model, as the session got it
    ``builder``         the exported graph: the model in memory, and its signature
    ``sess``            the ``onnxruntime.InferenceSession``; None when there is nothing to compute
    ``providers``       the names of its execution providers
    ``placement``       for each of them, its nodes by type, as the session tells; None where it
                        has the CPU alone, or onnxruntime does not tell
    ``is_dimension_in`` for each argument, whether it is a size rather than a tensor
    ``is_dimension_out`` for each result, the same
    ``inputs``          the arguments of the first run, in a list of one tuple (copies)
    ``outputs``         the results of the first run, in a list of one tuple
    =================== ======================================================================
    """

    def __init__(self, storage: dict[str, Any]) -> None:
        self.instances: list[dict[str, Any]] = storage.setdefault("instance", [])

    def keep(self, built: BuiltBlock) -> None:
        """Add a graph."""
        self.instances.append(
            {
                "graph_module": built.graph_module,
                "onnx": built.proto or to_proto(built.exported.model),
                "builder": built.exported,
                "sess": _session(built),
                "providers": _providers(built),
                "placement": None if built.session is None else built.session.placement,
                "is_dimension_in": tuple(s.kind == "int" for s in built.signature.inputs),
                "is_dimension_out": tuple(s.kind == "int" for s in built.signature.outputs),
                "inputs": [],
                "outputs": [],
            }
        )

    def watch(self, graph_module: torch.fx.GraphModule, run: RunBoxed) -> RunBoxed:
        """Keep what the first run takes and gives."""
        kept = next(i for i in reversed(self.instances) if i["graph_module"] is graph_module)

        def call(args: list[Any]) -> Any:
            if kept["inputs"]:
                return run(args)
            # NOTE: copies, since an optimizer changes parameters in place after the step.
            kept["inputs"].append(tuple(_copy(a) for a in args))
            results = run(args)
            kept["outputs"].append(tuple(_detach(r) for r in results))
            return results

        return call


def _session(built: BuiltBlock) -> Any:
    if built.session is not None:
        return built.session.ort
    return getattr(built.runner, "model", None)


def _providers(built: BuiltBlock) -> list[str]:
    if built.session is not None:
        return [p.name for p in built.session.providers]
    provider = getattr(built.runner, "provider", None)
    return [] if provider is None else [provider]


def _detach(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value
