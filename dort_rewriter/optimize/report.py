"""What an optimization did: for each rule, matches, near misses, nodes and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OptimizeReport", "RuleReport"]


@dataclass
class RuleReport:
    """What one rule or pass did."""

    name: str
    matches: int = 0
    removed: int = 0
    added: int = 0
    tried: int = 0
    """Nodes it was shown."""
    seconds: float = 0.0
    refusals: Counter[str] = field(default_factory=Counter)
    """Near misses by reason."""
    examples: dict[str, str] = field(default_factory=dict)
    """For each reason, what was found instead, once."""


@dataclass
class OptimizeReport:
    """What one optimization did."""

    rules: dict[str, RuleReport] = field(default_factory=dict)
    nodes_before: int = 0
    nodes_after: int = 0
    rounds: int = 0
    """Times the rules were shown nodes."""
    peak_bytes: tuple[int, int] | None = None
    """Of intermediate results and outputs before and after they were ordered by memory."""
    seconds: float = 0.0

    def entries(self, names: Iterable[str]) -> list[RuleReport]:
        """The entries of rules and passes, by name."""
        return [self.rules.setdefault(name, RuleReport(name)) for name in names]

    def to_dict(self) -> dict[str, Any]:
        """The report as numbers and strings, for JSON."""
        rules = {
            name: {**vars(rule), "refusals": dict(rule.refusals)}
            for name, rule in self.rules.items()
        }
        return {**vars(self), "rules": rules}

    def summary(self) -> str:
        """What was done, without near misses."""
        lines = [
            f"{self.nodes_before} -> {self.nodes_after} nodes in {self.rounds} rounds, "
            f"{self.seconds * 1e3:.1f} ms"
        ]
        if self.peak_bytes is not None:
            lines.append(f"  peak of memory: {self.peak_bytes[0]} -> {self.peak_bytes[1]} bytes")
        lines += [
            f"  {r.name}: {r.matches} applied, -{r.removed} +{r.added} nodes, "
            f"{r.seconds * 1e3:.1f} ms"
            for r in self._ranked()
            if r.matches
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        near_misses = [
            f"  {r.name}: refused {count} times, {reason} {r.examples[reason]}"
            for r in self._ranked()
            for reason, count in r.refusals.most_common()
        ]
        return "\n".join([self.summary(), *near_misses])

    def _ranked(self) -> list[RuleReport]:
        return sorted(self.rules.values(), key=lambda r: (-r.matches, r.name))
