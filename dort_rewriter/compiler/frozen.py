"""Arguments inside a model, and the check at each call that they are still what it holds.

Weights are there when the user asks for it. Numbers are always: under ``dynamic=True`` Dynamo
makes inputs of Python floats such as the epsilon of a norm, which hardly ever change, and which
operators want as attributes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook


class _Frozen:
    """Some arguments of a graph as they were when its model was built."""

    tensors: Mapping[int, torch.Tensor]
    """By position among the arguments."""

    def unchanged(self, args: Sequence[Any]) -> bool:
        """Whether these arguments hold what the model does."""
        raise NotImplementedError

    def guard(
        self, run: Callable[[list[Any]], Any], changed: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        """``run`` for arguments that are unchanged, ``changed`` for others."""
        if not self.tensors:
            return run

        def call(args: list[Any]) -> Any:
            return run(args) if self.unchanged(args) else changed(args)

        return call


class FrozenWeights(_Frozen):
    """What some arguments of a graph were when its model was built.

    A tensor is the same as long as its memory and its version are, and no optimizer has stepped
    it. NOTE: the storages are kept alive: memory that was freed could be given to another tensor,
    which would pass for the old.

    NOTE: two kinds of writes of torch move no version. Fused optimizers (and those that write to
    ``parameter.data``) are seen when they have stepped; a batch norm in training mode writes its
    statistics, so that buffers are compared by their numbers.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.tensors = dict(tensors)
        self._storages = [t.untyped_storage() for t in tensors.values()]
        self._marks = [(i, t.data_ptr(), t._version) for i, t in tensors.items()]
        self._buffers = [
            (i, t.detach().clone()) for i, t in tensors.items() if _may_be_statistics(t)
        ]
        self._taken = [(i, weakref.ref(t)) for i, t in tensors.items()]
        self._addresses = {address for _, address, _ in self._marks}
        self._stepped = False
        if tensors:
            _watch_optimizers()
            _frozen.add(self)

    def identities(self, args: Sequence[Any]) -> tuple[int, ...]:
        """Which tensors these arguments have for weights."""
        return tuple([id(args[i]) for i in self.tensors])

    def are_alive(self) -> bool:
        """Whether somebody else still has the tensors that were taken."""
        return all(taken() is not None for _, taken in self._taken)

    def are_taken_from(self, args: Sequence[Any]) -> bool:
        """Whether these arguments are the tensors that were taken, changed or not."""
        return all(args[i] is taken() for i, taken in self._taken)

    def note_step(self, addresses: Set[int]) -> None:
        """Take note of parameters that an optimizer has stepped."""
        self._stepped = self._stepped or not self._addresses.isdisjoint(addresses)

    @classmethod
    def take(
        cls, graph_module: torch.fx.GraphModule, names: frozenset[str], args: Sequence[Any]
    ) -> FrozenWeights:
        """Take the arguments with these names, but for those whose changes cannot be seen."""
        placeholders = [n.name for n in graph_module.graph.nodes if n.op == "placeholder"]
        return cls(
            {
                i: argument
                for i, (name, argument) in enumerate(zip(placeholders, args, strict=True))
                if name in names and _can_watch(argument)
            }
        )

    def unchanged(self, args: Sequence[Any]) -> bool:
        """Whether these arguments hold what the model does."""
        if self._stepped:
            return False
        for i, address, version in self._marks:
            tensor = args[i]
            if tensor.data_ptr() != address or tensor._version != version:
                return False
        return all(torch.equal(args[i], numbers) for i, numbers in self._buffers)


_frozen: weakref.WeakSet[FrozenWeights] = weakref.WeakSet()
"""Those of models that are still there."""


@functools.cache
def _watch_optimizers() -> None:
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if not _frozen:
        return
    groups = optimizer.param_groups
    addresses = {p.data_ptr() for group in groups for p in group["params"]}
    for weights in list(_frozen):
        weights.note_step(addresses)


def _may_be_statistics(tensor: torch.Tensor) -> bool:
    """Whether a tensor may be written to by a batch norm in training mode."""
    is_vector = tensor.dim() == 1 and tensor.is_floating_point()
    return is_vector and not isinstance(tensor, torch.nn.Parameter)


class FrozenNumbers(_Frozen):
    """What the numbers among the arguments were when a model was built.

    Dynamo passes a Python float as a tensor of float64 without axes, a new one at each call. A
    tensor of the user that looks the same is taken too: it is compared likewise. NOTE: zeros are
    left out: -0.0 is equal to 0.0.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.tensors = {i: t.detach().clone() for i, t in tensors.items()}
        self.values = {i: float(t) for i, t in tensors.items()}

    @classmethod
    def take(cls, args: Sequence[Any]) -> FrozenNumbers:
        """Take the arguments that are numbers."""
        return cls({i: a for i, a in enumerate(args) if _is_number(a) and float(a) != 0.0})

    def unchanged(self, args: Sequence[Any]) -> bool:
        """Whether these arguments are the numbers that the model holds."""
        return all(args[i].item() == value for i, value in self.values.items())


def _is_number(argument: Any) -> bool:
    return (
        type(argument) is torch.Tensor
        and argument.dtype == torch.float64
        and argument.dim() == 0
        and argument.device.type == "cpu"
        and not argument.requires_grad
    )


def _can_watch(argument: Any) -> bool:
    """Whether a tensor has memory and a version of its own: those of inference_mode have no
    version, and subclasses may keep their numbers elsewhere."""
    return (
        isinstance(argument, torch.Tensor)
        and type(argument) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and argument.layout == torch.strided
        and not argument.is_inference()
        and not argument.is_neg()
        and not argument.is_conj()
    )
