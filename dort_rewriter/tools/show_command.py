"""``dort-rewriter show``: a model as text, as counts, as a drawing; what is in a saved one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dort_rewriter.errors import DortError, OptionError
from dort_rewriter.graph.schemas import qualified
from dort_rewriter.tools.command import answer, brief, make_parser
from dort_rewriter.tools.dot import plot_dot
from dort_rewriter.tools.feeds import inputs_from_onnx_model
from dort_rewriter.tools.models import count_nodes, load_model
from dort_rewriter.tools.onnx_text import pretty_onnx, shape_list
from dort_rewriter.tools.saved_text import read_saved


def run_show(arguments: Sequence[str]) -> int:
    """Print a model; :class:`OptionError` when there is none to read."""
    parser = make_parser(
        "show",
        "Print an ONNX model: its inputs, one line for each node, its outputs. Of a folder that\n"
        "dort_rewriter.save wrote: versions, arguments, model and weights.",
        "examples:\n"
        "  dort-rewriter show model.onnx --source        with the Python line of each node\n"
        "  dort-rewriter show model.onnx --count         nodes by type\n"
        "  dort-rewriter show model.onnx --draw model.svg\n"
        "  dort-rewriter show FOLDER                     what dort_rewriter.save wrote",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="MODEL.onnx, or the folder of a saved model"
    )
    parser.add_argument("--count", action="store_true", help="print the number of nodes by type")
    parser.add_argument("--source", action="store_true", help="end each node with its Python line")
    parser.add_argument(
        "--draw", metavar="FILE", help="also draw it, to .svg, .dot or .png (with graphviz)"
    )
    options = parser.parse_args(arguments)
    path = options.model
    if Path(path).is_dir():
        saved = read_saved(Path(path))
        if not (options.count or options.source or options.draw):
            answer(options.json, saved.to_dict(), str(saved))
            return 0
        if saved.model is None:
            raise OptionError(f"{path} holds no ONNX model: its calls compute nothing.")
        path = saved.model
    model = load_model(path)
    try:
        if options.draw:
            plot_dot(model).save(options.draw)
        if options.count:
            text = _counts_text(count_nodes(model))
        else:
            text = "" if options.json else pretty_onnx(model, source=options.source)
        summary = summarize(model)
    except DortError:  # a drawing is not written
        raise
    # A model that protobuf reads may still be none: no attribute of its type, no such input.
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise OptionError(f"{options.model!r} is a damaged model: {brief(error)}.") from error
    answer(options.json, summary, text)
    return 0


def _counts_text(counts: Mapping[str, int]) -> str:
    width = max((len(name) for name in counts), default=0)
    return "\n".join(f"{name:<{width}} {count:>5}" for name, count in counts.items())


def summarize(model: ir.Model) -> dict[str, Any]:
    """What a program asks of a model first."""
    counts = count_nodes(model)
    weights = [v.const_value for v in model.graph.initializers.values() if v.const_value]
    return {
        "ir_version": model.ir_version,
        "opsets": dict(model.opset_imports),
        "inputs": [
            {
                "name": i.name,
                "type": i.type.name if i.type is not None else None,
                "shape": list(i.shape) if i.shape is not None else None,
            }
            for i in inputs_from_onnx_model(model)
        ],
        "outputs": [
            {
                "name": v.name,
                "type": v.dtype.name if v.dtype is not None else None,
                "shape": shape_list(v.shape) if v.shape is not None else None,
            }
            for v in model.graph.outputs
        ],
        "initializers": len(model.graph.initializers),
        "initializer_bytes": sum(tensor.nbytes for tensor in weights),
        "functions": [qualified(f.domain, f.name) for f in model.functions.values()],
        "nodes": sum(counts.values()),
        "nodes_by_type": counts,
    }
