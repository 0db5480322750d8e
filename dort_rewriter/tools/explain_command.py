"""``dort-rewriter explain``: the graphs of a model, what runs in ONNX Runtime, what in torch."""

from __future__ import annotations

from collections.abc import Sequence

from dort_rewriter.tools.command import answer, make_parser
from dort_rewriter.tools.explain import explain
from dort_rewriter.tools.model_source import HELP, load_pair

__all__ = ["run_explain"]


def run_explain(arguments: Sequence[str]) -> int:
    """Print what became of a model; 1 with ``--strict`` when anything runs in torch."""
    parser = make_parser(
        "explain",
        "Compile a model for ONNX Runtime, call it once, and print its graphs, where they break\n"
        "and why, and which operators run in torch and why.",
        "examples:\n"
        "  dort-rewriter explain model.py:make_model\n"
        "  dort-rewriter explain model.py:make_model --times\n"
        "  dort-rewriter explain model.py:make_model --passes\n"
        "  dort-rewriter explain package.models:small --dynamic --json",
    )
    parser.add_argument("model", metavar="MODEL", help=HELP)
    parser.add_argument("--dynamic", action="store_true", help="compile with symbolic sizes")
    parser.add_argument("--times", action="store_true", help="also say where the time goes")
    parser.add_argument(
        "--passes",
        action="store_true",
        help="also say what was done to each graph before it was exported, in order",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 when a graph breaks or torch runs any"
    )
    options = parser.parse_args(arguments)
    model, args = load_pair(options.model)
    compile_options = {"dynamic": True} if options.dynamic else None
    found = explain(model, *args, times=options.times, compile_options=compile_options)
    text = f"{found}\n{found.describe_passes()}" if options.passes else str(found)
    answer(options.json, found.to_dict(), text)
    torchs = found.in_torch or any(a.torch_kernels for g in found.graphs for a in g.lowered)
    return int(options.strict and bool(found.breaks or torchs or found.skipped))
