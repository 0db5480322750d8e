"""``dort-rewriter compare``: a model through several exporters, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from dort_rewriter.tools.command import answer, make_parser
from dort_rewriter.tools.comparison import EXPORTERS, compare_exporters
from dort_rewriter.tools.model_source import HELP, load_pair

__all__ = ["run_compare"]


def run_compare(arguments: Sequence[str]) -> int:
    """Print the comparison; 1 when this package's model fails or is not what eager computes."""
    parser = make_parser(
        "compare",
        "Export a model with torch's exporter, with torchlib alone and with this package: nodes\n"
        "by type, differences to eager, times.",
        "examples:\n"
        "  dort-rewriter compare model.py:make_model\n"
        "  dort-rewriter compare package.models:small --html comparison.html --repeat 50",
    )
    parser.add_argument("model", metavar="MODEL", help=HELP)
    parser.add_argument(
        "--exporters", nargs="+", choices=EXPORTERS, default=list(EXPORTERS), metavar="NAME"
    )
    parser.add_argument("--opset", type=int, default=18, metavar="N")
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="runs of each model")
    parser.add_argument("--html", metavar="FILE", help="also write a page")
    options = parser.parse_args(arguments)
    model, args = load_pair(options.model)
    found = compare_exporters(
        model,
        args,
        exporters=options.exporters,
        target_opset=options.opset,
        repeat=options.repeat,
    )
    if options.html:
        found.save_html(options.html)
    answer(options.json, found.to_dict(), str(found))
    ours = [r for r in found.results if r.exporter == "dort_rewriter"]
    return int(any(not r.agrees for r in ours))
