"""The Python source of one call: the signature written out, with every decision already taken.

Two functions share this module. ``call`` takes the list of arguments, empties it, feeds a session
and assembles the results; ``assemble`` only does the second half, for whoever computes the model's
outputs differently. The text is readable (``Executor.source``) and depends on the signature alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dort_rewriter.errors import ExecutionError
from dort_rewriter.runtime.argument_encoding import (
    arguments_needed,
    find_step,
    keys_of_results,
    spell_argument,
    spell_device_tests,
    spell_literal,
    spell_size,
    spell_tuple,
    spell_unpacking,
)
from dort_rewriter.runtime.ort_values import TYPECODES, CallPlan, takes_flag
from dort_rewriter.signature import GraphSignature, OutputSlot, ViewStep, Writes

_METHODS = {
    "aten::as_strided": "as_strided",
    "aten::as_strided_": "as_strided_",
    "aten::permute": "permute",
    "aten::t": "t",
    "aten::transpose.int": "transpose",
    "aten::unsqueeze": "unsqueeze",
    "aten::view": "view",
}
"""Views that tensors have as methods of the same arguments, at a third of the cost."""


class _ResultLines:
    """Lines of a function, and the constants that they refer to by name.

    What the model gave is ``y0``, ``y1``, ..., the arguments are ``a0``, ``a1``, ...; with
    ``whole`` truth values are what they are, otherwise bytes.
    """

    def __init__(self, signature: GraphSignature, *, whole: bool = False) -> None:
        self.signature = signature
        self.whole = whole
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}

    def _results(self) -> None:
        model_names = {name: i for i, name in enumerate(self.signature.output_names)}
        keys = keys_of_results(self.signature)
        uses = Counter(key[:n] for key in keys for n in range(3, len(key) + 1))
        seen: dict[tuple[Any, ...], str] = {}
        for position, (slot, key) in enumerate(zip(self.signature.outputs, keys, strict=True)):
            value = self._origin(slot, model_names)
            for n, step in enumerate(slot.views, 3):
                steps, last = key[:n], n == len(key)
                made = seen.get(steps, "")
                if made and not (last and made.startswith("r")):  # two results are two tensors
                    value = made
                    continue
                value = self._view(value, step)
                if uses[steps] > 1 and not last:  # a view that several results are seen in
                    seen[steps] = f"v{len(seen)}"
                    self._line(f"{seen[steps]} = {value}")
                    value = seen[steps]
            self._line(f"r{position} = {value}")
            seen[key] = f"r{position}"
        self._line(f"return {spell_tuple(f'r{i}' for i in range(len(self.signature.outputs)))}")

    def _origin(self, slot: OutputSlot, model_names: dict[str, int]) -> str:
        match slot.source:
            case "constant":
                return "None" if slot.kind == "none" else spell_literal(slot.value)
            case "size":
                if slot.size is None:
                    raise ExecutionError(f"Output {slot.name!r} has no size to compute.")
                return spell_size(slot.size)
            case "input":
                return f"a{slot.index}"
            case "output":
                return f"r{slot.index}"
        value = f"y{model_names[slot.name]}"
        if slot.kind == "tensor":
            is_bytes = slot.dtype is torch.bool and not self.whole
            return self._bool(value, slot) if is_bytes else value
        return f"{slot.kind}({value}.item())"

    def _bool(self, value: str, slot: OutputSlot) -> str:
        """See bytes as what they are: once, where several results share them."""
        seen = f"{value}.view({self._constant('torch_bool', torch.bool)})"
        same = [
            s
            for s in self.signature.outputs
            if (s.source, s.name, s.dtype) == (slot.source, slot.name, slot.dtype)
        ]
        if len(same) == 1:
            return seen
        name = value.replace("y", "m")
        if same[0] is slot:
            self._line(f"{name} = {seen}")
        return name

    def _view(self, value: str, step: ViewStep) -> str:
        given = [self._argument(a) for a in step.args]
        given += [f"{name}={self._argument(a)}" for name, a in step.kwargs]
        if (method := _METHODS.get(step.op)) is not None:
            return f"{value}.{method}({', '.join(given)})"
        function = self._constant(
            f"view_{step.op.replace('::', '_').replace('.', '_')}", find_step(step.op)
        )
        return f"{function}({', '.join([value, *given])})"

    def _argument(self, value: object) -> str:
        if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
            return self._constant(str(value).replace(".", "_"), value)
        return spell_argument(value)

    def _constant(self, name: str, value: object) -> str:
        self.constants[name] = value
        return name

    def _line(self, text: str) -> None:
        self.lines.append(f"    {text}")


@dataclass(frozen=True)
class GeneratedCode:
    """Generated text and the constants it refers to by name."""

    text: str
    constants: dict[str, Any] = field(repr=False)

    def function(self, name: str, others: Mapping[str, Any]) -> Callable[..., tuple[Any, ...]]:
        """The function of a name, which refers to these constants and to others."""
        namespace = {**others, **self.constants}
        exec(compile(self.text, f"<dort_rewriter {name}>", "exec"), namespace)
        # Left in its own globals it would keep itself, and the session, until a collection.
        return namespace.pop(name)


@dataclass(frozen=True)
class Allocation:
    """A tensor that torch makes for a result."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None


def fetch_order(signature: GraphSignature, written: Mapping[str, int]) -> list[str]:
    """The outputs of a model in the order they are asked for: those written to arguments first."""
    return [*written, *(n for n in signature.output_names if n not in written)]


class CallLines(_ResultLines):
    """Lines that feed a session, run it, and make the results of a call.

    ``allocated`` says what torch makes for the session to write the model's outputs to; without
    it onnxruntime makes its own. What ``writes`` names is written to the memory of arguments, and
    these are the results, in calls that allow it. With ``pause`` torch's threads are paused before
    the runs that gain by it.
    """

    def __init__(
        self,
        signature: GraphSignature,
        plan: CallPlan,
        allocated: Sequence[Allocation] = (),
        writes: Writes | None = None,
        pause: bool = False,
    ) -> None:
        super().__init__(signature, whole=bool(allocated))
        self.plan = plan
        self.read = [s.read_dtype for s in signature.inputs]
        """The element type of what is fed for each argument: pairs, of complex numbers."""
        self.allocated = allocated
        self.written = {} if writes is None else writes.arguments
        # Numbers are elsewhere in each call, what a session makes is another value in each.
        self.keeps_feeds = bool(self.written) and not plan.scalars
        self.keeps_fetches = 0 < len(self.written) == len(signature.output_names)
        self.pause = pause

    def write_call(self) -> GeneratedCode:
        """Write the function ``call``; the session's names are left to the caller to define."""
        names = [f"a{i}" for i in range(len(self.signature.inputs))]
        self.lines.append("def call(arguments):")
        if self.signature.output_names:
            self._unpack_and_feed(names)
            self._run()
        else:
            self.lines.append(spell_unpacking(names, "arguments"))
        self._release(names)
        if self.signature.output_names and not self.allocated:
            self._produced()
        self._results()
        return GeneratedCode("\n".join(self.lines) + "\n", self.constants)

    def write_assemble(self) -> GeneratedCode:
        """Write ``assemble(arguments, produced)``: the results from the model's outputs."""
        names = [f"a{i}" for i in range(len(self.signature.inputs))]
        produced = [f"y{i}" for i in range(len(self.signature.output_names))]
        self.lines += ["def assemble(arguments, produced):", spell_unpacking(names, "arguments")]
        self.lines.append(spell_unpacking(produced, "produced"))
        self._results()
        return GeneratedCode("\n".join(self.lines) + "\n", self.constants)

    # -- feeding

    def _unpack_and_feed(self, names: list[str]) -> None:
        self.lines.append(spell_unpacking(names, "arguments"))
        self._feed()

    def _feed(self) -> None:
        self._recognize()
        for index in self.plan.capsules:
            for line in self._make_ready(index):
                self._line(line)
        addresses = [f"p{i}" for i in self.plan.batched]
        numbers = 0
        for number, (dtype, group) in enumerate(self.plan.scalars.items()):
            code = TYPECODES[dtype]
            self._line(f"n{number} = array({code!r}, {spell_tuple(f'a{i}' for i in group)})")
            self._line(f"q{number} = n{number}.buffer_info()[0]")
            size = dtype.itemsize
            addresses += [
                f"q{number} + {k * size}" if k else f"q{number}" for k in range(len(group))
            ]
            numbers += len(group)
        if self.written:
            places = spell_tuple(f"p{i}" for i in self.plan.batched)
            self._line(f"places = {places}")
            self._line("writes = as_given and APART(places, shapes)")
        if self.keeps_feeds:
            self._line("feeds = FED.take(places, shapes) if writes else None")
            self._line("if feeds is None:")
            self._line("    feeds = OrtValueVector()")
            self._line("    feeds.push_back_batch(NONES, places, TYPES, shapes, DEVICES)")
            return
        self._line("feeds = OrtValueVector()")
        if addresses:
            self._line(f"addresses = {spell_tuple(addresses)}")
            if not self.plan.batched:
                self._line(f"shapes = {spell_tuple(['()'] * numbers)}")
            self._line("feeds.push_back_batch(NONES, addresses, TYPES, shapes, DEVICES)")
        flag = ", False" if self.plan.capsules and takes_flag() else ""
        for index in self.plan.capsules:
            self._line(f"feeds.push_back(to_capsule(t{index}){flag})")

    def _recognize(self) -> None:
        """Look at all tensors at once, and at each when they are not like those before."""
        if not self.plan.batched:
            return
        for index in self.plan.batched:
            slot = self.signature.inputs[index]
            if self.read[index] is not slot.dtype:
                dtype = self._constant(str(slot.dtype).replace(".", "_"), slot.dtype)
                self._line(f"c{index} = pairs(a{index}, {slot.name!r}, {dtype})")
        given = spell_tuple(map(self._given, self.plan.batched))
        ready = spell_tuple(f"t{i}" for i in self.plan.batched)
        self._line("check, shapes = KNOWN.latest")
        self._line(f"if check{given}:")
        self._line(f"    {ready} = {given}")
        if self.written:
            self._line("    as_given = True")
        self._line("else:")
        for index in self.plan.batched:
            for line in self._make_ready(index):
                self._line(f"    {line}")
        self._line(f"    shapes = KNOWN.learn({ready})")
        if self.written:
            same = [f"t{i}.data_ptr() == a{i}.data_ptr()" for i in self.written.values()]
            self._line(f"    as_given = {' and '.join(same)}")
        for index in self.plan.batched:
            name = self.signature.inputs[index].name
            self._line(f"p{index} = t{index}.data_ptr() or empty_address(t{index}, {name!r})")

    def _given(self, index: int) -> str:
        """What is fed for an argument, if its memory is fit for that."""
        is_given = self.read[index] is self.signature.inputs[index].dtype
        return f"{'a' if is_given else 'c'}{index}"

    def _make_ready(self, index: int) -> Iterator[str]:
        """The lines that make a tensor what the session reads."""
        slot = self.signature.inputs[index]
        given = self._given(index)
        if slot.order is not None:
            yield f"t{index} = {given}.permute({slot.read_order!r})"
            given = f"t{index}"
        dtype = self._constant(str(self.read[index]).replace(".", "_"), self.read[index])
        tests = [*spell_device_tests(given, slot), f"{given}.dtype is {dtype}"]
        tests.append(f"{given}.is_contiguous()")
        if slot.dtype is not torch.bool:  # which has no negation
            tests.append(f"not {given}.is_neg()")
        device = f", {self._constant(f'device{index}', slot.device)}" if slot.device else ""
        fallback = f"dense({given}, {slot.name!r}, {dtype}{device})"
        yield f"t{index} = {given} if {' and '.join(tests)} else {fallback}"

    def _run(self) -> None:
        on_cuda = self._on_cuda()
        if self.written:
            self._write_to_arguments()
        else:
            self._line("fetches = OrtValueVector()")
            self._allocate()
        if on_cuda:
            self._line("before()")
        if self.pause:
            self._line("if LAST[0] > SHORTEST:")
            self._line("    pause(PAUSE_SOFT)")
            self._line("started = now()")
        self._line("try:")
        # While no profiler is on, that costs one question (0.05 us) and no call around the run.
        self._line("    here = recorded if profiler_enabled() else run")
        self._line("    here(OPTIONS, FEEDS, feeds, FETCHES, fetches, FETCH_DEVICES)")
        self._line("except ERRORS as error:")
        self._line(f"    raise failure(error{', writes' if self.written else ''}) from error")
        if self.pause:
            self._line("LAST[0] = now() - started")
        if on_cuda:
            self._line("after()")
        self._keep()

    def _keep(self) -> None:
        """Keep what was made of addresses for the next call."""
        kept = ["    FED.keep(places, shapes, feeds)"] if self.keeps_feeds else []
        kept += ["    WRITTEN.keep(targets, shapes, fetches)"] if self.keeps_fetches else []
        for line in ["if writes:", *kept] if kept else ():
            self._line(line)

    def _allocate(self) -> None:
        """Let torch make the tensors that the session writes its results to."""
        if not self.allocated:
            return
        produced = [f"y{i}" for i in range(len(self.allocated))]
        for name, wanted in zip(produced, self.allocated, strict=True):
            dtype = self._constant(str(wanted.dtype).replace(".", "_"), wanted.dtype)
            device = self._constant(f"{name}_device", wanted.device)
            self._line(f"{name} = empty({wanted.shape!r}, dtype={dtype}, device={device})")
        addresses = spell_tuple(f"{name}.data_ptr()" for name in produced)
        self._line(
            f"fetches.push_back_batch(FETCH_NONES, {addresses}, FETCH_TYPES, FETCH_SHAPES, "
            "FETCH_DEVICES)"
        )

    def _write_to_arguments(self) -> None:
        """Give the session the memory of arguments, in calls that allow it."""
        fed = {index: k for k, index in enumerate(self.plan.batched)}
        targets = spell_tuple(f"p{i}" for i in self.written.values())
        self._line(f"targets = {targets}")
        if self.keeps_fetches:
            self._line("fetches = WRITTEN.take(targets, shapes) if writes else OrtValueVector()")
            self._line("if fetches is None:")
            self._line("    fetches = OrtValueVector()")
        else:
            self._line("fetches = OrtValueVector()")
            self._line("if writes:")
        shapes = spell_tuple(f"shapes[{fed[i]}]" for i in self.written.values())
        given = f"WRITE_NONES, targets, WRITE_TYPES, {shapes}, FETCH_DEVICES"
        self._line(f"    fetches.push_back_batch({given})")
        for _ in range(len(self.signature.output_names) - len(self.written)):
            self._line("    fetches.push_back(UNMADE)")

    def _produced(self) -> None:
        """Take what the session made, and the arguments that it wrote to."""
        position = {name: i for i, name in enumerate(self.signature.output_names)}
        order = fetch_order(self.signature, self.written)
        names = [f"y{position[n]}" for n in order]
        everything = spell_unpacking(names, "fetches.to_dlpacks(to_tensor)")
        if not self.written:
            self.lines.append(everything)
            return
        self._line("if writes:")
        for k, name in enumerate(order):
            made = f"to_tensor(fetches.dlpack_at({k}))"
            value = f"a{self.written[name]}" if name in self.written else made
            self._line(f"    y{position[name]} = {value}")
        self._line("else:")
        self._line(everything)

    def _on_cuda(self) -> bool:
        devices = [s.device for s in self.signature.inputs]
        devices += [s.device for s in self.signature.outputs]
        return any(d is not None and d.type == "cuda" for d in devices)

    def _release(self, names: list[str]) -> None:
        """Drop every argument that no result needs: the caller gave its list away."""
        self._line("arguments.clear()")
        needed = {*arguments_needed(self.signature), *self.written.values()}
        gone = [n for i, n in enumerate(names) if i not in needed]
        if self.signature.output_names:
            gone += [f"t{i}" for i in (*self.plan.batched, *self.plan.capsules)]
            gone += [f"c{i}" for i in self.plan.batched if self.signature.inputs[i].is_complex]
            gone.append("feeds")
        if gone:
            self._line(f"del {', '.join(gone)}")
