"""Options, as frozen keyword-only dataclasses: a mapping is accepted wherever one is expected.

The text under each field is its documentation; the pages of ``docs/`` are generated from it.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from dort_rewriter.errors import OptionError

if TYPE_CHECKING:
    import onnx
    import onnxruntime
    import torch

BACKEND_PATTERNS = "default+onnxruntime+kernels"
"""The rules for models that run where they are made: those of ONNX Runtime's own operators and
those with kernels of this package too."""

STRATEGIES: Mapping[str, tuple[bool, ...]] = {
    "nostrict": (False,),
    "strict": (True,),
    "fallback": (False, True),
}
"""Ways to capture a module, and the values of ``strict`` that each tries."""

_TABLES = {"dec": "core", "decall": "all"}

OptimizationLevel = Literal["disable", "basic", "extended", "layout", "all"]
"""ONNX Runtime's own optimizations, by the last word of its names for them."""

LEVELS: Mapping[OptimizationLevel, str] = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
"""Its names."""

_WORDS = {"OptimizationLevel": get_args(OptimizationLevel)}
"""The words of types that have a name."""

_PROCESSORS = ("CPU", "CUDA", "any")

_RANGES = {
    "target_opset": (18, 23),
    "min_block_size": (1, None),
    "intra_op_threads": (0, None),
    "tolerance": (0, None),
}
"""The least and the greatest number that a field takes; None has no end."""

T = TypeVar("T")


def from_mapping(cls: type[T], options: T | Mapping[str, Any] | None) -> T:
    """Build the dataclass ``cls`` from a mapping; an instance is returned as it is.

    Raises :class:`OptionError` on an unknown key, naming the closest known one.
    """
    if isinstance(options, cls):
        return options
    if options is None:
        return cls()
    if not isinstance(options, Mapping):
        raise OptionError(
            f"Expected a mapping or {cls.__name__}, got {type(options).__name__}: {options!r}."
        )
    known = [f.name for f in dataclasses.fields(cls) if f.init]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}."
            raise OptionError(f"Unknown option {key!r} for {cls.__name__}: {hint}")
    return cls(**options)


def check_values(options: Any) -> None:
    """Refuse values that do not fit their fields: numbers, switches, words of a list, lists."""
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if expected := _misfit(str(field.type), value):
            raise OptionError(
                f"{field.name} of {type(options).__name__} is {expected}, not {value!r}."
            )
        least, greatest = _RANGES.get(field.name, (None, None))
        if value is None or least is None or least <= value <= (greatest or value):
            continue
        span = f"{least} or more" if greatest is None else f"{least} to {greatest}"
        raise OptionError(f"{field.name} of {type(options).__name__} is {span}, not {value!r}.")


def _misfit(annotation: str, value: Any) -> str:
    """What an annotation asks for when a value is something else, an empty text if not."""
    if value is None and annotation.endswith("None"):
        return ""
    kind = annotation.removesuffix(" | None")
    if kind == "int | bool | Literal['finite']":
        fits = value == "finite" or (isinstance(value, int) and value >= 0)
        return "" if fits else "True, False, a number of calls or 'finite'"
    if kind == "bool":
        return "" if isinstance(value, bool) else "True or False"
    if kind == "int":
        return "" if isinstance(value, int) and not isinstance(value, bool) else "a whole number"
    if kind == "str":
        return "" if isinstance(value, str) else "a text"
    if kind in _WORDS or kind.startswith("Literal["):
        words = _WORDS.get(kind) or ast.literal_eval(kind.removeprefix("Literal"))
        return "" if value in words else f"one of {', '.join(map(repr, words))}"
    if kind.startswith("dict["):
        return "" if isinstance(value, dict) else "a dictionary"
    if kind.startswith("Sequence["):
        return "a list" if isinstance(value, str) or not isinstance(value, Iterable) else ""
    return ""


_NO_LIBRARY = ("_operator", "builtins", "higher_order", "math")
"""What comes before the names of operators that torch has in no library."""


def _check_operators(names: Iterable[str]) -> None:
    """Refuse names of operators that torch does not have; ``*`` is all others."""
    import torch

    registered = torch._C._dispatch_get_all_op_names()
    known = {*registered, *(name.partition(".")[0] for name in registered)}
    for name in names:
        library, _, _ = name.partition("::")
        if name == "*" or name in known or library in _NO_LIBRARY:
            continue
        path = name.rpartition(".")[2] if name.startswith("torch.") else name
        wanted = name if "::" in name else f"aten::{path}"  # torch.nn.functional.gelu: aten::gelu
        close = difflib.get_close_matches(wanted.removesuffix(".default"), known, n=3)
        hint = f"did you mean {', '.join(map(repr, close))}?" if close else "no name is like it."
        if "::" in name and not any(k.startswith(f"{library}::") for k in known):
            hint += " Operators of another library are known once it is imported."
        raise OptionError(f"placement names {name!r}, and torch has no such operator: {hint}")


@dataclass(frozen=True, kw_only=True)
class OptimizationOptions:
    """What is done to a model once it is exported."""

    remove_unused: bool = True
    """Remove nodes and initializers that no output needs."""
    constant_folding: bool = False
    """Compute at export what depends on constants only (beyond shapes, which always are)."""
    patterns: str | Sequence[Any] | None = "default"
    """Rules to apply: ``"default+onnxruntime-CastCast"``, a list of names, classes or instances,
    or None for none."""
    processor: str = "CPU"
    """Where the model is to run, ``"CPU"`` or ``"CUDA"``: some rules need a kernel there;
    ``"any"`` is another runtime, with all operators of ONNX and no others."""
    max_iter: int = -1
    """Rounds over the rules; -1 goes on until nothing changes."""
    order: str | None = None
    """``None`` keeps the order of the exporter, ``"memory"`` looks for a lower peak."""
    dump_applied_patterns: str | None = None
    """A folder to write each application of a rule to, as two small models: before and after."""
    check_rules: bool = False
    """Check what each application of a rule writes by the shape inference of ONNX, and that there
    can still be a session; the rule that makes an invalid model is named in the error. Slow: for
    tests and authors of rules (``DORT_CHECK_RULES=1`` does the same for all models)."""
    verbose: int = 0
    """0: silent; 1: what each rule did, by ``logging``; 2: near misses and their reasons too."""

    def __post_init__(self) -> None:
        """Refuse values of another type, and processors that are not there."""
        check_values(self)
        if self.processor not in _PROCESSORS:
            known = ", ".join(map(repr, _PROCESSORS))
            raise OptionError(f"processor={self.processor!r} is none of {known}.")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """How a graph is obtained from a model, before it is converted."""

    decomposition_table: str | Mapping[torch._ops.OpOverload, Callable[..., Any]] | None = None
    """How operators without a converter are rewritten: a table, ``"none"``, ``"core"``, ``"all"``,
    or None for the table that fits the converters."""
    strict: bool = False
    """Passed to ``torch.export.export``."""
    strategy: str | None = None
    """How a module is captured: ``"nostrict"``, ``"strict"``, or ``"fallback"``, the first of the
    two that works. ``-dec`` behind it asks for the decomposition table ``"core"``, ``-decall`` for
    ``"all"`` (``"fallback-dec"``). None leaves it to ``strict``."""

    def __post_init__(self) -> None:
        """Refuse values of another type, and strategies that are not there."""
        check_values(self)
        if self.strategy is None:
            return
        if self.strict:
            raise OptionError("strict and strategy say the same: give one of them.")
        way, _, table = self.strategy.partition("-")
        if way in ("jit", "tracing"):
            raise OptionError(
                f"strategy {self.strategy!r}: graphs come from torch.export alone, not from "
                f"TorchScript or torch.fx's tracing; choose from {', '.join(STRATEGIES)}."
            )
        if way not in STRATEGIES or table not in ("", *_TABLES):
            raise OptionError(
                f"Unknown strategy {self.strategy!r}: choose from {', '.join(STRATEGIES)}, "
                f"with -dec or -decall behind it for a decomposition table."
            )
        if table and self.decomposition_table is not None:
            raise OptionError(f"strategy {self.strategy!r} and decomposition_table disagree.")

    @property
    def attempts(self) -> tuple[bool, ...]:
        """The values of ``strict`` to try one after the other."""
        if self.strategy is None:
            return (self.strict,)
        return STRATEGIES[self.strategy.partition("-")[0]]

    @property
    def table(self) -> str | Mapping[torch._ops.OpOverload, Callable[..., Any]] | None:
        """The decomposition table, named by itself or by the strategy."""
        by_strategy = _TABLES.get((self.strategy or "").partition("-")[2])
        return self.decomposition_table if by_strategy is None else by_strategy


@dataclass(frozen=True, kw_only=True)
class OrtBackendOptions:
    """Options of ``torch.compile(model, backend="onnxrt", options=...)``.

    torch takes options or a mode: ``mode="max-autotune"`` is ``{"autotune": True}``.
    """

    preferred_execution_providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None
    """Execution providers to try first: names or policies, or pairs of one and its options."""
    infer_execution_providers: bool = True
    """Choose providers from the devices of the inputs, or of the results when there are none."""
    default_execution_providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None
    """Providers that come last; None is the CPU."""
    preallocate_output: bool = False
    """Let torch allocate the results, instead of ONNX Runtime, in graphs where the sizes of all of
    them are fixed (and none is bfloat16)."""
    use_aot_autograd: bool = True
    """Compile forward and backward graphs through AOTAutograd; False compiles the graph it is
    given, which must be made of ATen operators."""
    ort_session_options: onnxruntime.SessionOptions | None = None
    """Passed to each session as it is; a backend with its own is never shared."""
    pre_ort_model_transforms: Sequence[Callable[[onnx.ModelProto], None]] | None = None
    """Called once on each exported model, to change it in place before a session is built. They
    see no operators of this package: those are made after them."""
    target_opset: int = 18
    """The opset of the exported models, 18 to 23."""
    optimization: OptimizationOptions = OptimizationOptions(patterns=BACKEND_PATTERNS)
    """What is done to the exported models. A mapping will do, and leaves what it does not name as
    it is here: ``patterns`` are ``"default+onnxruntime+kernels"``, as the models run in this
    process; ``"default"`` keeps to standard operators."""
    ort_optimization_level: OptimizationLevel | None = None
    """ONNX Runtime's own optimizations: ``disable``, ``basic``, ``extended``, ``layout``, ``all``;
    None leaves its default."""
    fallback: bool = True
    """Leave to torch what cannot be converted or run; False raises instead. Where they can,
    sessions call it in torch, and the graph is not cut."""
    verify: int | bool | Literal["finite"] = False
    """Compare the first calls of each graph with torch, on the arguments they get: how many, or
    True for the first two. A difference beyond rounding raises ``DivergenceError``, which names
    the first node that differs and the folder in which all of it is kept. ``"finite"`` looks at
    the results of all calls, forward and backward: the first node that makes an infinity or NaN
    is named with its Python line and its inputs (``NotFiniteError``)."""
    freeze: bool = False
    """Put the parameters and buffers of an inference graph into the model, where ONNX Runtime
    folds and packs them. A weight that changes is noticed at the next call: the ``step()`` of any
    optimizer (fused ones too), ``load_state_dict``, in-place operations, ``weight.data = ...``,
    ``.to()``, statistics of a batch norm made in training mode. What moves no version outside of
    an optimizer is not: ``weight.data.add_()``, ``weight.numpy()``, ``torch._fused_sgd_`` called
    by hand. To see it every weight would be read at each call, which takes as long as many a run:
    write under ``torch.no_grad()`` to the weight itself, or call ``torch._dynamo.reset()``."""
    weights: Literal["int8", "int4"] | None = None
    """With ``freeze``: round the weights of products on the CPU to 8 or 4 bits, by blocks of 32
    with a scale each, for which a product of few rows (a step of a decoder) reads a quarter or an
    eighth of the memory. Its rows are rounded to 8 bits as well. Tables of embeddings, small
    weights and other types than float32 are left alone. Results differ from those of float32:
    ``explain`` says how much."""
    placement: Mapping[str, Literal["torch", "onnxruntime", "torch kernel"]] | None = None
    """Where operators run, by name (``"aten::convolution_backward"``, ``"aten::sum.dim_IntList"``
    for one overload, ``"*"`` for all the others); a name that torch does not know is an error.
    None leaves those that are slower in ONNX Runtime on the CPU to torch, by a measured table.
    ``"torch kernel"`` is inside the model, by a kernel of torch where there is one; with
    ``fallback=False`` too it lets sessions call operators in torch that have no converter."""
    autotune: bool = False
    """Let the first calls of each graph try ONNX Runtime, ONNX Runtime with some operators in
    torch, and torch alone, and keep the fastest on the arguments they get."""
    cache: bool = True
    """Keep exported models on disk for other processes (``DORT_CACHE_DIR``; ``DORT_CACHE=0``)."""
    cache_graphs: bool = False
    """Keep what AOTAutograd makes of graphs, too, in torch's own cache of it: a process that meets
    a graph again does not trace it. torch reads that cache (``TORCHINDUCTOR_CACHE_DIR``) by
    pickle, as it does for Inductor. With torch 2.13 and newer; without effect before."""
    check_rules: bool = False
    """Check each application of a rewriting rule, as ``optimization={"check_rules": True}``."""
    min_block_size: int = 2
    """Operators that a part of a cut graph needs to be worth a session."""
    intra_op_threads: int | None = None
    """Threads of a session; None is ``torch.get_num_threads()``."""
    spinning: Literal["on", "stop", "off"] = "stop"
    """Whether threads spin while they wait: ``on``, ``stop`` (during a run only), ``off``. Threads
    that spin between runs starve those of torch in a training loop; where kernels of torch run
    inside a model in threads of their own, and with more threads than cores, ``stop`` is ``off``.
    """
    pause_torch_threads: bool = True
    """End the waiting OpenMP threads of torch before a run in several threads, if it takes more
    than a moment: they would spin for milliseconds on the cores it needs. OpenMP makes new ones
    when torch needs them."""
    arena: Literal["session", "shared", "none"] = "shared"
    """Where sessions on the CPU take memory: ``shared``, one arena of the process, of which each
    gives back what is free when it is gone; ``session``, an arena of each; ``none``, the system,
    as torch does."""

    def __post_init__(self) -> None:
        """Accept a mapping for the options inside, and refuse values of another type."""
        inner: Any = self.optimization
        if isinstance(inner, Mapping):
            inner = {"patterns": BACKEND_PATTERNS, **inner}
        inner = from_mapping(OptimizationOptions, inner)
        if self.check_rules is True:
            inner = dataclasses.replace(inner, check_rules=True)
        object.__setattr__(self, "optimization", inner)
        check_values(self)
        self._check_given()
        if self.weights is not None and not self.freeze:
            raise OptionError(
                f"weights={self.weights!r} rounds weights that are inside the model: it goes with "
                "freeze=True."
            )
        if self.weights is not None and self.verify not in (False, "finite"):
            raise OptionError(
                "verify compares with torch up to rounding, and weights rounds on purpose: leave "
                "one of them out; explain() says how far results are from those of float32."
            )
        for op, place in (self.placement or {}).items():
            if place not in ("torch", "onnxruntime", "torch kernel"):
                raise OptionError(
                    "placement says 'torch', 'onnxruntime' or 'torch kernel' of an operator, "
                    f"not {place!r} of {op!r}."
                )
        if self.placement:
            _check_operators(self.placement)

    def _check_given(self) -> None:
        """Refuse what is no object of onnxruntime, and no function.

        NOTE: by what it has: onnxruntime is not imported for it.
        """
        settings = self.ort_session_options
        if settings is not None and not hasattr(settings, "intra_op_num_threads"):
            raise OptionError(
                f"ort_session_options is an onnxruntime.SessionOptions, not {settings!r}."
            )
        for transform in self.pre_ort_model_transforms or ():
            if not callable(transform):
                raise OptionError(
                    f"pre_ort_model_transforms are functions of a model, not {transform!r}."
                )
