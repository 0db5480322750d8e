"""Which opsets a model is to have: those the converters write, and those onnx can convert to.

NOTE: what the version converter gives is checked in full: for some operators it has no adapter,
and says so; nothing it could leave half done may become a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir

from dort_rewriter.errors import ExportError
from dort_rewriter.export.interpreter import OPSETS

__all__ = ["Opsets", "convert_opset", "read_opsets"]

_OLDEST = 13
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
        """The one the converters write, the closest to what the model is to have."""
        return min(max(self.standard, OPSETS.start), OPSETS.stop - 1)


def read_opsets(target: int | Mapping[str, int]) -> Opsets:
    """Read ``target_opset``: a number, or a number for each domain."""
    if isinstance(target, Mapping):
        _check_domains(target)
        standard = next((target[d] for d in _STANDARD if d in target), OPSETS.start)
        others = {d: v for d, v in target.items() if d not in _STANDARD}
    else:
        standard, others = target, {}
    newest = onnx.defs.onnx_opset_version()
    for version in (standard, *others.values()):
        if not isinstance(version, int) or isinstance(version, bool):
            raise ExportError(
                f"target_opset is a whole number, or one for each domain, not {target!r}."
            )
    if not _OLDEST <= standard <= max(newest, OPSETS.stop - 1):
        raise ExportError(
            f"Opset {standard} is not supported: choose from {OPSETS.start} to {OPSETS.stop - 1}, "
            f"or from {_OLDEST} to {newest} where onnx converts the model."
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


def convert_opset(model: ir.Model, opsets: Opsets) -> ir.Model:
    """The model with the opsets asked for, converted by onnx where they are not as written."""
    if opsets.standard != opsets.written:
        model = _convert(model, opsets.standard)
    model.graph.opset_imports.update(opsets.others)
    return model


def _convert(model: ir.Model, opset: int) -> ir.Model:
    advice = (
        f"Choose an opset from {OPSETS.start} to {OPSETS.stop - 1}, which are written directly."
    )
    try:
        proto = ir.to_proto(model)
        converted = onnx.version_converter.convert_version(proto, opset)
        imports = converted.opset_import
        converted.ir_version = max(
            onnx.helper.find_min_ir_version_for(imports, ignore_unknown=True), 8
        )
        onnx.checker.check_model(converted, full_check=True)
    # The converter ends in assertions of C++, the checker in errors of its own, a message of 2 GB
    # in one of protobuf.
    except (RuntimeError, ValueError, onnx.checker.ValidationError) as e:
        reason = str(e).strip().splitlines()[0].rpartition("failed: ")[2]
        raise ExportError(
            f"onnx cannot convert the model to opset {opset}: {reason}. {advice}"
        ) from e
    return ir.from_proto(converted)
