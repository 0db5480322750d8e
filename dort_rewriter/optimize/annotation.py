"""Write down the shapes that are not known yet, once, before rules ask for them."""

from __future__ import annotations

import onnx_ir as ir

from dort_rewriter.graph.shapes import Dim, broadcast, infer_shape, missing_size
from dort_rewriter.optimize.view import GraphView

__all__ = ["refine_shapes"]


def refine_shapes(graph: GraphView) -> None:
    """Complete the shape of each first result, the sizes that shapes computed at run time hold
    included; what is known stays."""
    for node in graph.graph:
        if node.op_type == "Cast":
            _complete_source(node)
        if node.domain or "axes" in node.attributes:  # axes are inputs where infer_shape knows
            continue
        result = node.outputs[0]
        if result.shape is not None and all(_is_known(d) for d in result.shape):
            continue
        attributes = {k: v.value for k, v in node.attributes.items()}
        dims = _follow_target(node, graph)
        if dims is None:
            dims = infer_shape(node.op_type, node.inputs, attributes)
        if dims is None or (result.shape is not None and len(result.shape) != len(dims)):
            continue
        if result.shape is not None:
            dims = tuple(a if _is_known(a) else b for a, b in zip(result.shape, dims, strict=True))
        result.shape = ir.Shape(dims)


def _complete_source(cast: ir.Node) -> None:
    """What is cast has the shape of the result: results of our own kernels may have none."""
    source, result = cast.inputs[0], cast.outputs[0]
    if source is not None and source.shape is None and result.shape is not None:
        source.shape = result.shape


def _is_known(dim: Dim) -> bool:
    """NOTE: the shape inference of ONNX gives names to the sizes it does not know."""
    return isinstance(dim, int) or not (dim.value or "unk__").startswith("unk__")


def _follow_target(node: ir.Node, graph: GraphView) -> tuple[Dim, ...] | None:
    """The shape of a result that is told by an input, symbols and all."""
    if node.op_type == "ConstantOfShape":
        return graph.sizes(node.inputs[0])
    if node.op_type not in ("Expand", "Reshape") or node.attributes:
        return None
    source, target = graph.dims(node.inputs[0]), graph.sizes(node.inputs[1])
    if source is None or target is None:
        return None
    if node.op_type == "Expand":
        return broadcast([source, target])
    dims = [source[i] if d == 0 and i < len(source) else d for i, d in enumerate(target)]
    if -1 in dims:
        at = dims.index(-1)
        dims[at] = missing_size(source, dims[:at] + dims[at + 1 :])
    return tuple(dims)
