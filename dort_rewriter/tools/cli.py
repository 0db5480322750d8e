"""The command ``dort-rewriter``: a table of subcommands, each imported when it is called."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence

from dort_rewriter import __version__
from dort_rewriter.errors import DortError

COMMANDS = {
    "demo": "train a small model through ONNX Runtime, beside eager mode and Inductor",
    "doctor": "say what is wrong with the installation, and the line that fixes it",
    "compare": "export a model in several ways, and compare nodes, numbers and times",
    "explain": "say what of a model runs in ONNX Runtime, what in torch, and why",
    "report": "run a program, and pack what shows each graph that fails in ONNX Runtime",
    "show": "print, count or draw an ONNX model",
    "bench": "time a model in eager mode, by Inductor and by ONNX Runtime, forward and backward",
    "patch": "write the hook into torch's own file, or take it out",
    "status": "say what is hooked, in which torch",
}

_MODULES = {
    "demo": "demo_command",
    "compare": "comparison",
    "report": "report_command",
    "show": "show_command",
    "bench": "benchmark",
    "patch": "hook_command",
    "status": "hook_command",
}
"""The modules with other names than their commands. Each command is a function, as ``run_show``,
that takes the arguments after the name and returns the exit code."""


def find_command(name: str) -> Callable[[Sequence[str]], int]:
    """The function of a command, whose module is imported."""
    module = importlib.import_module(f"dort_rewriter.tools.{_MODULES.get(name, name)}")
    found: Callable[[Sequence[str]], int] = getattr(module, f"run_{name}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand; 1 when it fails on purpose, 2 when it is called wrongly."""
    summary = "\n".join(f"  {name:<12} {line}" for name, line in COMMANDS.items())
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
    name: str = options.command
    try:
        return find_command(name)(options.rest)
    except DortError as error:
        print(f"dort-rewriter {name}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
