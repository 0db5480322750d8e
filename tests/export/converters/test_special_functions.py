"""Special functions: over the line, at their edges and poles, against torch in float64."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dort_rewriter.errors import UnsupportedOpError
from tests.export.cases import Case, T, overload, run, table_test

LINE = torch.linspace(-12, 12, 241)
POSITIVE = torch.cat([torch.logspace(-6, 2, 60), torch.tensor([2.0, 8.0, 8.5, 1e4])])
INFINITE = torch.tensor([math.inf, -math.inf])
ENDS = torch.tensor([0.0, -0.0, math.inf, math.nan])
BELOW_ONE = torch.tensor([0.0, 1e-30, 1e-6, 0.04, 0.06, 0.3, 0.5, 0.9, 0.999999, 1.0])
NOT_INTEGERS = torch.linspace(-9.9, 9.9, 100) + 0.01

ERRORS = ("erfc", "special_erfc", "special_erfcx")
WAVES = ("special_bessel_j0", "special_bessel_j1", "special_spherical_bessel_j0")
EVERYWHERE = (
    *("i0", "special_i0", "special_i0e", "special_i1", "special_i1e"),
    *("special_modified_bessel_i0", "special_modified_bessel_i1"),
    *ERRORS,
)
POSITIVE_ONLY = (
    *("special_bessel_y0", "special_bessel_y1"),
    *("special_modified_bessel_k0", "special_modified_bessel_k1"),
    *("special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1"),
)
GAMMAS = ("lgamma", "digamma", "special_digamma")


def _exact(name: str, *args: object) -> object:
    """Compute in float64, round to float32: eager's own float32 has larger errors."""
    wide = [a.double() if isinstance(a, torch.Tensor) else a for a in args]
    return overload(f"aten::{name}")(*wide).float()


def _case(name: str, *args: object) -> Case:
    # Above autograd: torch makes some of them of others.
    reference = functools.partial(_exact, name)
    return Case(f"aten::{name}", args, reference=reference, pre_dispatch=True)


CASES = [
    *(_case(name, LINE) for name in (*EVERYWHERE, *WAVES, "special_airy_ai")),
    *(_case(name, INFINITE) for name in (*EVERYWHERE, *WAVES, *POSITIVE_ONLY, "special_airy_ai")),
    *(_case(name, x) for name in POSITIVE_ONLY for x in (POSITIVE, LINE)),
    *(_case(name, x) for name in GAMMAS for x in (NOT_INTEGERS, POSITIVE)),
    *(_case(name, ENDS) for name in ("erfc", "erfinv", "special_ndtri", "lgamma", "digamma")),
    *(_case("erfinv", x) for x in (BELOW_ONE, -BELOW_ONE, LINE)),
    *(_case("special_ndtri", x) for x in (BELOW_ONE, LINE)),
    *(_case("polygamma", n, x) for n in (0, 1, 2, 3, 5) for x in (NOT_INTEGERS, POSITIVE)),
    *(Case(f"aten::{name}", (T(3, dtype=torch.int64),)) for name in ("erfc", "i0", "digamma")),
    *(Case(f"aten::{name}", (T(3, dtype=torch.float16),)) for name in ("erfc", "erfinv")),
]


test_op = table_test(CASES)


def test_float64_stays_in_torch() -> None:
    x = T(3, dtype=torch.float64)
    traced = make_fx(torch.erfc, tracing_mode="fake")(x)
    with pytest.raises(UnsupportedOpError, match=r"aten::erfc.*right to float32, not to float64"):
        run(traced, [x], 18)


def test_a_high_polygamma_stays_in_torch() -> None:
    x = T(3)
    traced = make_fx(lambda t: torch.polygamma(13, t), tracing_mode="fake")(x)
    with pytest.raises(UnsupportedOpError, match="of order 13: up to 12"):
        run(traced, [x], 18)
