"""Convolutions whose channels have a filter each, which is computed; those with a padding."""

from __future__ import annotations

import numpy as np
import pytest

from dort_rewriter.optimize.patterns.kernels.convolutions import (
    DepthwiseConv,
    DirectConv,
    Epilogue,
    PaddedConv,
    TransposeDirectConv,
)
from tests.optimize.rewrites import assert_refuses, assert_rewrites

IMAGES = "(float[N,6,{},{}] x, float[6,1,3,5] w, float[6] b) => (float[N,6,P,Q] z)"
HOW = {
    "plain": ("", "3, 1, 0, 1, 0, 5, 1, 0, 1, 0"),
    "padded": ("pads = [1, 2, 1, 2]", "3, 1, 1, 1, 0, 5, 1, 2, 1, 0"),
    "strided": (
        "strides = [2, 3], pads = [4, 1, 4, 1], dilations = [2, 1]",
        "3, 2, 4, 2, 0, 5, 3, 1, 1, 0",
    ),
}
GENERATOR = np.random.default_rng(0)


def _numbers(*shape: int) -> np.ndarray:
    return GENERATOR.normal(size=shape).astype(np.float32)


def _of_one_node(inputs: str, node: str) -> str:
    """A graph whose result has the type and the axes of its first input."""
    dtype = inputs.partition("[")[0]
    rank = inputs.partition("]")[0].count(",") + 1
    return f"({inputs}) => ({dtype}[{','.join('ABCDE'[:rank])}] z) {{ z = {node} }}"


@pytest.mark.parametrize("size", [(9, 21), (40, 37), (5, 64)])
@pytest.mark.parametrize("how", HOW)
def test_images(how: str, size: tuple[int, int]) -> None:
    attributes, windows = HOW[how]
    written = ", ".join(["group = 6", *([attributes] if attributes else [])])
    images = IMAGES.format(*size)
    assert_rewrites(
        DepthwiseConv,
        f"{images} {{ z = Conv<{written}>(x, w, b) }}",
        f"{images} {{ z = dort_rewriter.DepthwiseConv<windows = [{windows}]>(x, w, b) }}",
        inputs={"x": _numbers(3, 6, *size), "w": _numbers(6, 1, 3, 5), "b": _numbers(6)},
        reference=False,
    )


def test_images_without_a_bias() -> None:
    shapes = "(float[N,3,5,33] x, float[3,1,3,3] w) => (float[N,3,P,Q] z)"
    assert_rewrites(
        DepthwiseConv,
        f"{shapes} {{ z = Conv<group = 3>(x, w) }}",
        f"{shapes} <float[3] zeros = {{0, 0, 0}}> {{ z = dort_rewriter.DepthwiseConv"
        "<windows = [3, 1, 0, 1, 0, 3, 1, 0, 1, 0]>(x, w, zeros) }",
        inputs={"x": _numbers(2, 3, 5, 33), "w": _numbers(3, 1, 3, 3)},
        reference=False,
    )


@pytest.mark.parametrize(
    ("inputs", "node", "reason"),
    [
        ("float[2,6,9,9] x, float[12,1,3,3] w", "Conv<group = 6>(x, w)", None),
        ("float[2,6,9,9] x, float[6,2,3,3] w", "Conv<group = 3>(x, w)", None),
        ("float[2,1,8,8] x, float[1,1,3,3] w", "Conv(x, w)", None),
        (
            "float[2,6,H,W] x, float[6,1,3,3] w",
            "Conv<group = 6>(x, w)",
            "other windows than the kernel is made for",
        ),
        ("float[2,6,8] x, float[6,1,3] w", "Conv<group = 6>(x, w)", None),
        ("float[2,6,8,8,8] x, float[6,1,3,3,3] w", "Conv<group = 6>(x, w)", None),
        ("double[2,6,9,9] x, double[6,1,3,3] w", "Conv<group = 6>(x, w)", "no kernel"),
        (
            "float[0,6,9,9] x, float[6,1,3,3] w",
            "Conv<group = 6>(x, w)",
            "there is nothing to convolve",
        ),
        (
            "float[2,6,9,9] x, float[6,1,3,3] w",
            "Conv<group = 6, pads = [1, 1, 0, 0]>(x, w)",
            "the padding is not the same at both ends",
        ),
        (
            "float[2,6,9,9] x, float[6,1,3,3] w",
            'Conv<group = 6, auto_pad = "SAME_UPPER">(x, w)',
            "the padding is not the same at both ends",
        ),
    ],
)
def test_others_are_left(inputs: str, node: str, reason: str | None) -> None:
    assert_refuses(DepthwiseConv, _of_one_node(inputs, node), reason)


def test_constant_filters_are_left() -> None:
    ones = ", ".join(["1"] * 18)
    text = (
        "(float[2,2,8,8] x) => (float[2,2,6,6] z) "
        f"<float[2,1,3,3] w = {{{ones}}}> {{ z = Conv<group = 2>(x, w) }}"
    )
    assert_refuses(DepthwiseConv, text, "the filters are constants")


DIRECT = {
    "plain": ("", "windows = [3, 1, 0, 1, 0, 5, 1, 0, 1, 0]"),
    "padded": (
        "strides = [2, 3], pads = [4, 1, 4, 1], dilations = [2, 1]",
        "windows = [3, 2, 4, 2, 0, 5, 3, 1, 1, 0]",
    ),
}


@pytest.mark.parametrize("how", DIRECT)
def test_each_channel_reads_all(how: str) -> None:
    attributes, direct = DIRECT[how]
    shapes = "(float[N,6,9,14] x, float[4,6,3,5] w, float[4] b) => (float[N,4,P,Q] z)"
    node = f"Conv<{attributes}>(x, w, b)" if attributes else "Conv(x, w, b)"
    assert_rewrites(
        DirectConv,
        f"{shapes} {{ z = {node} }}",
        f"{shapes} {{ z = dort_rewriter.DirectConv<{direct}>(x, w, b) }}",
        inputs={"x": _numbers(3, 6, 9, 14), "w": _numbers(4, 6, 3, 5), "b": _numbers(4)},
        reference=False,
    )


def test_one_axis_and_no_bias() -> None:
    shapes = "(float[N,6,9] x, float[2,6,3] w) => (float[N,2,P] z)"
    windows = "windows = [1, 1, 0, 1, 0, 3, 2, 0, 1, 0]"
    assert_rewrites(
        DirectConv,
        f"{shapes} {{ z = Conv<strides = [2]>(x, w) }}",
        f"{shapes} <float[2] zeros = {{0, 0}}> "
        f"{{ z = dort_rewriter.DirectConv<{windows}>(x, w, zeros) }}",
        inputs={"x": _numbers(3, 6, 9), "w": _numbers(2, 6, 3)},
        reference=False,
    )


@pytest.mark.parametrize(
    ("inputs", "node", "reason"),
    [
        ("float[2,6,9,9] x, float[6,1,3,3] w", "Conv<group = 6>(x, w)", None),
        ("float[2,6,8,8,8] x, float[6,6,3,3,3] w", "Conv(x, w)", None),
        ("double[2,6,9,9] x, double[6,6,3,3] w", "Conv(x, w)", "no kernel"),
        ("float[0,6,9,9] x, float[6,6,3,3] w", "Conv(x, w)", "there is nothing to convolve"),
        ("float[2,6,9,9] x, float[6,6,1,1] w", "Conv(x, w)", "a product of matrices is faster"),
        ("float[2,1,9,9] x, float[6,1,3,3] w", "Conv(x, w)", "a product of matrices is faster"),
        (
            "float[2,6,9,9] x, float[6,6,3,3] w",
            "Conv<strides = [3, 3]>(x, w)",
            "a product of matrices is faster",
        ),
        (
            "float[2,6,9,9] x, float[6,6,3,3] w",
            "Conv<pads = [1, 1, 0, 0]>(x, w)",
            "the padding is not the same at both ends",
        ),
        (
            "float[2,6,9,9] x, float[6,6,3,3] w",
            'Conv<auto_pad = "SAME_UPPER">(x, w)',
            "the padding is not the same at both ends",
        ),
    ],
)
def test_what_is_no_direct_convolution(inputs: str, node: str, reason: str | None) -> None:
    assert_refuses(DirectConv, _of_one_node(inputs, node), reason)


@pytest.mark.parametrize("gradient", [0, 1])
def test_filters_whose_channels_lie_last(gradient: int) -> None:
    how = f"windows = [3, 1, 0, 1, 0, 2, 1, 0, 1, 0], gradient = {gradient}"
    shapes = "(float[N,4,9,9] x, float[4,3,2,4] w, float[4] b) => (float[N,4,P,Q] z)"
    assert_rewrites(
        TransposeDirectConv,
        f"{shapes} {{ v = Transpose<perm = [0, 3, 1, 2]>(w) "
        f"z = dort_rewriter.DirectConv<{how}>(x, v, b) }}",
        f"{shapes} {{ z = dort_rewriter.DirectConv<{how}, channels_last = 1>(x, w, b) }}",
        inputs={"x": _numbers(2, 4, 9, 9), "w": _numbers(4, 3, 2, 4), "b": _numbers(4)},
        reference=False,
    )


def test_filters_in_another_order() -> None:
    how = "windows = [3, 1, 0, 1, 0, 2, 1, 0, 1, 0]"
    text = (
        "(float[N,4,9,9] x, float[4,4,3,2] w, float[4] b) => (float[N,4,P,Q] z) "
        f"{{ v = Transpose<perm = [1, 0, 2, 3]>(w) z = dort_rewriter.DirectConv<{how}>(x, v, b) }}"
    )
    assert_refuses(TransposeDirectConv, text, None)


AFTER = (
    "(float[2,3,9,14] x, float[4,3,3,3] w, float[4] b, float[4] s, float[4] t, float[4] m, "
    "float[4] v, float[2,4,9,14] o) => (float[2,4,9,14] z) <float[2,4,9,14] y>"
)
SAME = "windows = [3, 1, 1, 1, 0, 3, 1, 1, 1, 0]"
NORM = "z = BatchNormalization<epsilon = 0.5>(y, s, t, m, v)"
NORMALIZED = f"<{SAME}, epsilon = 0.5>(x, w, b, s, t, m, v)"
FOLLOWING = {
    "normalized": (f"<{SAME}>(x, w, b)", NORM, NORMALIZED),
    "added": (f"<{SAME}>(x, w, b)", "z = Add(o, y)", f"<{SAME}>(x, w, b, o)"),
    "added to what is normalized": (
        NORMALIZED,
        "z = Add(y, o)",
        f"<{SAME}, epsilon = 0.5>(x, w, b, s, t, m, v, o)",
    ),
    "normalized by a kernel with all that follows": (
        f"<{SAME}>(x, w, b)",
        "z = dort_rewriter.BatchNormInference<epsilon = 0.5, relu = 1>(y, s, t, m, v, o)",
        f"<{SAME}, epsilon = 0.5, relu = 1>(x, w, b, s, t, m, v, o)",
    ),
    "cut off": (
        f"<{SAME}, epsilon = 0.5>(x, w, b, s, t, m, v, o)",
        "z = Relu(y)",
        f"<{SAME}, epsilon = 0.5, relu = 1>(x, w, b, s, t, m, v, o)",
    ),
}


@pytest.mark.parametrize("case", FOLLOWING)
def test_what_follows_a_convolution(case: str) -> None:
    direct, following, after = FOLLOWING[case]
    shapes = {"x": (2, 3, 9, 14), "w": (4, 3, 3, 3), "b": (4,), "o": (2, 4, 9, 14)}
    shapes |= dict.fromkeys("stm", (4,))
    assert_rewrites(
        Epilogue,
        f"{AFTER} {{ y = dort_rewriter.DirectConv{direct} {following} }}",
        f"{AFTER.partition(' <')[0]} {{ z = dort_rewriter.DirectConv{after} }}",
        inputs={n: _numbers(*shape) for n, shape in shapes.items()} | {"v": _numbers(4) ** 2},
        reference=False,
    )


@pytest.mark.parametrize(
    ("given", "relu", "following", "reason"),
    [
        ("x, w, b", 0, "z = Add(y, p)", "what is added has another shape"),
        ("x, w, b, o", 0, "z = Add(y, o)", "something was added before"),
        ("x, w, b, s, t, m, v", 0, NORM, "it is normalized, or something added, before"),
        ("x, w, b", 0, "z = Add(y, y)", None),
        ("x, w, b", 0, "r = Relu(y) z = Mul(r, y)", None),
        ("x, w, b", 1, "z = Add(y, o)", None),
    ],
)
def test_what_stays_behind_a_convolution(
    given: str, relu: int, following: str, reason: str | None
) -> None:
    inputs = AFTER.replace("float[4] b", "float[4] b, float[14] p")
    direct = f"dort_rewriter.DirectConv<{SAME}, relu = {relu}>({given})"
    assert_refuses(Epilogue, f"{inputs} {{ y = {direct} {following} }}", reason)


def test_what_follows_numbers_of_16_bits_is_rounded_between() -> None:
    """A kernel of 16-bit numbers rounds what is read behind it, whatever it is cast to then."""
    inputs = "(float16[2,3,9,14] x, float16[4,3,3,3] w, float16[4] b, float[4] s, float[4] t, "
    inputs += "float[4] m, float[4] v) => (float16[2,4,9,14] z)"
    given = f"{inputs} <float16[2,4,9,14] y> {{ y = dort_rewriter.DirectConv<{SAME}>(x, w, b) "
    given += "z = dort_rewriter.BatchNormInference<epsilon = 0.5>(y, s, t, m, v) }"
    how = f"{SAME}, rounded = 1, epsilon = 0.5"
    after = f"{inputs} {{ z = dort_rewriter.DirectConv<{how}>(x, w, b, s, t, m, v) }}"
    assert_rewrites(Epilogue, given, after, reference=False)
    wider = given.replace("(float16[2,4,9,14] z)", "(float[2,4,9,14] z)")
    assert_refuses(Epilogue, wider, "it is cast in between")


PADDED = "(float[2,3,7,6] x, float[4,3,3,3] w, float[4] b) => (float[2,4,P,Q] z)"
HOW_PADDED = "strides = [1, 2], pads = [1, 2, 1, 2], dilations = [1, 2]"
CHECKED = (
    "stride = [1, 2], padding = [1, 2], dilation = [1, 2], output_padding = [0, 0], groups = 1"
)


@pytest.mark.parametrize("relu", [0, 1])
def test_padding_may_not_be_multiplied(relu: int) -> None:
    """A Relu stays beside its convolution, which ONNX Runtime makes one operator of both."""
    before, after = f"y = Conv<{HOW_PADDED}>(x, w, b)", f"relu = {relu}, {CHECKED}"
    read = "r" if relu else "y"
    relus = "r = Relu(y)" if relu else ""
    model = f"{PADDED} {{ {before} {relus} z = Sigmoid({read}) }}"
    checked = f"c = dort_rewriter.PaddingLeftOut<{after}>({read}, x, w, b) z = Sigmoid(c)"
    assert_rewrites(
        PaddedConv,
        model,
        f"{PADDED} {{ {before} {relus} {checked} }}",
        inputs={"x": _numbers(2, 3, 7, 6), "w": _numbers(4, 3, 3, 3), "b": _numbers(4)},
        reference=False,
    )


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("Conv(x, w)", None),
        ("Conv<pads = [0, 0, 0, 0]>(x, w)", None),
        ("Conv<pads = [1, 1, 0, 0]>(x, w)", "other windows than torch's"),
        ("Conv<pads = [9000, 0, 9000, 0]>(x, w)", "other windows than torch's"),
        ("ConvTranspose<pads = [1, 1, 1, 1]>(x, w)", None),
    ],
)
def test_what_multiplies_no_padding_is_left(node: str, reason: str | None) -> None:
    shapes = "(float[2,4,7,6] x, float[4,4,3,3] w) => (float[2,4,P,Q] z)"
    assert_refuses(PaddedConv, f"{shapes} {{ z = {node} }}", reason)


def test_finite_constants_are_left() -> None:
    """ONNX Runtime has a layout of its own for them."""
    ones = ", ".join(["1"] * 9)
    text = (
        "(float[2,1,8,8] x) => (float[2,1,8,8] z) "
        f"<float[1,1,3,3] w = {{{ones}}}> {{ z = Conv<pads = [1, 1, 1, 1]>(x, w) }}"
    )
    assert_refuses(PaddedConv, text, "the weights are finite constants")
