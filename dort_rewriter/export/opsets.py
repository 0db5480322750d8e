"""Which opsets a model is to have, and which of them converters write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dort_rewriter.errors import ExportError
from dort_rewriter.export.interpreter import OPSETS

__all__ = ["Opsets", "read_opsets"]

_FIRST = 13
"""Below it, too many operators take as attributes what later ones take as inputs."""

_STANDARD = ("", "ai.onnx")


@dataclass(frozen=True)
class Opsets:
    """The opsets of a model."""

    standard: int
    """That of the standard domain."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Those of other domains."""

    @property
    def written(self) -> int:
        """The one the converters write; a model of an older one is made of it."""
        return max(self.standard, OPSETS.start)


def read_opsets(target: int | Mapping[str, int]) -> Opsets:
    """Read ``target_opset``: a number, or a number for each domain."""
    if isinstance(target, Mapping):
        _check_domains(target)
        standard = next((target[d] for d in _STANDARD if d in target), OPSETS.start)
        others = {d: v for d, v in target.items() if d not in _STANDARD}
    else:
        standard, others = target, {}
    for version in (standard, *others.values()):
        if not isinstance(version, int) or isinstance(version, bool):
            raise ExportError(
                f"target_opset is a whole number, or one for each domain, not {target!r}."
            )
    if not _FIRST <= standard < OPSETS.stop:
        raise ExportError(
            f"Opset {standard} is not supported: choose from {_FIRST} to {OPSETS.stop - 1}, the "
            f"newest that the installed onnx knows."
        )
    return Opsets(standard, others)


def _check_domains(target: Mapping[str, int]) -> None:
    for domain, version in target.items():
        if not isinstance(domain, str):
            raise ExportError(f"A domain in target_opset is a text, not {domain!r}.")
        if isinstance(version, int) and version < 1:
            raise ExportError(f"target_opset has version {version} of {domain!r}: the first is 1.")
    standard = {target[d] for d in _STANDARD if d in target}
    if len(standard) > 1:
        raise ExportError(f"target_opset has the standard domain at two versions: {target!r}.")
