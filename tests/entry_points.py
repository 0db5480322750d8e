"""A distribution with the entry points of pyproject.toml, for programs that look for them.

An editable installation keeps those it was made with: this shows the ones of the sources.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from tests.gates.sources import ROOT

__all__ = ["environment_with_entry_points"]

GROUP = "torch_dynamo_backends"


def environment_with_entry_points(folder: Path) -> dict[str, str]:
    """An environment for a subprocess, in which torch finds the backends by name."""
    config = configparser.ConfigParser(inline_comment_prefixes=("#",))
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    header = f"[project.entry-points.{GROUP}]"
    config.read_string(header + text.partition(header)[2].partition("\n[")[0])
    (section,) = config.sections()
    targets = [f"{name} = {target.strip(chr(34))}" for name, target in config[section].items()]
    information = folder / "entry_points_of_the_sources-0.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: entry-points-of-the-sources\nVersion: 0.0\n"
    )
    (information / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *targets, ""]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
