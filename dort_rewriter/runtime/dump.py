"""Writing each exported graph to files, when ``ONNXRT_DUMP_PATH`` asks for it.

The model goes to ``<prefix><N>.onnx``, the text of its FX graph to ``<prefix><N>.txt``; N counts
from 0 for each prefix in the life of the process, or since :func:`restart_numbers`.
"""

from __future__ import annotations

import logging
from pathlib import Path

from dort_rewriter import env
from dort_rewriter.errors import ExecutionError
from dort_rewriter.forks import SafeLock
from dort_rewriter.runtime.model_files import Model, write_model
from dort_rewriter.staging import staged

__all__ = ["dump_graph", "restart_numbers", "try_dump"]

logger = logging.getLogger(__name__)

_lock = SafeLock()
_next_number: dict[str, int] = {}
_refused: set[str] = set()
"""The prefixes under which files could not be written."""


def dump_graph(model: Model, text: str, prefix: str | None = None) -> Path | None:
    """Write a model and the text of its graph; return the path of the model.

    ``prefix`` is read from the environment when it is None; nothing is written when it is empty.
    Both files appear complete or not at all: raises :class:`ExecutionError` otherwise.
    """
    if prefix is None:
        prefix = env.read("ONNXRT_DUMP_PATH")
    if not prefix:
        return None
    with _lock:
        number = _next_number.get(prefix, 0)
        path = Path(f"{prefix}{number}.onnx")
        try:
            _write(model, text, path)
        except OSError as error:
            raise ExecutionError(
                f"The graph cannot be written to {str(path)!r} ({error.strerror or error}): "
                "ONNXRT_DUMP_PATH must be the prefix of files in a folder that exists and is "
                "writable, such as 'dumps/model_'."
            ) from error
        _next_number[prefix] = number + 1
    return path


def try_dump(model: Model, text: str, prefix: str | None = None) -> None:
    """Do what :func:`dump_graph` does; what cannot be written is warned of, once a prefix.

    NOTE: a program that is looked at in this way is to run as it does otherwise.
    """
    prefix = env.read("ONNXRT_DUMP_PATH") if prefix is None else prefix
    try:
        dump_graph(model, text, prefix)
    except ExecutionError as error:
        if prefix not in _refused:
            _refused.add(prefix)
            logger.warning("%s", error)


def restart_numbers(prefix: str) -> None:
    """Count from 0 again for a prefix, whose files were removed."""
    with _lock:
        _next_number.pop(prefix, None)


def _write(model: Model, text: str, path: Path) -> None:
    with staged(path.parent) as aside:
        write_model(model, aside / path.name)
        (aside / path.with_suffix(".txt").name).write_text(text, encoding="utf-8")
