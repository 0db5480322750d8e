"""Products of float32 by parts in bfloat16: by the loops that stand for AMX, and by its tiles."""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest

from dort_rewriter.kernels import build as kernel_build
from dort_rewriter.kernels.torch_library import has_function
from tests.kernels.test_mkl_products import Array, product, random, session, turned

pytestmark = pytest.mark.skipif(
    not (has_function("sgemm_") and has_function("MKL_Set_Num_Threads_Local")),
    reason="this torch was built without MKL",
)

COMPILER = kernel_build.find_compiler("c++")
LEVEL = kernel_build.processor_levels("x86_64")[0]

BITS = {1: 8, 3: 16, 6: 24}
"""What is left of the digits of a product, by the products of parts that it is made of."""


def by_parts(
    *given: Array, terms: int = 6, threads: int = 1, constant: int = 0, **how: int
) -> Array:
    return product(*given, threads=threads, terms=terms, constant=constant, loops=1, **how)


def farthest(got: Array, a: Array, b: Array) -> float:
    """How far a product is from float64, of the largest number."""
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return float(np.abs(got - exact).max() / np.abs(exact).max())


SIZES = [(256, 256, 256), (257, 250, 260), (300, 33, 1700), (1000, 1025, 17), (64, 1030, 250)]


@pytest.mark.parametrize("terms", BITS)
@pytest.mark.parametrize("sizes", SIZES)
def test_factors_are_read_both_ways(sizes: tuple[int, int, int], terms: int) -> None:
    """Sizes that fill no tile, in parts for threads, laid out once or at each call."""
    m, k, n = sizes
    a, b = random(m, k), random(k, n)
    constant = int(m < 256)
    first = by_parts(a, b, terms=terms, constant=constant)
    is_parted = m * k * n >= 16e6
    assert farthest(first, a, b) <= 2.0 ** (3 - BITS[terms] if is_parted else -21)
    assert terms == 6 or (farthest(first, a, b) > 2.0 ** -(BITS[terms] + 4)) is is_parted
    for turn_a, turn_b in itertools.product((0, 1), (0, 1)):
        given = (turned(a) if turn_a else a), (turned(b) if turn_b else b)
        how = {"transA": turn_a, "transB": turn_b, "terms": terms, "constant": constant}
        np.testing.assert_array_equal(by_parts(*given, threads=3, **how), first)


def test_six_are_as_exact_as_float32() -> None:
    a, b = random(256, 2050), random(2050, 256)
    ordinary = product(a, b)
    parts = by_parts(a, b)
    assert not np.array_equal(parts, ordinary)
    assert farthest(parts, a, b) <= 1.25 * farthest(ordinary, a, b)


@pytest.mark.parametrize("shape", [(), (1,), (300,), (1, 300), (256, 1), (256, 300)])
def test_something_is_added(shape: tuple[int, ...]) -> None:
    a, b, c = random(256, 300), random(300, 300), random(*shape)
    how = {"threads": 2, "terms": 6, "loops": 1}
    got = product(a, b, c, alpha=2.0, beta=0.5, **how)
    np.testing.assert_allclose(got, 2 * (a @ b) + 0.5 * c, rtol=1e-4, atol=1e-4)
    nothing = product(a, b, np.full(shape, np.nan, np.float32), beta=0.0, **how)
    np.testing.assert_array_equal(nothing, product(a, b, **how))


SPECIAL = [np.inf, -np.inf, np.nan, 3e38, 1e-40, 1e-31]


@pytest.mark.parametrize("where", ["first", "second", "both"])
@pytest.mark.parametrize("number", SPECIAL)
def test_what_has_no_parts_is_the_librarys(number: float, where: str) -> None:
    """Infinities, and numbers that are so large or small that parts of them are lost."""
    a, b = random(256, 256), random(256, 256)
    scaled = 1e-25 if abs(number) == 1e-31 else 1.0
    if where != "second":
        a[130, 7] = number
        b *= np.float32(scaled)
    if where != "first":
        b[5, 200] = number
        a *= np.float32(scaled)
    for threads in (1, 3):
        ordinary = product(a, b, threads=threads)
        np.testing.assert_array_equal(by_parts(a, b, threads=threads), ordinary)


@pytest.mark.parametrize("scale", [2.0**50, 2.0**63, 1.999 * 2.0**60])
def test_products_that_may_be_out_of_range_are_the_librarys(scale: float) -> None:
    """What is rounded up in a part may be infinite in a product."""
    a, b = (random(256, 256) * np.float32(scale) for _ in range(2))
    np.testing.assert_array_equal(by_parts(a, b), product(a, b))


def test_zeros_have_parts() -> None:
    a, b = random(256, 256), random(256, 256)
    a[3], b[:, 200] = 0.0, -0.0
    got = by_parts(a, b)
    assert not np.array_equal(got, product(a, b))
    assert not got[3].any()
    assert not got[:, 200].any()
    assert not by_parts(np.zeros_like(a), b).any()


def test_a_constant_is_laid_out_once() -> None:
    made = session(terms=6, constant=1, loops=1)
    a, b = random(64, 512), random(512, 512)
    first = made.ort.run(None, {"a": a, "b": b})[0]
    np.testing.assert_array_equal(made.ort.run(None, {"a": a, "b": b * 2})[0], first)


@pytest.mark.parametrize("sizes", [(255, 512, 512), (256, 64, 64)])
def test_small_products_are_the_librarys(sizes: tuple[int, int, int]) -> None:
    m, k, n = sizes
    a, b = random(m, k), random(k, n)
    np.testing.assert_array_equal(by_parts(a, b), product(a, b))


@pytest.mark.parametrize("terms", [2, 7, -1])
def test_other_numbers_of_terms_are_refused(terms: int) -> None:
    with pytest.raises(Exception, match="terms"):
        session(terms=terms)


@pytest.mark.alternating
@pytest.mark.skipif(
    COMPILER is None or LEVEL not in kernel_build.supported_levels(),
    reason="this processor has no AVX-512, or there is no compiler",
)
def test_tiles_compute_what_loops_compute(tmp_path: Path) -> None:
    """With functions in the place of the instructions, on any processor."""
    assert COMPILER is not None
    program = tmp_path / "tiles"
    source = Path(__file__).with_name("tiles_of_amx.cpp")
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", *LEVEL.flags]
    include = f"-I{kernel_build.SOURCES}"
    subprocess.run([*COMPILER, *flags, include, str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 differ\n")
