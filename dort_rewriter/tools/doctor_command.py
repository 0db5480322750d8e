"""``dort-rewriter doctor``: what is installed, what is wrong, and how to fix it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dort_rewriter.tools.command import answer, make_parser
from dort_rewriter.tools.doctor import Finding, examine

__all__ = ["run_doctor"]


def run_doctor(arguments: Sequence[str]) -> int:
    """Print the findings; 1 if one of them is a problem."""
    parser = make_parser(
        "doctor",
        "Look at the versions, the flavours of onnxruntime, its providers, the hook and the\n"
        "environment, then train a small model for a step and compare it with eager mode.\n"
        "Ends with 1 if there is a problem; each comes with the line that fixes it.",
    )
    parser.add_argument("--no-trial", action="store_true", help="do not train anything")
    options = parser.parse_args(arguments)
    findings = list(examine(trial=not options.no_trial))
    problems = sum(finding.state == "problem" for finding in findings)
    lines = [line for finding in findings for line in _lines(finding)]
    lines.append(f"{problems} problem(s)." if problems else "No problem found.")
    data = {"problems": problems, "findings": [dataclasses.asdict(f) for f in findings]}
    answer(options.json, data, "\n".join(lines))
    return int(problems > 0)


def _lines(finding: Finding) -> list[str]:
    lines = [f"{finding.state:<8} {finding.subject}: {finding.text}"]
    if finding.fix:
        lines.append(f"{'':<8} fix: {finding.fix}")
    return lines
