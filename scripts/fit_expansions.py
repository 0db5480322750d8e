"""Compute the coefficients of ``export/converters/expansions.py``, and write them there.

usage: python scripts/fit_expansions.py [--check]

Each function is interpolated at Chebyshev nodes in 60 digits (mpmath), the series is cut where its
terms no longer count, and rewritten in powers of ``u``, which runs from -1 to 1. With --check
nothing is written: the exit code tells whether the file is what this script would write.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

TARGET = Path(__file__).parents[1] / "dort_rewriter/export/converters/expansions.py"
NODES = 48
SMALLEST = mp.mpf(10) ** -12
"""Terms below this share of the largest are cut: two digits more than float32 can tell."""

HEADER = '''"""Coefficients of special functions in rising powers of ``u``, from -1 to 1.

Written by ``scripts/fit_expansions.py``; the comment tells what is expanded. They are right to 11
digits: enough for results in float32, computed in float64.
"""

from __future__ import annotations

# fmt: off
'''

Function = Callable[[Any], Any]


def hankel(order: int, x: Any) -> Any:
    """P + iQ of the asymptotic form of the Bessel functions."""
    phase = x - mp.pi * (2 * order + 1) / 4
    return mp.hankel1(order, x) * mp.sqrt(mp.pi * x / 2) * mp.expj(-phase)


def airy_waves(x: Any) -> tuple[Any, Any]:
    """f and g: Ai(-x) = (f sin - g cos)(zeta + pi/4) / (sqrt(pi) x^(1/4))."""
    angle = mp.mpf(2) / 3 * x**1.5 + mp.pi / 4
    scale = mp.sqrt(mp.pi) * x**0.25
    a, b = mp.airyai(-x) * scale, mp.airybi(-x) * scale
    return mp.sin(angle) * a + mp.cos(angle) * b, mp.sin(angle) * b - mp.cos(angle) * a


def from_zeta(zeta: Any) -> Any:
    """X, of which zeta is 2/3 x^(3/2)."""
    return (zeta * 3 / 2) ** (mp.mpf(2) / 3)


AIRY_EDGE = mp.mpf(5) / 2
AIRY_ZETA = mp.mpf(2) / 3 * AIRY_EDGE**1.5


def airy_wave(u: Any) -> tuple[Any, Any, Any]:
    w = mp.sqrt((u + 1) / 2)
    return (w, *airy_waves(from_zeta(AIRY_ZETA / w)))


def airy_decay(u: Any) -> Any:
    zeta = 2 * AIRY_ZETA / (u + 1)
    x = from_zeta(zeta)
    return mp.airyai(x) * 2 * mp.sqrt(mp.pi) * x**0.25 * mp.exp(zeta)


def log_erfcx(u: Any) -> Any:
    t = (u + 1) / 2
    x = 2 / t - 2
    return mp.log(mp.erfc(x) * mp.exp(x * x) / t)


def wave(order: int, part: str) -> Function:
    def expanded(u: Any) -> Any:
        v = mp.sqrt((u + 1) / 2)
        value = hankel(order, 8 / v)
        return value.real if part == "P" else value.imag / v

    return expanded


def near(function: Function, edge: int) -> Function:
    """Take u = 2 (x / edge)^2 - 1."""
    return lambda u: function(edge * mp.sqrt((u + 1) / 2))


EXPANSIONS: dict[str, tuple[str, Function]] = {
    "ERFCX": ("log(erfcx(x) / t), t = 1 / (1 + x/2), u = 2t - 1", log_erfcx),
    "I0_NEAR": (
        "exp(-x) I0(x), u = x/4 - 1",
        lambda u: mp.exp(-4 * (u + 1)) * mp.besseli(0, 4 * (u + 1)),
    ),
    "I0_FAR": (
        "exp(-x) sqrt(x) I0(x), u = 16/x - 1",
        lambda u: mp.exp(-16 / (u + 1)) * mp.sqrt(16 / (u + 1)) * mp.besseli(0, 16 / (u + 1)),
    ),
    "I1_NEAR": (
        "exp(-x) I1(x) / x, u = x/4 - 1",
        lambda u: mp.exp(-4 * (u + 1)) * mp.besseli(1, 4 * (u + 1)) / (4 * (u + 1)),
    ),
    "I1_FAR": (
        "exp(-x) sqrt(x) I1(x), u = 16/x - 1",
        lambda u: mp.exp(-16 / (u + 1)) * mp.sqrt(16 / (u + 1)) * mp.besseli(1, 16 / (u + 1)),
    ),
    "K0_NEAR": (
        "K0(x) + log(x/2) I0(x), u = x^2/2 - 1",
        near(lambda x: mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x), 2),
    ),
    "K0_FAR": (
        "exp(x) sqrt(x) K0(x), u = 4/x - 1",
        lambda u: mp.exp(4 / (u + 1)) * mp.sqrt(4 / (u + 1)) * mp.besselk(0, 4 / (u + 1)),
    ),
    "K1_NEAR": (
        "x (K1(x) - log(x/2) I1(x)), u = x^2/2 - 1",
        near(lambda x: x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x)), 2),
    ),
    "K1_FAR": (
        "exp(x) sqrt(x) K1(x), u = 4/x - 1",
        lambda u: mp.exp(4 / (u + 1)) * mp.sqrt(4 / (u + 1)) * mp.besselk(1, 4 / (u + 1)),
    ),
    "J0_NEAR": ("J0(x), u = x^2/32 - 1", near(lambda x: mp.besselj(0, x), 8)),
    "J1_NEAR": ("J1(x) / x, u = x^2/32 - 1", near(lambda x: mp.besselj(1, x) / x, 8)),
    "Y0_NEAR": (
        "Y0(x) - 2/pi log(x) J0(x), u = x^2/32 - 1",
        near(lambda x: mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x), 8),
    ),
    "Y1_NEAR": (
        "(Y1(x) - 2/pi (log(x) J1(x) - 1/x)) / x, u = x^2/32 - 1",
        near(
            lambda x: (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x,
            8,
        ),
    ),
    "P0": ("P of order 0, u = 128/x^2 - 1", wave(0, "P")),
    "Q0": ("x/8 Q of order 0, u = 128/x^2 - 1", wave(0, "Q")),
    "P1": ("P of order 1, u = 128/x^2 - 1", wave(1, "P")),
    "Q1": ("x/8 Q of order 1, u = 128/x^2 - 1", wave(1, "Q")),
    "AIRY_NEAR": ("Ai(x), u = x/2.5", lambda u: mp.airyai(AIRY_EDGE * u)),
    "AIRY_DECAY": (
        "2 sqrt(pi) x^(1/4) exp(z) Ai(x), z = 2/3 x^(3/2), u = 2 z(2.5)/z - 1",
        airy_decay,
    ),
    "AIRY_F": ("f of Ai(-x), u = 2 (z(2.5)/z)^2 - 1", lambda u: airy_wave(u)[1]),
    "AIRY_G": (
        "g of Ai(-x) by z(2.5)/z, u = 2 (z(2.5)/z)^2 - 1",
        lambda u: airy_wave(u)[2] / airy_wave(u)[0],
    ),
}


def chebyshev(function: Function) -> list[Any]:
    """The terms of a function's Chebyshev series that count."""
    angles = [mp.pi * (2 * k + 1) / (2 * NODES) for k in range(NODES)]
    values = [function(mp.cos(a)) for a in angles]
    terms = [
        mp.fsum(v * mp.cos(j * a) for v, a in zip(values, angles, strict=True)) * 2 / NODES
        for j in range(NODES)
    ]
    terms[0] /= 2
    largest = max(abs(t) for t in terms)
    while abs(terms[-1]) < SMALLEST * largest:
        terms.pop()
    return terms


def to_powers(terms: list[Any]) -> list[float]:
    """Rewrite a Chebyshev series in powers."""
    before, current = [mp.mpf(1)], [mp.mpf(0), mp.mpf(1)]
    total = [mp.mpf(0)] * (len(terms) + 1)
    for term in terms:
        for i, c in enumerate(before):
            total[i] += term * c
        doubled = [mp.mpf(0)] + [2 * c for c in current]
        following = [d - b for d, b in zip(doubled, before + [0] * len(doubled), strict=False)]
        before, current = current, following
    return [float(c) for c in total[: len(terms)]]


def write() -> str:
    """The text of the module."""
    mp.mp.dps = 60
    text = HEADER
    for name, (comment, function) in EXPANSIONS.items():
        numbers = " ".join(f"{c!r}," for c in to_powers(chebyshev(function)))
        lines = textwrap.indent(textwrap.fill(numbers, 95), " " * 4)
        text += f"{name} = (  # {comment}\n{lines}\n)\n"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    text = write()
    if args.check:
        return int(TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
