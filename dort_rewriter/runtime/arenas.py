"""Where sessions on the CPU take memory for intermediates and results.

``session``: an arena of its own for each session, ONNX Runtime's default: fast, but a training
step has two of them. ``shared``: one arena for the process; forward and backward reuse each
other's memory. It outlives the sessions:
:func:`give_back` returns what is free. ``none``: the allocator of the system, as torch on the CPU:
the least is kept, and each step asks for it again. ``scripts/bench_memory.py`` measures them.

NOTE: onnxruntime-training 1.19.2 takes ``none`` for an arena that outlives the sessions.

None of them frees the arguments of a backward graph one by one, as eager mode does:
ONNX Runtime holds its inputs until the run is over.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Literal

from dort_rewriter.errors import OptionError
from dort_rewriter.runtime.installed import load_onnxruntime
from dort_rewriter.runtime.providers import CPU

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Arena", "give_back", "use_arena"]

Arena = Literal["session", "shared", "none"]

# NOTE: an arena that grows by what is asked saves nothing over this one in training, and keeps a
# piece of each size when sizes grow from call to call: 670 MB where this one has 14.
_NO_LIMIT, _BY_POWERS_OF_TWO, _ITS_DEFAULT = 0, 0, -1


def use_arena(arena: Arena, options: onnxruntime.SessionOptions) -> None:
    """Write the choice into the options of a session."""
    if arena == "none":
        options.enable_cpu_mem_arena = False
    elif arena == "shared":
        _register_shared_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # A pattern asks for the memory of a whole run at once, in one piece.
        options.enable_mem_pattern = False
    elif arena != "session":
        raise OptionError(f"arena is 'session', 'shared' or 'none', not {arena!r}.")


def give_back() -> None:
    """Give back to the system what the shared arena has free, if there is one."""
    if not _register_shared_arena.cache_info().currsize:
        return
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    use_arena("shared", options)
    # There is no call for it: an arena shrinks at the end of a run that asks for it.
    session = ort.InferenceSession(_smallest_model(), options, providers=[CPU])
    wishes = ort.RunOptions()
    wishes.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    session.run(None, {}, wishes)


def _smallest_model() -> bytes:
    from onnx import TensorProto, helper

    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    node = helper.make_node("Constant", [], ["y"], value_floats=[0.0])
    graph = helper.make_graph([node], "nothing", [], [result])
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, ir_version=8, opset_imports=opsets)
    return bytes(model.SerializeToString())


@functools.cache
def _register_shared_arena() -> None:
    """Give onnxruntime's environment an allocator, once in a process."""
    ort = load_onnxruntime()
    memory = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    settings = ort.OrtArenaCfg(_NO_LIMIT, _BY_POWERS_OF_TWO, _ITS_DEFAULT, _ITS_DEFAULT)
    ort.create_and_register_allocator(memory, settings)
