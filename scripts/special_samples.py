"""Samples of operators with special numbers, and how they differ from eager mode.

For ``special_values.py``.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import op_db_entries
import torch
from op_db_entries import TOLERANCE, Record, call_of, within

from dort_rewriter.compiler import differences

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
    "large": (2.0**-10, -(2.0**-10)),  # times the same: sums of a thousand are in range
}
APART = ("infs", "nan", "zeros", "max")
"""What is put into one argument alone, too."""
SHARE = 0.25
"""How many of the elements of an argument are special: one at least."""
NEAR = 64.0
"""From this part of the largest number on a sum of a few may be out of range."""
NOISE = 4.0
"""How much farther from float64 than eager mode is still rounding."""
FLIPS = 16
"""How often the signs of all numbers are drawn, to see how large what is added up may be, and
the numbers shaken, to see what hangs on a rounding."""
OVERFLOW = "overflow"
"""What is neither wrong nor right: see :func:`overflows`."""


@dataclasses.dataclass(frozen=True)
class Fill:
    """Which numbers go where: into one argument, all of them, or the gradients that come in."""

    numbers: str
    place: int | str

    def __str__(self) -> str:
        return f"{self.numbers} in {self.place}"

    @property
    def is_finite(self) -> bool:
        """Whether sums of these numbers, or of one divided by them, may cancel or be out of
        range on the way."""
        return self.numbers not in ("inf", "-inf", "infs", "nan")


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
    elif numbers in ("max", "large"):
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
    change: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone,
) -> list[Any]:
    """Results and gradients; special numbers in the gradients that come in, if asked for: those
    of a type, which may not be that of the results, changed by a function."""

    def gradients_of(i: int, result: torch.Tensor) -> torch.Tensor:
        made = torch.randn(result.shape, dtype=torch.float64).to(result.dtype)
        if numbers:
            made = fill(made.to(dtype or made.dtype), numbers, i).to(result.dtype)
        return change(made)

    results, gradients = op_db_entries.evaluate(function, tensors, gradients_of)
    return [*(r.detach() for r in results), *gradients]


def difference(a: Any, b: Any) -> tuple[str, str]:
    """In what two results differ, and how; two empty texts when they do not."""
    if all(isinstance(v, torch.Tensor) and v.is_complex() for v in (a, b)):
        a, b = (torch.view_as_real(v.resolve_conj()) for v in (a, b))
    found = differences.difference(a, b, within(b, sums=False), strides=True, zeros=True)
    return (found.kind, found.text) if found else ("", "")


def _narrowed(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float64 with the range of another type; the others have no more."""
    return tensor.to(dtype) if tensor.dtype is torch.float64 else tensor


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()


def has_gaps(tensor: torch.Tensor) -> bool:
    """Whether there is something between the elements of a tensor: a gradient like that is dense
    here, so that a part of something large does not keep all of it."""
    return not torch.ops.aten.is_non_overlapping_and_dense(tensor)


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
        self.results = len(self.call(*self.tensors))  # gradients follow
        self.compiled: dict[str, Callable[..., Any]] = {}
        self.watch = Watch()
        self.torchs = ""
        """What differs first in ``aot_eager`` as well."""

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

    def filled(
        self, chosen: Fill | None, dtype: torch.dtype | None = None
    ) -> tuple[list[torch.Tensor], str]:
        """The arguments, and what goes into the gradients; its numbers may be those of a type."""
        if chosen is None:
            return self.tensors, ""
        if chosen.place == "gradients":
            return self.tensors, chosen.numbers
        made = [
            fill(t if dtype is None else _narrowed(t, dtype), chosen.numbers, i).requires_grad_(
                t.requires_grad
            )
            if chosen.place in ("all", i)
            else t
            for i, t in enumerate(self.tensors)
        ]
        return made, ""

    def judge(self) -> Iterator[Record]:
        """Yield what is wrong, once for each kind of difference in each result, and a verdict on
        the others."""
        told_of: set[tuple[int, str]] = set()
        reason = ""
        judged = 0
        for chosen in self.fills():
            tensors, numbers = self.filled(chosen)
            try:
                expected = evaluate(self.call, tensors, numbers)
            except Exception as e:  # eager mode refuses these numbers: there is nothing to compare
                reason = str(e)
                continue
            judged += 1
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
                    "more": has_more_nan(got[i], expected[i]),
                    "given": [briefly(t) for t in tensors][:4],
                }
            if any(isinstance(g, str) for g in got) or (chosen is None and differing):
                break
        if self.watch.text:
            yield {"status": "fell back", "detail": self.watch.text[:300]}
        if not judged:
            yield {"status": "skipped", "detail": reason[:300]}
        elif self.torchs:
            yield {"status": "torch's", "detail": self.torchs[:300]}
        elif not told_of:
            yield {"status": "right"}

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
            if what and not (what == "stride" and i >= self.results and has_gaps(b)):
                found.append((i, what, text))
        if len(got) != len(expected):
            found.append((0, "count", f"{len(got)} results for {len(expected)}"))
        if not found:
            return found
        try:
            alone = self.run("aot_eager", tensors, numbers)
        except Exception as e:  # torch alone refuses it
            self.torchs = self.torchs or str(e)
            return []
        kinds = [difference(a, b)[0] for a, b in zip(alone, expected, strict=False)]
        torchs = [text for i, what, text in found if kinds[i] == what]
        self.torchs = self.torchs or "".join(torchs[:1])
        found = [(i, what, text) for i, what, text in found if kinds[i] != what]
        if not found:
            return found
        exact = self.exact(tensors, numbers)
        beyond = []
        addends: list[torch.Tensor] | None = None
        shaken: list[list[Any]] | None = None
        for i, what, text in found:
            if what == "value" and is_rounding(got[i], expected[i], exact[i : i + 1]):
                continue
            if is_nearer(got[i], exact[i : i + 1]):
                continue
            if what in ("value", "zero"):
                shaken = self.shaken(tensors, numbers) if shaken is None else shaken
                if hangs_on_roundings(got[i], expected[i], [s[i] for s in shaken]):
                    continue
            if what in ("nan", "inf", "value") and chosen is not None and chosen.is_finite:
                is_max = chosen.numbers == "max"
                if what != "value" and overflows(got[i], expected[i], exact[i:]):
                    what = OVERFLOW
                elif not (is_max and self.is_right_below(chosen, i)):
                    addends = self.addends(chosen) if addends is None else addends
                    what = OVERFLOW if cancels(got[i], expected[i], addends[i:]) else what
                else:
                    what = OVERFLOW
            beyond.append((i, what, text))
        return beyond

    def is_right_below(self, chosen: Fill, i: int) -> bool:
        """Whether a result is eager mode's where the numbers are less than the largest ones, so
        that sums of them are in range."""
        tensors, numbers = self.filled(dataclasses.replace(chosen, numbers="large"))
        results = [
            evaluate(self.call, tensors, numbers),
            self.run("onnxrt", tensors, numbers),
        ]
        return not difference(results[1][i], results[0][i])[0]

    def shaken(self, tensors: Sequence[torch.Tensor], numbers: str) -> list[list[Any]]:
        """Results of eager mode where all numbers are off by a rounding, this way or that."""
        found = []
        for seed in range(FLIPS):
            generator = torch.Generator().manual_seed(seed)

            def change(t: torch.Tensor, g: torch.Generator = generator) -> torch.Tensor:
                if not t.is_floating_point():
                    return t
                steps = torch.randint(-1, 2, t.shape, generator=g).to(t.dtype)
                return t * (1 + steps * torch.finfo(t.dtype).eps)

            near = [change(t.detach()).requires_grad_(t.requires_grad) for t in tensors]
            try:
                found.append(evaluate(self.call, near, numbers, None, change))
            except Exception:  # this many numbers are refused
                continue
        return found

    def addends(self, chosen: Fill) -> list[torch.Tensor]:
        """How large each element of the results is at most when the numbers have other signs: as
        large as what is added up for it. In float64, where float32 has its largest number."""
        tensors, numbers = self.filled(chosen, torch.float32)
        largest: list[torch.Tensor] = []
        for seed in range(FLIPS):
            generator = torch.Generator().manual_seed(seed)

            def change(t: torch.Tensor, seed: int = seed, g: torch.Generator = generator) -> Any:
                signs = torch.randint(0, 2, t.shape, generator=g) * 2 - 1
                return t.abs() if seed < 2 else t * signs

            wide = [_widened(t) for t in tensors]
            if seed % 2 == 0:  # else of what comes in backwards alone
                wide = [change(t) if t.is_floating_point() else t for t in wide]
            wide = [w.requires_grad_(t.requires_grad) for w, t in zip(wide, tensors, strict=True)]
            try:
                found = evaluate(self.call, wide, numbers, torch.float32, change)
            except Exception:  # it insists on its types, or on signs
                continue
            sizes = [
                f.abs().double().nan_to_num(0.0, torch.inf)
                if isinstance(f, torch.Tensor)
                else torch.zeros(())
                for f in found
            ]
            if not largest:
                largest = sizes
            elif all(a.shape == b.shape for a, b in zip(largest, sizes, strict=True)):
                largest = [torch.maximum(a, b) for a, b in zip(largest, sizes, strict=True)]
        return largest

    def exact(self, tensors: Sequence[torch.Tensor], numbers: str) -> list[Any]:
        try:
            wide = [t.detach().double() if t.is_floating_point() else t for t in tensors]
            wide = [w.requires_grad_(t.requires_grad) for w, t in zip(wide, tensors, strict=True)]
            narrow = next(t.dtype for t in tensors if t.is_floating_point())
            return evaluate(self.call, wide, numbers, narrow)
        except Exception:  # it insists on its types
            return []


def has_more_nan(a: Any, b: Any) -> bool:
    """Whether a result is NaN where eager mode's is not."""
    tensors = [x for x in (a, b) if isinstance(x, torch.Tensor)]
    if len(tensors) < 2 or a.shape != b.shape:
        return True
    return bool((a.isnan() & ~b.isnan()).any())


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


def cancels(a: torch.Tensor, b: torch.Tensor, addends: list[torch.Tensor]) -> bool:
    """Whether two results differ only by the order of a sum of what is huge.

    Of what is out of range, or nearly so, and where the sum is far less than what is added up.
    """
    if not addends or addends[0].shape != a.shape or not a.is_floating_point():
        return False
    large = addends[0]
    limit = torch.finfo(torch.float32).max / NEAR**2  # as of a mean, which is out of range before
    x, y = a.double(), b.double()
    same = (x == y) | (x.isnan() & y.isnan())
    out_of_range = ~x.isfinite() | ~y.isfinite()
    lost = (x - y).abs() <= NEAR * torch.finfo(a.dtype).eps * large + 1e-4 * y.abs()
    return bool((same | (out_of_range & (large > limit)) | lost).all())


def is_nearer(a: torch.Tensor, exact: list[Any]) -> bool:
    """Whether a result of 16 bits is what float64 has: eager mode rounded something to zero, or
    to an infinity, that was none."""
    if a.dtype not in (torch.bfloat16, torch.float16) or not exact or exact[0] is None:
        return False
    return not difference(a, exact[0].detach().to(a.dtype))[0]


def hangs_on_roundings(a: torch.Tensor, b: torch.Tensor, shaken: list[Any]) -> bool:
    """Whether eager mode's own result is as far off where its arguments are off by a rounding."""
    if not all(isinstance(s, torch.Tensor) and s.shape == a.shape for s in shaken):
        return False
    if a.is_complex() or not shaken:
        return False
    x, y, others = a.double(), b.double(), torch.stack([s.double() for s in shaken])
    spread = (others - y).abs().nan_to_num(torch.inf).amax(0)
    limit = TOLERANCE.get(a.dtype, 1e-4)
    near = (x - y).abs() <= NOISE * (spread + spread.median()) + limit * (y.abs() + 0.1)
    near &= (x != 0) | (y != 0) | (x.signbit() == y.signbit()) | (spread > 0)
    return bool((near | (x.isnan() & y.isnan()) | (x == y) & (spread > 0)).all())


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
    noise = gaps[1].max() if scale < 1e4 else gaps[1]  # of nothing huge beside
    limit = NOISE * noise + TOLERANCE.get(a.dtype, 1e-4) * scale * 0.1
    return bool((gaps[0] <= limit).all())


def briefly(tensor: torch.Tensor) -> str:
    values = tensor.detach().flatten()[:8].tolist()
    return f"{str(tensor.dtype)[6:]}{list(tensor.shape)} {values}"
