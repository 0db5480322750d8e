"""Samples of operators with special numbers, and how they differ from eager mode.

For ``special_values.py``.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from op_db_entries import call_of
from opset_coverage import Record

SPECIAL = {
    "inf": (math.inf,),
    "-inf": (-math.inf,),
    "infs": (math.inf, -math.inf),
    "nan": (math.nan,),
    "zeros": (0.0, -0.0),
    "1e-30": (1e-30, -1e-30),
    "1e3": (1e3, -1e3),
    "1e30": (1e30, -1e30),
    "tiny": (1.0, -1.0),  # times the smallest number that is normal, and parts of it
    "max": (1.0, -1.0),  # times the largest number
}
APART = ("infs", "nan", "zeros", "max")
"""What is put into one argument alone, too."""
SHARE = 0.25
"""How many of the elements of an argument are special: one at least."""
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
NEAR = 64.0
"""From this part of the largest number on a sum of a few may be out of range."""
NOISE = 4.0
"""How much farther from float64 than eager mode is still rounding."""
OVERFLOW = "overflow"
"""What is neither wrong nor right: see :func:`overflows`."""


@dataclasses.dataclass(frozen=True)
class Fill:
    """Which numbers go where: into one argument, all of them, or the gradients that come in."""

    numbers: str
    place: int | str

    def __str__(self) -> str:
        return f"{self.numbers} in {self.place}"


def fill(tensor: torch.Tensor, numbers: str, seed: int) -> torch.Tensor:
    """A tensor of which some elements are special numbers; it lies as the one that is given."""
    result = tensor.detach().clone()
    real = result
    if result.is_complex() or not result.is_floating_point() or not result.numel():
        return result
    ends = torch.finfo(result.dtype)
    choices = torch.tensor(SPECIAL[numbers], dtype=torch.float64)
    if numbers == "tiny":
        choices = torch.cat([choices * ends.smallest_normal, choices * ends.smallest_normal / 4])
    elif numbers == "max":
        choices = choices * ends.max
    generator = torch.Generator().manual_seed(seed)
    count = max(1, int(SHARE * real.numel()))
    places = torch.randperm(real.numel(), generator=generator)[:count]
    chosen = choices[torch.randint(0, len(choices), (count,), generator=generator)]
    mask = torch.zeros(real.numel(), dtype=torch.bool)
    mask[places] = True
    values = torch.zeros(real.numel(), dtype=torch.float64)
    values[places] = chosen
    return torch.where(mask.view(real.shape), values.view(real.shape).to(real.dtype), real)


def evaluate(
    function: Callable[..., list[torch.Tensor]],
    tensors: Sequence[torch.Tensor],
    numbers: str,
    dtype: torch.dtype | None = None,
) -> list[Any]:
    """Results and gradients; special numbers in the gradients that come in, if asked for: those
    of a type, which may not be that of the results."""
    copies = [t.detach().clone().requires_grad_(t.requires_grad) for t in tensors]
    torch.default_generator.manual_seed(1)
    results = function(*copies)
    ends = [r for r in results if r.requires_grad and r.is_floating_point()]
    starts = [c for c in copies if c.requires_grad]
    found: list[Any] = [r.detach() for r in results]
    if not ends or not starts:
        return found
    torch.default_generator.manual_seed(2)
    seeds = [torch.randn(r.shape, dtype=torch.float64).to(r.dtype) for r in ends]
    if numbers:
        filled = [fill(s.to(dtype or s.dtype), numbers, i) for i, s in enumerate(seeds)]
        seeds = [s.to(r.dtype) for s, r in zip(filled, ends, strict=True)]
    return [*found, *torch.autograd.grad(ends, starts, seeds, allow_unused=True)]


def difference(a: Any, b: Any) -> tuple[str, str]:
    """In what two results differ, and how; two empty texts when they do not."""
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return ("", "") if a is None and b is None else ("none", f"{type(a)} for {type(b)}")
    if a.dtype != b.dtype or a.shape != b.shape:
        return "type", f"{a.dtype} {list(a.shape)} for {b.dtype} {list(b.shape)}"
    if strides_of(a) != strides_of(b):
        return "stride", f"{a.stride()} for {b.stride()} of {list(a.shape)}"
    if a.is_complex():
        a, b = (torch.view_as_real(v.resolve_conj()) for v in (a, b))
    a, b = a.resolve_neg(), b.resolve_neg()
    if not b.is_floating_point():
        return told("value", a != b, a, b)
    wide = [v.double() for v in (a, b)]
    x, y = wide
    limit = TOLERANCE.get(b.dtype, 1e-4)
    for what, wrong in (
        ("nan", x.isnan() != y.isnan()),
        ("inf", (x != y) & (x.isinf() | y.isinf()) & ~x.isnan() & ~y.isnan()),
        ("zero", (x == 0) & (y == 0) & (x.signbit() != y.signbit())),
        ("value", ((x - y).abs() > limit * (y.abs() + 0.1)) & x.isfinite() & y.isfinite()),
    ):
        if wrong.any():
            return told(what, wrong, a, b)
    return "", ""


def told(what: str, wrong: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[str, str]:
    if not wrong.any():
        return "", ""
    at = tuple(wrong.nonzero()[0].tolist())
    return what, f"{a[at].item()} for {b[at].item()} at {at}"


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    if not tensor.numel() or tensor.layout is not torch.strided:
        return ()
    return tuple(s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)


class Watch(logging.Handler):
    """Keeps the first warning of the package: something fell back."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.text or " ".join(record.getMessage().split())


class Sample:
    """One sample, compiled by both backends when they are asked for."""

    def __init__(self, entry: Any, sample: Any, grad: bool) -> None:
        torch._dynamo.reset()
        self.call, self.tensors = call_of(entry, sample, grad)
        self.compiled: dict[str, Callable[..., Any]] = {}
        self.watch = Watch()

    def run(self, backend: str, tensors: Sequence[torch.Tensor], numbers: str) -> list[Any]:
        if backend not in self.compiled:
            self.compiled[backend] = torch.compile(self.call, backend=backend, dynamic=False)
        logger = logging.getLogger("dort_rewriter")
        if backend == "onnxrt":
            logger.addHandler(self.watch)
        try:
            return evaluate(self.compiled[backend], tensors, numbers)
        finally:
            logger.removeHandler(self.watch)

    def fills(self) -> Iterator[Fill | None]:
        """What to try: the numbers of the sample first."""
        yield None
        floats = [i for i, t in enumerate(self.tensors) if t.is_floating_point() and t.numel()]
        derived = any(t.requires_grad for t in self.tensors)
        for numbers in SPECIAL:
            yield Fill(numbers, "all")
            if len(floats) > 1 and numbers in APART:
                yield from (Fill(numbers, i) for i in floats[:4])
            if derived:
                yield Fill(numbers, "gradients")

    def filled(self, chosen: Fill | None) -> tuple[list[torch.Tensor], str]:
        if chosen is None:
            return self.tensors, ""
        if chosen.place == "gradients":
            return self.tensors, chosen.numbers
        made = [
            fill(t, chosen.numbers, i).requires_grad_(t.requires_grad)
            if chosen.place in ("all", i)
            else t
            for i, t in enumerate(self.tensors)
        ]
        return made, ""

    def judge(self) -> Iterator[Record]:
        """Yield what is wrong, once for each kind of difference in each result."""
        told_of = set()
        for chosen in self.fills():
            tensors, numbers = self.filled(chosen)
            try:
                expected = evaluate(self.call, tensors, numbers)
            except Exception:  # eager mode refuses these numbers: there is nothing to compare with
                continue
            try:
                got = self.run("onnxrt", tensors, numbers)
            except Exception as e:  # whatever breaks is the finding
                got = [f"{type(e).__name__}: {e}"] * len(expected)
                if "Unsupported" in got[0] and chosen is None:
                    yield {"status": "fell back", "detail": " ".join(got[0].split())[:300]}
            differing = self.beyond(chosen, tensors, numbers, got, expected)
            for i, what, text in differing:
                if (i, what) in told_of:
                    continue
                told_of.add((i, what))
                yield {
                    "status": what if what == OVERFLOW else "wrong",
                    "what": what,
                    "result": i,
                    "fill": str(chosen),
                    "detail": text,
                    "given": [briefly(t) for t in tensors][:4],
                }
            if any(isinstance(g, str) for g in got) or (chosen is None and differing):
                break
        if self.watch.text:
            yield {"status": "fell back", "detail": self.watch.text[:300]}

    def beyond(
        self,
        chosen: Fill | None,
        tensors: Sequence[torch.Tensor],
        numbers: str,
        got: list[Any],
        expected: list[Any],
    ) -> list[tuple[int, str, str]]:
        """The results that differ, and not by roundings, nor with ``aot_eager``."""
        found = []
        for i, (a, b) in enumerate(zip(got, expected, strict=False)):
            if isinstance(a, str):
                found.append((i, "error", a[:300]))
                break
            what, text = difference(a, b)
            if what:
                found.append((i, what, text))
        if len(got) != len(expected):
            found.append((0, "count", f"{len(got)} results for {len(expected)}"))
        if not found:
            return found
        try:
            alone = self.run("aot_eager", tensors, numbers)
        except Exception:  # torch alone refuses it
            return []
        kinds = [difference(a, b)[0] for a, b in zip(alone, expected, strict=False)]
        found = [(i, what, text) for i, what, text in found if kinds[i] != what]
        if not found:
            return found
        exact = self.exact(tensors, numbers)
        beyond = []
        for i, what, text in found:
            if what == "value" and is_rounding(got[i], expected[i], exact[i : i + 1]):
                continue
            is_large = any(n in str(chosen) for n in ("max", "1e30"))
            if what in ("nan", "inf") and is_large and overflows(got[i], expected[i], exact[i:]):
                what = OVERFLOW
            beyond.append((i, what, text))
        return beyond

    def exact(self, tensors: Sequence[torch.Tensor], numbers: str) -> list[Any]:
        try:
            wide = [t.detach().double() if t.is_floating_point() else t for t in tensors]
            wide = [w.requires_grad_(t.requires_grad) for w, t in zip(wide, tensors, strict=True)]
            narrow = next(t.dtype for t in tensors if t.is_floating_point())
            return evaluate(self.call, wide, numbers, narrow)
        except Exception:  # it insists on its types
            return []


def overflows(a: torch.Tensor, b: torch.Tensor, exact: list[Any]) -> bool:
    """Whether two results differ only where a sum is out of range on the way, or nearly so.

    Infinite, NaN, or the largest number: that hangs on its order, and on where it is rounded.
    """
    if not exact or not isinstance(exact[0], torch.Tensor) or exact[0].shape != a.shape:
        return False
    e = exact[0].detach()
    if e.dtype != torch.float64:
        return False
    same = (a == b) | (a.isnan() & b.isnan())
    both = ~a.isfinite() & ~b.isfinite()
    largest = torch.finfo(a.dtype).max
    if a.dtype != torch.float64:
        both &= e.isfinite()
        near = e.isfinite() & (e.abs() > largest / NEAR)
    else:
        near = torch.maximum(a.abs(), b.abs()) > largest / NEAR
    return bool((same | both | near | (a.isfinite() & b.isfinite())).all())


def is_rounding(a: torch.Tensor, b: torch.Tensor, exact: list[Any]) -> bool:
    """Whether a result is hardly farther from float64 than eager mode's."""
    if not exact or not isinstance(exact[0], torch.Tensor) or exact[0].shape != a.shape:
        return False
    e = exact[0].detach()
    if e.dtype != torch.float64 or not a.is_floating_point():
        return False
    valid = e.isfinite() & a.isfinite() & b.isfinite()
    if not valid.any():
        return True
    gaps = [((v.double() - e).abs()[valid]) for v in (a, b)]
    scale = float(e[valid].abs().max())
    limit = NOISE * gaps[1] + TOLERANCE.get(a.dtype, 1e-4) * scale * 0.1
    return bool((gaps[0] <= limit).all())


def briefly(tensor: torch.Tensor) -> str:
    values = tensor.detach().flatten()[:8].tolist()
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)} {values}"
