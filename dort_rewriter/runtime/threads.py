"""How many threads ONNX Runtime uses and whether they spin while they wait.

After a run, ONNX Runtime's threads spin for some time on their cores, waiting for the next one;
torch's OpenMP threads do the same. Two pools spinning on the same cores starve each other when
both work in turn, as in a training step. The default lets threads spin during a run and stops them
at its end: as fast as spinning for ONNX Runtime alone, as fast as not spinning beside torch
(``scripts/bench_threads.py`` measures both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from dort_rewriter.errors import OptionError

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Spinning", "ThreadPolicy"]

Spinning = Literal["on", "off", "stop"]
"""``on``: threads spin between runs; ``stop``: they spin during a run only; ``off``: never."""

_ENTRIES: dict[str, dict[str, str]] = {
    "on": {"session.intra_op.allow_spinning": "1"},
    "stop": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"},
    "off": {"session.intra_op.allow_spinning": "0"},
}


@dataclass(frozen=True, kw_only=True)
class ThreadPolicy:
    """The threads of one session."""

    intra_op_threads: int | None = None
    """Threads inside one operator; None is ``torch.get_num_threads()`` when the session is built.
    The calling thread is one of them."""
    spinning: Spinning = "stop"
    """See :data:`Spinning`."""

    def __post_init__(self) -> None:
        if self.spinning not in _ENTRIES:
            raise OptionError(f"spinning is one of {sorted(_ENTRIES)}, not {self.spinning!r}.")
        if self.intra_op_threads is not None and self.intra_op_threads < 1:
            raise OptionError(f"intra_op_threads must be positive, not {self.intra_op_threads}.")

    def apply(self, options: onnxruntime.SessionOptions) -> None:
        """Write the policy into the options of a session."""
        options.intra_op_num_threads = self.intra_op_threads or torch.get_num_threads()
        for key, value in _ENTRIES[self.spinning].items():
            options.add_session_config_entry(key, value)
