"""Write what our operators declare, as the library of kernels says, to a table in Python.

usage: python scripts/operator_table.py [--check]

The table is ``dort_rewriter/kernels/table.py``; with ``--check`` nothing is written, and the exit
status is 1 where it is not what the library says.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "dort_rewriter" / "kernels"))

import build  # type: ignore[import-not-found]  # noqa: E402  # the package reads the table

TABLE = ROOT / "dort_rewriter" / "kernels" / "table.py"

DEFAULTS = {
    "never_fails": False,
    "mixed_types": False,
    "layouts": "dense",
    "library": "own",
}
"""Those of :class:`dort_rewriter.kernels.operators.Operator`, which the table leaves out."""
WIDTH = 99

HEAD = '''"""What our operators declare; ``scripts/operator_table.py`` writes it."""

from __future__ import annotations

from typing import Any

TABLE: tuple[dict[str, Any], ...] = (
'''


def compiled(folder: Path) -> Path:
    """The library, compiled for any processor and fast."""
    level = build.processor_levels(build.platform.machine())[-1]
    target = folder / "kernels.so"
    compiler = build.find_compiler("")
    if compiler is None:
        raise SystemExit("There is no C++ compiler.")
    command = [{"-O3": "-O0"}.get(word, word) for word in build.command(compiler, level, target)]
    subprocess.run(command, check=True)
    return target


def declared(library: Path) -> list[dict[str, Any]]:
    """What a library says of its operators, by name, where it is not the default."""
    ask = ctypes.CDLL(str(library)).declared_operators
    ask.restype = ctypes.c_char_p
    told = [
        {k: v for k, v in fields.items() if DEFAULTS.get(k) != v} for fields in json.loads(ask())
    ]
    return sorted(told, key=lambda fields: fields["name"])


def written(operators: list[dict[str, Any]]) -> str:
    """The text of the table."""
    rows = []
    for fields in operators:
        items = [
            f"{json.dumps(k)}: {json.dumps(v) if isinstance(v, str) else v}"
            for k, v in fields.items()
        ]
        row = f"    {{{', '.join(items)}}},\n"
        if len(row) > WIDTH + 1:
            lines = "".join(f"        {item},\n" for item in items)
            row = f"    {{\n{lines}    }},\n"
        rows.append(row)
    return f"{HEAD}{''.join(rows)})\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = written(declared(compiled(Path(folder))))
    if arguments.check:
        return int(text != TABLE.read_text())
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
