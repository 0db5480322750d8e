"""The inputs of a graph under construction: which of them are read."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["drop_unused_inputs"]


def drop_unused_inputs(graph: ir.Graph) -> None:
    """Remove the inputs of which neither the numbers nor the sizes are read.

    One that lies in memory in another order is read through a Transpose.
    """
    for value in list(graph.inputs):
        for reader in {use.node for use in value.uses()}:
            if reader.op_type == "Transpose" and not _is_read(reader.outputs[0]):
                graph.remove(reader, safe=True)
        if not _is_read(value):
            graph.inputs.remove(value)


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
