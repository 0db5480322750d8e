"""Pieces of tensors that are cut out and put together again."""

from __future__ import annotations

import pytest

from dort_rewriter.optimize.patterns.standard.slices import (
    ConcatConcat,
    ConcatSlice,
    PadPadAdd,
    SliceSlice,
    SplitConcat,
)
from tests.optimize.rewrites import apply, assert_refuses, assert_rewrites, model_of


def _bounds(**numbers: int) -> str:
    return ", ".join(f"int64[1] {k} = {{{v}}}" for k, v in numbers.items())


def test_a_slice_of_a_slice() -> None:
    """Its bounds are added, and stay within the first."""
    assert_rewrites(
        SliceSlice,
        f"""(float[N,10] x) => (float[N,4] y)
        <{_bounds(a=2, b=8, c=2, d=9223372036854775807, axis=1)}> {{
            s = Slice(x, a, b, axis)
            y = Slice(s, c, d, axis)
        }}""",
        f"""(float[N,10] x) => (float[N,4] y) <{_bounds(a=4, b=8, axis=1, one=1)}> {{
            y = Slice(x, a, b, axis, one)
        }}""",
    )


def test_slices_of_different_axes() -> None:
    """They stay two."""
    assert_refuses(
        SliceSlice,
        f"""(float[9,10] x) => (float[1,1] y) <{_bounds(a=2, b=3, zero=0, one=1)}> {{
            s = Slice(x, a, b, zero)
            y = Slice(s, a, b, one)
        }}""",
        "they cut different axes",
    )


def test_a_slice_from_the_end_of_an_unknown_size() -> None:
    """Nobody knows where it starts."""
    assert_refuses(
        SliceSlice,
        f"""(float[N] x) => (float[M] y) <{_bounds(a=-4, b=-2, zero=0)}> {{
            s = Slice(x, a, b, zero)
            y = Slice(s, a, b, zero)
        }}""",
    )


def test_a_part_is_cut_out_again() -> None:
    """All of it, or less."""
    assert_rewrites(
        ConcatSlice,
        f"""(float[N,4] x, float[N,6] z) => (float[N,6] y, float[N,2] w)
        <{_bounds(a=4, b=10, c=1, d=3, axis=1)}> {{
            n = Neg(z)
            s = Concat<axis=-1>(x, n)
            p = Slice(s, a, b, axis)
            y = Exp(p)
            w = Slice(s, c, d, axis)
        }}""",
        f"""(float[N,4] x, float[N,6] z) => (float[N,6] y, float[N,2] w)
        <{_bounds(c=1, d=3, axis=1, one=1)}> {{
            n = Neg(z)
            y = Exp(n)
            w = Slice(x, c, d, axis, one)
        }}""",
        count=2,
    )


def test_a_slice_of_several_parts() -> None:
    """It takes something from each."""
    assert_refuses(
        ConcatSlice,
        f"""(float[4] x, float[6] z) => (float[2] y) <{_bounds(a=3, b=5, axis=0)}> {{
            s = Concat<axis=0>(x, z)
            y = Slice(s, a, b, axis)
        }}""",
        "it takes from several parts",
    )


def test_a_part_of_unknown_size() -> None:
    """Nobody knows where the next one starts."""
    assert_refuses(
        ConcatSlice,
        f"""(float[N] x, float[6] z) => (float[2] y) <{_bounds(a=3, b=5, axis=0)}> {{
            s = Concat<axis=0>(x, z)
            y = Slice(s, a, b, axis)
        }}""",
        "the size of a part is unknown",
    )


@pytest.mark.parametrize("order", ["a, b", "b, a"])
def test_two_gradients_fill_each_others_gaps(order: str) -> None:
    """The gradient of a tensor that was cut in two."""
    assert_rewrites(
        PadPadAdd,
        f"""(float[N,4] x, float[N,6] z) => (float[N,10] y)
        <int64[2] f = {{6, 0}}, int64[2] s = {{0, 4}}, int64[1] axis = {{1}},
         float zero = {{0}}> {{
            a = Pad(x, f, , axis)
            b = Pad(z, s, zero, axis)
            y = Add({order})
        }}""",
        "(float[N,4] x, float[N,6] z) => (float[N,10] y) {y = Concat<axis=1>(z, x)}",
    )


def test_gradients_that_overlap() -> None:
    """One element is in both."""
    assert_refuses(
        PadPadAdd,
        """(float[5] x, float[6] z) => (float[10] y) <int64[2] f = {5, 0}, int64[2] s = {0, 4}> {
            a = Pad(x, f)
            b = Pad(z, s)
            y = Add(a, b)
        }""",
        "they overlap or leave a gap",
    )


def test_a_padded_part_that_is_needed() -> None:
    """Nothing would be won."""
    assert_refuses(
        PadPadAdd,
        """(float[4] x, float[6] z) => (float[10] y, float[10] a)
        <int64[2] f = {6, 0}, int64[2] s = {0, 4}> {
            a = Pad(x, f)
            b = Pad(z, s)
            y = Add(a, b)
        }""",
        "a padded part is needed",
    )


def test_padding_with_ones_is_none() -> None:
    """The sum is not that of zeros."""
    assert_refuses(
        PadPadAdd,
        """(float[4] x, float[6] z) => (float[10] y)
        <int64[2] f = {6, 0}, int64[2] s = {0, 4}, float one = {1}> {
            a = Pad(x, f, one)
            b = Pad(z, s)
            y = Add(a, b)
        }""",
    )


def test_parts_come_back() -> None:
    """In order, along the same axis."""
    assert_rewrites(
        SplitConcat,
        """(float[N,6] x) => (float[N,6] y) <int64[2] s = {2, 4}> {
            n = Neg(x)
            a, b = Split<axis=1>(n, s)
            c = Concat<axis=-1>(a, b)
            y = Exp(c)
        }""",
        "(float[N,6] x) => (float[N,6] y) {n = Neg(x) y = Exp(n)}",
    )


def test_parts_in_another_order() -> None:
    """They are not what was split."""
    assert_refuses(
        SplitConcat,
        """(float[N,6] x) => (float[N,6] y) <int64[2] s = {2, 4}> {
            a, b = Split<axis=1>(x, s)
            y = Concat<axis=1>(b, a)
        }""",
        "the parts are not those of the Split, in order",
    )


def test_parts_along_another_axis() -> None:
    """Two halves below each other."""
    assert_refuses(
        SplitConcat,
        """(float[2,6] x) => (float[4,3] y) <int64[2] s = {3, 3}> {
            a, b = Split<axis=1>(x, s)
            y = Concat<axis=0>(a, b)
        }""",
        "the axes differ",
    )


def test_a_concat_of_a_concat() -> None:
    """One takes all parts."""
    assert_rewrites(
        ConcatConcat,
        """(float[N,2] a, float[N,3] b) => (float[N,7] y) {
            c = Concat<axis=1>(a, b)
            y = Concat<axis=-1>(a, c)
        }""",
        """(float[N,2] a, float[N,3] b) => (float[N,7] y) {y = Concat<axis=1>(a, a, b)}""",
    )


@pytest.mark.parametrize(
    ("axis", "outputs"), [(0, ""), (1, ", float[2,2] c")], ids=["another axis", "needed"]
)
def test_a_concat_that_stays(axis: int, outputs: str) -> None:
    """Along another axis, or read elsewhere."""
    assert_refuses(
        ConcatConcat,
        f"""(float[2,1] a, float[2,1] b) => (float[M,K] y{outputs}) {{
            c = Concat<axis=1>(a, b)
            y = Concat<axis={axis}>(c, c{", a" if axis else ""})
        }}""",
    )


def test_a_chain_of_concats_is_one_application() -> None:
    """However long it is: the outermost takes all in."""
    steps = " ".join(f"c{i + 1} = Concat<axis=1>(c{i}, b)" for i in range(300))
    model = model_of(
        f"(float[2,1] a, float[2,1] b) => (float[2,301] y) {{"
        f"c0 = Concat<axis=1>(a) {steps} y = Neg(c300) }}"
    )
    report = apply(ConcatConcat, model)
    assert report.rules["ConcatConcat"].matches == 1
    concat, _ = model.graph
    assert len(concat.inputs) == 301
