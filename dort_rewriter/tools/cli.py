"""The command ``dort-rewriter``: a table of subcommands, each imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from dort_rewriter import __version__
from dort_rewriter.errors import DortError

__all__ = ["COMMANDS", "main"]

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "dort_rewriter.tools.demo_command:run_demo_command",
        "train a small model through ONNX Runtime, beside eager mode and Inductor",
    ),
    "doctor": (
        "dort_rewriter.tools.doctor:run_doctor",
        "say what is wrong with the installation, and the line that fixes it",
    ),
    "compare": (
        "dort_rewriter.tools.comparison:run_compare",
        "export a model in several ways, and compare nodes, numbers and times",
    ),
    "explain": (
        "dort_rewriter.tools.explain:run_explain",
        "say what of a model runs in ONNX Runtime, what in torch, and why",
    ),
    "report": (
        "dort_rewriter.tools.report_command:run_report",
        "run a program, and pack what shows each graph that ONNX Runtime does not run",
    ),
    "show": (
        "dort_rewriter.tools.show_command:run_show",
        "print, count or draw an ONNX model",
    ),
    "bench": (
        "dort_rewriter.tools.benchmark:run_bench",
        "time a model in eager mode, by Inductor and in ONNX Runtime, in inference and training",
    ),
    "patch": (
        "dort_rewriter.tools.hook_command:run_patch",
        "write the hook into torch's own file, or take it out",
    ),
    "status": (
        "dort_rewriter.tools.hook_command:run_status",
        "say what is hooked, in which torch",
    ),
}
"""A name, the function that takes the arguments after it and returns the exit code, one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; 1 when it fails on purpose, 2 when it is called wrongly."""
    summary = "\n".join(f"  {name:<12} {line}" for name, (_, line) in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="dort-rewriter",
        description="Run PyTorch models through ONNX Runtime, and look at what happens.",
        epilog=f"commands:\n{summary}\n\n`dort-rewriter COMMAND --help` explains a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="its arguments")
    options = parser.parse_args(arguments)
    module, _, function = COMMANDS[options.command][0].partition(":")
    try:
        return getattr(importlib.import_module(module), function)(options.rest)
    except DortError as error:
        print(f"dort-rewriter {options.command}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
