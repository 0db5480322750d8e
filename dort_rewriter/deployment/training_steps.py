"""export_training_step: forward, loss, gradients and optimizer as one ONNX file.

The folder holds ``step.onnx`` and ``eval.onnx`` (standard operators, no weights),
``state.safetensors`` (the start: a tensor under the name of each input that is fed back) and
``training.json`` (names, no code). Any runtime of ONNX trains with it: it feeds a batch and the
state, and takes the new state from the outputs that ``feeds_back`` names.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from dort_rewriter.aten import is_random, results_of, source_line
from dort_rewriter.backends.to_onnx import to_onnx
from dort_rewriter.capture.functions import named_tensors
from dort_rewriter.capture.number_checks import WithoutNumbers
from dort_rewriter.compiler.model_key import installed_version
from dort_rewriter.deployment.training_random import SeededDraws
from dort_rewriter.deployment.training_state import (
    DESCRIPTION,
    FORMAT,
    STATE,
    as_stored,
    own_tensors,
    require_safetensors,
    steps_of,
    trained_of,
    written,
)
from dort_rewriter.deployment.training_tracing import (
    ModuleFakes,
    SameGradient,
    as_export_error,
    call_loss,
    call_model,
    dynamic_axes,
    interpreter_of,
    lines_of_model,
    require_varying,
    set_results,
    trace,
)
from dort_rewriter.deployment.training_updates import Given, update_of
from dort_rewriter.errors import ExportError
from dort_rewriter.export.registry import op_name
from dort_rewriter.files import staged
from dort_rewriter.plan.placement import CHECKS

_CHECKS = CHECKS | {"aten::_linalg_check_errors"}
_DOUBLE = (torch.float64, torch.complex128)
_STEP, _MICRO, _SEED, _LOSS = "step", "micro_step", "seed", "loss"


class _Names:
    """Names of inputs and outputs, each once."""

    def __init__(self, taken: Collection[str]) -> None:
        self._taken = set(taken)

    def __call__(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


class _WithLoss(torch.nn.Module):
    """A model and a loss, of the leaves of a batch."""

    def __init__(self, model: torch.nn.Module, loss: Any, batch: _Batch) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.batch = batch
        self.lines = lines_of_model()

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor]:
        given, target = self.batch.restore(leaves)
        with self.lines, WithoutNumbers():
            value = call_loss(self.loss, call_model(self.model, given), target)
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            raise ExportError("The loss of a training step is a tensor of one number, a float.")
        return (value,)


class _Outputs(torch.nn.Module):
    """A model, of the leaves of its input, to the tensors among its results."""

    def __init__(self, model: torch.nn.Module, batch: _Batch) -> None:
        super().__init__()
        self.model = model
        self.batch = batch
        self.lines = lines_of_model()

    def forward(self, *leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        # A model may differentiate. NOTE: torch's encoder layers take their fast path, which fake
        # tensors with gradients do not, unless such a mode is on.
        with torch.enable_grad(), self.lines, WithoutNumbers():
            result = call_model(self.model, self.batch.restore_input(leaves))
        found = tree_flatten(result)[0]
        return tuple(v for v in found if isinstance(v, torch.Tensor))


class _Apart(torch.nn.Module):
    """A module each of whose parameters has a gradient of its own: multiplied by 1, which is left
    out of the file again."""

    def __init__(self, whole: _WithLoss) -> None:
        super().__init__()
        self.model, self.loss = whole.model, whole.loss
        self._whole = [whole]  # no submodule

    def forward(self, *leaves: torch.Tensor) -> Any:
        (whole,) = self._whole
        scaled = {n: p * 1.0 for n, p in whole.named_parameters() if p.requires_grad}
        return torch.func.functional_call(whole, scaled, leaves)


class _Batch:
    """The example: a pair of an input and a target, each a tensor, a tuple or a mapping."""

    def __init__(self, example: Any, dynamic_shapes: Any, names: _Names) -> None:
        if not isinstance(example, tuple | list) or len(example) != 2:
            raise ExportError("The example of a training step is a pair (input, target).")
        parts = [tree_flatten(part) for part in example]
        self._specs = [spec for _, spec in parts]
        self.leaves = [leaf for leaves, _ in parts for leaf in leaves]
        if not all(isinstance(leaf, torch.Tensor) for leaf in self.leaves):
            raise ExportError("Input and target of a training step are tensors, or made of them.")
        self.inputs = len(parts[0][0])
        self.names = [
            names(label)
            for part, word in zip(example, ("input", "target"), strict=True)
            for label in _labels(part, word)
        ]
        shapes = dynamic_shapes if dynamic_shapes is not None else (None, None)
        if not isinstance(shapes, tuple | list) or len(shapes) != 2:
            raise ExportError("dynamic_shapes of a training step is a pair, as the example is.")
        self.shapes = [
            shape
            for part, said in zip(example, shapes, strict=True)
            for shape in _shapes(part, said)
        ]

    def restore(self, leaves: Sequence[Any]) -> tuple[Any, Any]:
        """Input and target of leaves."""
        target = tree_unflatten(list(leaves[self.inputs :]), self._specs[1])
        return self.restore_input(leaves[: self.inputs]), target

    def restore_input(self, leaves: Sequence[Any]) -> Any:
        return tree_unflatten(list(leaves), self._specs[0])


def _labels(part: Any, word: str) -> list[str]:
    """What the leaves of a part of the example are called."""
    if isinstance(part, torch.Tensor):
        return [word]
    if isinstance(part, Mapping):
        return [
            str(key) if isinstance(value, torch.Tensor) else f"{key}_{i}"
            for key, value in part.items()
            for i, _ in enumerate(tree_flatten(value)[0])
        ]
    return [f"{word}_{i}" for i, _ in enumerate(tree_flatten(part)[0])]


def _shapes(part: Any, said: Any) -> list[Any]:
    """What ``dynamic_shapes`` says of each leaf of a part of the example."""
    if isinstance(part, torch.Tensor):
        return [said]
    values = part.values() if isinstance(part, Mapping) else part
    if said is None:
        listed = [None] * len(values)
    elif isinstance(part, Mapping) and isinstance(said, Mapping):
        listed = [said.get(key) for key in part]
    elif isinstance(said, tuple | list) and len(said) == len(values):
        listed = list(said)
    else:
        raise ExportError("dynamic_shapes of a training step is built as its example is.")
    return [leaf for value, shape in zip(values, listed, strict=True)
            for leaf in _shapes(value, shape)]  # fmt: skip


def _varies(shape: Any) -> bool:
    return bool(dynamic_axes(shape, sys.maxsize))


# -- the step -----------------------------------------------------------------------------------


def export_training_step(
    model: torch.nn.Module,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    example: Any,
    folder: str | os.PathLike[str],
    *,
    dynamic_shapes: Any = None,
    trainable: Collection[str] | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    target_opset: int = 18,
) -> None:
    """Write a training step that any runtime of ONNX runs, without torch and without Python.

    Args:
        model: what is trained, in training mode; in the other for ``eval.onnx``.
        loss: ``loss(output, target)``, a function or a module.
        optimizer: one of torch's ``SGD``, ``Adam``, ``AdamW``, ``RMSprop``, ``Adagrad`` over the
            parameters of the model; what it keeps by now is where training starts.
        example: a pair ``(input, target)``, each a tensor, a tuple or a mapping.
        folder: gets ``step.onnx``, ``eval.onnx``, ``state.safetensors`` and ``training.json``,
            all or none.
        dynamic_shapes: a pair built as the example is: what may vary, as for ``to_onnx``.
        trainable: the names of the parameters that are trained; by default those of the optimizer
            that require a gradient.
        clip_norm: the largest norm of all gradients together.
        accumulate: of so many batches the gradients are averaged before parameters change.
        target_opset: the opset of the files.

    Dropout and other random operators follow ``seed``, an input that each step is given: the same
    numbers on every runtime, not those of torch.

    Raises:
        ExportError: something cannot be exported. Nothing is written.

    """
    save_file = require_safetensors().save_file
    if accumulate < 1 or accumulate != int(accumulate):
        raise ExportError(f"accumulate is how many batches, 1 or more, not {accumulate}.")
    if isinstance(trainable, str):
        raise ExportError(f"trainable is a list of names: [{trainable!r}].")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise ExportError(f"{os.fspath(folder)} is a file, not a folder.")
    model = written(model)
    if not isinstance(model, torch.nn.Module):
        raise ExportError(f"A training step is of a module of torch, not of a {type(model)}.")
    _require_values(model)
    _refuse_averages(model)
    known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = _Names(known)
    batch = _Batch(example, dynamic_shapes, names)
    step = _Step(model, loss, optimizer, batch, names, trainable, clip_norm, accumulate)
    with _modes(model, training=True):
        trained = step.export(target_opset)
    with _modes(model, training=False):
        evaluated = step.export_eval(target_opset)
    description = {
        "format": FORMAT,
        **step.describe(),
        "eval": {"inputs": batch.names[: batch.inputs], "outputs": evaluated[1]},
        "versions": {
            "dort_rewriter": installed_version("dort-rewriter"),
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "opset": target_opset,
        },
    }
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    with staged(target, last=DESCRIPTION) as place:
        (place / "step.onnx").write_bytes(trained)
        (place / "eval.onnx").write_bytes(evaluated[0])
        save_file(step.state, str(place / STATE))
        (place / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


@contextlib.contextmanager
def _modes(model: torch.nn.Module, *, training: bool) -> Iterator[None]:
    """Set the mode of a model for a while; parts that are set otherwise by hand stay so."""
    before = [(m, m.training) for m in model.modules()]
    try:
        if training != model.training or not training:
            model.train(training)
        yield
    finally:
        for module, mode in before:
            module.training = mode


class _Step:
    """One training step: its graphs, its names, its state."""

    def __init__(
        self,
        model: torch.nn.Module,
        loss: Any,
        optimizer: torch.optim.Optimizer,
        batch: _Batch,
        names: _Names,
        trainable: Collection[str] | None,
        clip_norm: float | None,
        accumulate: int,
    ) -> None:
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.update = update_of(optimizer)
        self.batch = batch
        self.names = names
        self.clip_norm = clip_norm
        self.accumulate = accumulate
        self.trained = trained_of(model, optimizer, trainable)
        groups = optimizer.param_groups
        rates = ["learning_rate"] if len(groups) == 1 else [
            f"learning_rate_{i}" for i in range(len(groups))
        ]  # fmt: skip
        self.rates = [names(rate) for rate in rates]
        self.step_name, self.seed_name = names(_STEP), names(_SEED)
        self.micro_name = names(_MICRO)
        self.loss_name = names(_LOSS)
        self._tensors, self._canonical = _held_by(model, loss)
        self._of_model = own_tensors(model)
        self.feeds_back: dict[str, str] = {}
        self.draws = False
        self.state: dict[str, torch.Tensor] = {}
        """The tensors to begin with, by the names of inputs."""

    def describe(self) -> dict[str, Any]:
        """What ``training.json`` says of the step."""
        batch = self.batch
        return {
            "batch": self.batch.names,
            "loss": self.loss_name,
            "feeds_back": self.feeds_back,
            "learning_rates": self.rates,
            "seed": self.seed_name if self.draws else None,
            "state": {name: self._part(name) for name in self.state},
            "optimizer": {
                "name": type(self.optimizer).__name__,
                "steps": self.step_name,
                "state": {
                    t.name: {key: _of_state(t.name, key) for key in t.state} for t in self.trained
                },
            },
            "inputs": {
                name: {
                    "dtype": str(as_stored(leaf).dtype).removeprefix("torch."),
                    "shape": list(as_stored(leaf).shape),
                    "varies": sorted(dynamic_axes(said, leaf.dim())),
                }
                for name, leaf, said in zip(batch.names, batch.leaves, batch.shapes, strict=True)
            },
            "accumulate": self.accumulate,
        }

    def _part(self, name: str) -> str:
        """Whose a tensor of the state is: the model's, the loss's, the optimizer's, or a seed."""
        if name == self.seed_name:
            return "seed"
        if name not in self._tensors:
            return "optimizer"
        return "model" if name in self._of_model else "loss"

    def export(self, opset: int) -> bytes:
        """The model of the step."""
        fakes = ModuleFakes(any(map(_varies, self.batch.shapes)))
        whole = _WithLoss(self.model, self.loss, self.batch)
        with fakes.inside(whole, [t.parameter for t in self.trained]):
            leaves = fakes.all(self.batch.leaves, self.batch.shapes)
            try:
                graph, signature = trace(whole, fakes, leaves, whole.lines, joint=True)
            except SameGradient:  # of two parameters: torch names gradients by their nodes
                apart = _Apart(whole)
                graph, signature = trace(apart, fakes, leaves, whole.lines, joint=True)
        require_varying(leaves, self.batch.shapes, self.batch.names)
        held = self._held(signature)
        gradients = _places_of_gradients(graph, signature, held, {t.name for t in self.trained})
        self.trained = [t for t in self.trained if t.name in gradients]
        if not self.trained:
            raise ExportError("No parameter of the optimizer has a gradient of the loss.")
        inputs, tensors = self._inputs(held)
        draws = SeededDraws()
        step = self._function(graph, signature, held, gradients, inputs, draws)
        places = dict(zip(self.batch.names, leaves, strict=True))
        given = [places[n] if n in places else fakes.of(tensors[n]) for n in inputs]
        with as_export_error(whole.lines), fakes.tracing():
            traced = make_fx(step, decomposition_table=dict(draws.table()))(*given)
        return self._convert(traced, inputs, opset, is_dynamic=fakes.dynamic)

    def _held(self, signature: Any) -> list[str]:
        """The names of what a graph takes before the leaves of a batch."""
        return [self._canonical[n] for n in (*signature.parameters, *signature.buffers)]

    def _inputs(self, held: Sequence[str]) -> tuple[list[str], dict[str, torch.Tensor]]:
        """The inputs of the step in order, and the tensors to start with."""
        state = {name: self._tensors[name].detach() for name in held}
        for t in self.trained:
            for key, value in t.state.items():
                state[_of_state(t.name, key)] = value
        if self.accumulate > 1:
            for t in self.trained:
                state[_of_state(t.name, "accumulated")] = torch.zeros_like(as_stored(t.parameter))
            state[self.micro_name] = torch.zeros((), dtype=torch.int64)
        state[self.step_name] = torch.tensor(steps_of(self.trained), dtype=torch.int64)
        for i, (rate, group) in enumerate(
            zip(self.rates, self.optimizer.param_groups, strict=True)
        ):
            is_double = any(t.group == i and t.parameter.dtype in _DOUBLE for t in self.trained)
            kind = torch.float64 if is_double else torch.float32
            state[rate] = torch.tensor(float(group["lr"]), dtype=kind)
        state[self.seed_name] = torch.zeros((), dtype=torch.int64)
        self.state = {k: as_stored(v).clone().contiguous().cpu() for k, v in state.items()}
        return [*self.batch.names, *state], {**state}

    def _function(
        self,
        graph: torch.fx.GraphModule,
        signature: Any,
        held: Sequence[str],
        gradients: Mapping[str, Sequence[int]],
        inputs: Sequence[str],
        draws: SeededDraws,
    ) -> Callable[..., Any]:
        """The step as a function of its inputs, in order."""
        order = [*held, *self.batch.names]
        # NOTE: new values of buffers come first; the signature's name of the loss forgets them.
        buffers = [self._canonical[n] for n in signature.buffers_to_mutate.values()]

        whole = interpreter_of(graph)

        def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = dict(zip(inputs, values, strict=True))
            draws.seed = given[self.seed_name]
            results = whole(*(given[name] for name in order))
            new = dict(zip(buffers, results[: len(buffers)], strict=True))
            found = {
                t.name: as_stored(
                    functools.reduce(operator.add, [results[i] for i in gradients[t.name]])
                )
                for t in self.trained
            }
            new |= self._changed(given, found)
            if draws.count:
                new[self.seed_name] = torch.remainder(
                    given[self.seed_name] * 48271 + 12820163, 2**31 - 1
                )
            self.draws = bool(draws.count)
            self.feeds_back = {f"{name}.new": name for name in new}
            return (results[len(buffers)], *new.values())

        return run

    def _changed(
        self, given: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The new values of parameters and of what the optimizer keeps."""
        new: dict[str, torch.Tensor] = {}
        due = None
        if self.accumulate > 1:
            micro = given[self.micro_name] + 1
            due = micro == self.accumulate
            gradients = {
                name: given[_of_state(name, "accumulated")] + grad / self.accumulate
                for name, grad in gradients.items()
            }
            new[self.micro_name] = torch.where(due, torch.zeros_like(micro), micro)
            for name, grad in gradients.items():
                zeros = torch.zeros_like(grad)
                new[_of_state(name, "accumulated")] = torch.where(due, zeros, grad)
        if self.clip_norm is not None:
            gradients = _clipped(gradients, self.clip_norm)
        step = given[self.step_name] + 1
        new[self.step_name] = step if due is None else torch.where(due, step, step - 1)
        for t in self.trained:
            p, rate = as_stored(given[t.name]), given[self.rates[t.group]]
            state = {key: given[_of_state(t.name, key)] for key in t.state}
            changed, kept = self.update(Given(p, gradients[t.name], state, t.options, rate, step))
            pairs = {t.name: (changed, p)}
            pairs |= {_of_state(t.name, k): (v, state[k]) for k, v in kept.items()}
            for name, (value, before) in pairs.items():
                after = value.to(before.dtype)  # a rate makes single numbers wider
                new[name] = after if due is None else torch.where(due, after, before)
        return new

    def _convert(
        self, traced: torch.fx.GraphModule, inputs: list[str], opset: int, *, is_dynamic: bool
    ) -> bytes:
        """The traced step as a model; the seed is no input where nothing is random."""
        _drop_checks(traced)
        _refuse_draws(traced)
        kept = [n for n in inputs if n != self.seed_name or self.draws]
        if len(kept) < len(inputs):
            unused = traced.graph.find_nodes(op="placeholder")[inputs.index(self.seed_name)]
            traced.graph.erase_node(unused)
            traced.recompile()
            self.state.pop(self.seed_name)
        shapes = [
            self.batch.shapes[self.batch.names.index(n)] if n in self.batch.names else None
            for n in kept
        ]
        outputs = [self.loss_name, *self.feeds_back]
        return _file(traced, kept, outputs, opset, tuple(shapes) if is_dynamic else None)

    def export_eval(self, opset: int) -> tuple[bytes, list[str]]:
        """The model of the outputs, and their names."""
        batch = self.batch
        shapes = batch.shapes[: batch.inputs]
        fakes = ModuleFakes(any(map(_varies, shapes)))
        module = _Outputs(self.model, batch)
        with fakes.inside(module, ()), torch.no_grad():
            leaves = fakes.all(batch.leaves[: batch.inputs], shapes)
            graph, signature = trace(module, fakes, leaves, module.lines, joint=False)
        results = results_of(graph.graph)[len(signature.buffers_to_mutate) :]
        set_results(graph, results)
        _drop_checks(graph)
        held = self._held(signature)
        _merge_inputs(graph, held)
        held = list(dict.fromkeys(held))
        names = [*held, *batch.names[: batch.inputs]]
        words = _Names(names)
        single = len(results) == 1
        outputs = [words("output" if single else f"output_{i}") for i in range(len(results))]
        said = (*[None] * len(held), *shapes)
        return _file(graph, names, outputs, opset, said if fakes.dynamic else None), outputs


def _held_by(model: torch.nn.Module, loss: Any) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The parameters and buffers of a model and a loss by name, and for each name that tracing
    has for one, the first: some are there twice."""
    tensors: dict[str, torch.Tensor] = {}
    canonical: dict[str, str] = {}
    first: dict[int, str] = {}
    parts = [("model.", "", model)]
    if isinstance(loss, torch.nn.Module):
        parts.append(("loss.", "loss.", loss))
    for traced, shown, module in parts:
        for name, tensor in named_tensors(module):
            known = first.setdefault(id(tensor), f"{shown}{name}")
            canonical[f"{traced}{name}"] = known
            tensors[known] = tensor
    return tensors, canonical


def _of_state(name: str, key: str) -> str:
    return f"{name}.{key}"


def _clipped(gradients: Mapping[str, torch.Tensor], most: float) -> dict[str, torch.Tensor]:
    """Gradients whose norm together is no larger, as ``clip_grad_norm_`` makes them."""
    norms = torch.cat([torch.linalg.vector_norm(g).reshape(1) for g in gradients.values()])
    factor = torch.clamp(most / (torch.linalg.vector_norm(norms) + 1e-6), max=1.0)
    return {name: grad * factor.to(grad.dtype) for name, grad in gradients.items()}


def _places_of_gradients(
    graph: torch.fx.GraphModule, signature: Any, held: Sequence[str], trained: Collection[str]
) -> dict[str, list[int]]:
    """Where the gradients of each parameter are among the results of a joint graph.

    One that a model has under two names has a gradient for each.
    """
    names = [n for n in held[: len(signature.parameters)] if n in trained]
    results = results_of(graph.graph)
    first = len(signature.buffers_to_mutate) + 1
    assert len(results) - first == len(names)
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names, first):
        if results[place] is not None:
            found.setdefault(name, []).append(place)
    return found


def _merge_inputs(graph: torch.fx.GraphModule, names: Sequence[str]) -> None:
    """Have inputs of one name, the first ones of a graph, be one."""
    first: dict[str, torch.fx.Node] = {}
    for name, node in zip(names, graph.graph.find_nodes(op="placeholder"), strict=False):
        known = first.setdefault(name, node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.graph.erase_node(node)
    graph.recompile()


def _drop_checks(graph: torch.fx.GraphModule) -> None:
    """Leave out what torch adds to check sizes and types, and what is unused."""
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and op_name(node.target) in _CHECKS and not node.users:
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()


def _require_values(model: torch.nn.Module) -> None:
    """Refuse tensors that have no numbers yet."""
    for name, tensor in named_tensors(model):
        if torch.nn.parameter.is_lazy(tensor):
            raise ExportError(f"{name!r} has no size before the model is called: call it once.")
        if tensor.is_meta:
            raise ExportError(f"{name!r} is on the meta device and has no values to start with.")


def _refuse_averages(model: torch.nn.Module) -> None:
    """Refuse batch norms that weigh a batch by the number of all before, which torch reads into
    Python at each call."""
    for name, part in model.named_modules():
        is_norm = isinstance(part, torch.nn.modules.batchnorm._NormBase)
        if is_norm and part.training and part.track_running_stats and part.momentum is None:
            raise ExportError(
                f"{name or 'The model'}: {type(part).__name__}(momentum=None) reads into Python "
                "how many batches there were, which a file cannot: give it a momentum (0.1 is "
                "torch's default)."
            )


def _refuse_draws(graph: torch.fx.GraphModule) -> None:
    """Refuse random operators whose numbers no runtime would draw alike."""
    for node in graph.graph.nodes:
        if node.op == "call_function" and is_random(node):
            where = source_line(node)
            raise ExportError(
                f"{op_name(node.target)} draws random numbers that a file cannot draw"
                f"{f', at {where}' if where else ''}: dropout, bernoulli, rand, randn, randint, "
                "randperm, uniform, normal and exponential can be exported."
            )


def _file(
    graph: torch.fx.GraphModule,
    inputs: Sequence[str],
    outputs: Sequence[str],
    opset: int,
    shapes: Any,
) -> bytes:
    """A graph as the bytes of a model, without what it says of its sources."""
    proto: Any = to_onnx(
        graph,
        input_names=inputs,
        output_names=outputs,
        target_opset=opset,
        dynamic_shapes=shapes,
    )
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    content: bytes = proto.SerializeToString()
    return content
