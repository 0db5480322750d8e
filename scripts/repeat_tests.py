"""Run the tests that other work on the machine could disturb again and again.

usage: python scripts/repeat_tests.py [--times 20] [--busy N] [--json FILE] [tests ...]

They are those marked ``load_sensitive``: threads, processes, memory, files of ``/proc`` or the
time decide what they see. Each round is a process of its own. ``--busy`` keeps processes at work
beside them. Ends with 1 when one of them failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKER = "load_sensitive"


@dataclass
class Round:
    """What one run of all of them gave."""

    seconds: float
    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """The message of each test that failed."""


def run_once(tests: list[str]) -> Round:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="repeat-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-m", MARKER, f"--junit-xml={report}", f"--basetemp={folder}/tests", *tests]
        env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **os.environ}
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False
        )
        found = Round(seconds=time.monotonic() - start)
        if not report.exists():
            found.failed["pytest"] = (done.stdout + done.stderr)[-2000:]
            return found
        for case in ElementTree.parse(report).iter("testcase"):
            wrong = [e for e in case if e.tag in ("failure", "error")]
            if wrong:
                name = f"{case.get('classname')}::{case.get('name')}"
                found.failed[name] = (wrong[0].text or "")[-2000:]
            elif case.find("skipped") is not None:
                found.skipped += 1
            else:
                found.passed += 1
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=0, help="processes at work beside them")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument("tests", nargs="*", default=["tests"])
    arguments = parser.parse_args()
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(arguments.busy)
    ]
    rounds: list[Round] = []
    try:
        for number in range(1, arguments.times + 1):
            rounds.append(one := run_once(arguments.tests))
            print(
                f"{number:3}: {one.passed} passed, {one.skipped} skipped, "
                f"{len(one.failed)} failed in {one.seconds:.0f} s  {' '.join(one.failed)}",
                flush=True,
            )
            if arguments.json:
                arguments.json.write_text(json.dumps([vars(r) for r in rounds], indent=1))
    finally:
        for process in busy:
            process.kill()
            process.wait()
    failures = Counter(name for r in rounds for name in r.failed)
    for name, count in failures.most_common():
        print(f"{name}: {count} of {len(rounds)} times")
    print(f"{sum(r.passed for r in rounds)} passed, {failures.total()} failed")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
