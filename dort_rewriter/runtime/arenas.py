"""Where sessions on the CPU take memory for intermediates and results.

``shared``, the default: one arena for the process; forward and backward reuse each other's memory,
which is still in the caches then. It outlives the sessions: what is free goes back to the system
once one of them is gone, and by :func:`give_back`. ``session``: an arena of its own for each
session, ONNX Runtime's default: a training step has two of them. ``none``: the allocator of the
system, as torch on the CPU: the least is kept, and each step asks for it again.
``scripts/bench_memory.py`` measures them.

NOTE: onnxruntime-training 1.19.2 takes ``none`` for an arena that outlives the sessions.

None of them frees the arguments of a backward graph one by one, as eager mode does:
ONNX Runtime holds its inputs until the run is over.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import TYPE_CHECKING, Any, Literal

from dort_rewriter.errors import OptionError
from dort_rewriter.forks import at_fork, forked_alone
from dort_rewriter.ort_module import load_onnxruntime, quiet_options
from dort_rewriter.runtime.providers import CPU

if TYPE_CHECKING:
    import onnxruntime

Arena = Literal["session", "shared", "none"]

_SHARED = "session.use_env_allocators"

# NOTE: an arena that grows by what is asked saves nothing over this one in training, and keeps a
# piece of each size when sizes grow from call to call: 670 MB where this one has 14.
_NO_LIMIT, _BY_POWERS_OF_TWO, _ITS_DEFAULT = 0, 0, -1


def use_arena(arena: Arena, options: onnxruntime.SessionOptions) -> None:
    """Write the choice into the options of a session."""
    if arena == "none":
        options.enable_cpu_mem_arena = False
    elif arena == "shared":
        if _State.inherited:
            return
        _register_shared_arena()
        options.add_session_config_entry(_SHARED, "1")
        # A pattern asks for the memory of a whole run at once, in one piece.
        options.enable_mem_pattern = False
    elif arena != "session":
        raise OptionError(f"arena is 'session', 'shared' or 'none', not {arena!r}.")


def give_back() -> None:
    """Give back to the system what the shared arena has free, if there is one."""
    if _State.shrinking is None or _State.inherited:
        return
    wishes = load_onnxruntime().RunOptions()
    wishes.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _State.shrinking.run(None, {}, wishes)


def give_back_after(
    session: onnxruntime.InferenceSession, options: onnxruntime.SessionOptions
) -> None:
    """Give back what the shared arena has free once a session that uses it is gone."""
    try:
        uses_it = options.get_session_config_entry(_SHARED) == "1"
    except RuntimeError:  # nothing is said
        uses_it = False
    if uses_it:
        # NOTE: not with the object of Python, which ends before what it stands for.
        weakref.finalize(session._sess, give_back).atexit = False


class _State:
    """The shared arena of this process."""

    shrinking: Any = None
    """A session whose run may end with giving back: there is no other call for it."""
    inherited = False
    """Whether it is that of a parent of which another thread may have been in it: no thread would
    leave it, so that sessions have their own arenas."""


def _leave_to_parent() -> None:
    if _State.shrinking is not None and not forked_alone():
        _State.inherited = True


at_fork(in_child=_leave_to_parent)


_SMALLEST_MODEL = (
    b'\x08\x08:<\n$\x12\x01y"\x08Constant*\x15\n\x0bvalue_float\x15\x00\x00\x00\x00\xa0\x01\x01'
    b"\x12\x07nothingb\x0b\n\x01y\x12\x06\n\x04\x08\x01\x12\x00B\x04\n\x00\x10\x12"
)
"""``y = Constant[value_float=0]()``, serialized: a saved model is loaded without onnx."""


@functools.cache
def _register_shared_arena() -> None:
    """Give onnxruntime's environment an allocator, once in a process."""
    ort = load_onnxruntime()
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    settings = ort.OrtArenaCfg(_NO_LIMIT, _BY_POWERS_OF_TWO, _ITS_DEFAULT, _ITS_DEFAULT)
    with contextlib.suppress(RuntimeError):  # the program has given one, which is as good
        ort.create_and_register_allocator(memory, settings)
    options = quiet_options()
    options.add_session_config_entry(_SHARED, "1")
    _State.shrinking = ort.InferenceSession(_SMALLEST_MODEL, options, providers=[CPU])
