"""``dort-rewriter compare``: a model through several exporters, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from dort_rewriter.tools.command import answer, list_of, make_parser
from dort_rewriter.tools.comparison import EXPORTERS, MEANING, compare_exporters
from dort_rewriter.tools.model_source import HELP, load_pair
from dort_rewriter.tools.other_runtimes import RUNTIMES

__all__ = ["run_compare"]


def run_compare(arguments: Sequence[str]) -> int:
    """Print the comparison; 1 when this package's model fails or is not what eager computes."""
    parser = make_parser(
        "compare",
        "Export a model with several exporters: nodes by type, differences to eager mode, times\n"
        "of the export and of a run. Ends with 1 if the model of this package fails, or\n"
        "differs.\n\n"
        f"exporters:\n{list_of(MEANING)}",
        "examples:\n"
        "  dort-rewriter compare model.py:make_model\n"
        "  dort-rewriter compare package.models:small --html comparison.html --repeat 50",
    )
    parser.add_argument("model", metavar="MODEL", help=HELP)
    parser.add_argument(
        "--exporters",
        nargs="+",
        choices=EXPORTERS,
        default=list(EXPORTERS),
        metavar="NAME",
        help="those to compare, of the above (default: all)",
    )
    parser.add_argument(
        "--runtimes",
        nargs="+",
        choices=RUNTIMES,
        default=[],
        metavar="NAME",
        help=f"run the files by these too: {', '.join(RUNTIMES)}",
    )
    parser.add_argument(
        "--opset", type=int, default=18, metavar="N", help="of the models (default: %(default)s)"
    )
    parser.add_argument(
        "--repeat",
        type=int,
        default=10,
        metavar="N",
        help="runs of each model that are timed (default: %(default)s)",
    )
    parser.add_argument("--html", metavar="FILE", help="also write it as a page of HTML")
    options = parser.parse_args(arguments)
    model, args = load_pair(options.model)
    found = compare_exporters(
        model,
        args,
        exporters=options.exporters,
        runtimes=options.runtimes,
        target_opset=options.opset,
        repeat=options.repeat,
    )
    if options.html:
        found.save_html(options.html)
    answer(options.json, found.to_dict(), str(found))
    ours = [r for r in found.results if r.exporter == "dort_rewriter"]
    return int(any(not r.agrees for r in ours))
