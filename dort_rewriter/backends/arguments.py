"""What the published functions take as arguments, turned into options."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dort_rewriter.errors import OptionError
from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.options import (
    LEVELS,
    ExportOptions,
    OptimizationLevel,
    OrtBackendOptions,
    check_values,
)

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class CustomBackendOptions:
    """What ``onnx_custom_backend`` takes by name, besides ``options``."""

    target_opset: int | None = None
    """The opset of the exported models, 18 to 23; None is 18."""
    verbose: int = 0
    """1 logs a summary of each graph, more logs each step and each rule."""
    export_options: ExportOptions | Mapping[str, Any] | None = None
    """How a graph of Dynamo is lowered: its ``decomposition_table``."""
    optimize: bool = True
    """False leaves the models as they are exported."""
    enable_pattern: str | Sequence[Any] | None = "default"
    """Rules to apply: ``"default+onnxruntime"``, a list of names, or None."""
    disable_pattern: str | Sequence[str] | None = None
    """Rules to leave out of them."""
    storage: dict[str, Any] | None = None
    """A dictionary to fill: ``storage["instance"]`` gets a dictionary for each compiled graph,
    ``graph_module, onnx, builder, sess, providers, is_dimension_in, is_dimension_out, inputs,
    outputs``. See ``pprint_storage``."""
    dump_prefix: str | None = None
    """Write each model to ``<dump_prefix>0.onnx``, ``<dump_prefix>1.onnx``, ... and its FX graph
    beside it; None reads ``ONNXRT_DUMP_PATH``."""
    dump_patterns: str | None = None
    """A folder to write each application of a rule to."""
    providers: str | Sequence[str | tuple[str, Mapping[str, Any]]] | None = None
    """Execution providers, best first; None chooses by the devices of the arguments."""
    raise_exc: bool = True
    """Raise when a graph cannot be converted or run; False leaves what fails to torch. Random
    operators always run there: torch owns the generator."""
    pre_ort_model_transforms: (
        Callable[[onnx.ModelProto], None] | Sequence[Callable[[onnx.ModelProto], None]] | None
    ) = None
    """Called once on each exported model, to change it in place before a session is built. They
    see no operators of this package: those are made after them."""
    ort_optimization_level: str | None = None
    """ONNX Runtime's own optimizations: ``disable``, ``basic``, ``extended``, ``layout``, ``all``,
    or its names (``ORT_DISABLE_ALL``); None leaves its default."""
    dispatcher: Dispatcher | None = None
    """Who converts an operator; None is this package, then torchlib."""
    rename_inputs: bool = True
    """Call the inputs ``input0``, ``input1``, ...; False keeps the names of the graph."""
    processor: str = "CPU"
    """Where the models are to run, ``"CPU"`` or ``"CUDA"``: some rules need a kernel there."""
    order_algorithm: str | None = None
    """The order of the nodes: None keeps it, ``"memory"`` looks for a lower peak."""

    def __post_init__(self) -> None:
        check_values(self)


def takes_fields_of(options: type[Any]) -> Callable[[F], F]:
    """Let the signature of a function with ``**settings`` name the fields of a dataclass."""

    def described(function: F) -> F:
        given = inspect.signature(function)
        named = [p for p in given.parameters.values() if p.kind is not p.VAR_KEYWORD]
        fields = [p for p in inspect.signature(options).parameters.values() if p not in named]
        function.__signature__ = given.replace(  # type: ignore[attr-defined]
            parameters=[*named, *fields]
        )
        return function

    return described


def level_name(level: str | None) -> OptimizationLevel | None:
    """Our name of a level of optimization, which may be given as ONNX Runtime's."""
    if level is None:
        return None
    known: dict[str, OptimizationLevel] = {w: w for w in LEVELS}
    known.update((name, word) for word, name in LEVELS.items())
    if level not in known:
        raise OptionError(f"ort_optimization_level is one of {', '.join(known)}, not {level!r}.")
    return known[level]


def log_as_asked(verbose: int) -> None:
    """Let the package log: 1 a summary of each graph, more each step.

    Where the program has set no logging up, the lines go to the standard error.
    """
    if verbose <= 0:
        return
    logger = logging.getLogger("dort_rewriter")
    logger.setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())


def select_patterns(
    enabled: str | Sequence[Any] | None, disabled: str | Sequence[str] | None
) -> str | Sequence[Any] | None:
    """One selection out of the rules to apply and those to leave out of them."""
    if not disabled or enabled is None:
        return enabled
    names = disabled.replace("+", ",").split(",") if isinstance(disabled, str) else disabled
    left_out = [f"-{name.strip()}" for name in names]
    return "".join([enabled, *left_out]) if isinstance(enabled, str) else [*enabled, *left_out]


def with_mode(options: OrtBackendOptions, mode: str | None) -> OrtBackendOptions:
    """The options with what a mode of ``torch.compile`` adds to them."""
    if mode is None:
        return options
    if mode not in MODES:
        raise OptionError(f"mode is one of {', '.join(map(repr, MODES))}, not {mode!r}.")
    if mode.startswith("max-autotune"):
        return dataclasses.replace(options, autotune=True)
    logger.info("mode=%r asks for nothing that is not done without it.", mode)
    return options


MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
"""What ``torch.compile(mode=...)`` may be."""
