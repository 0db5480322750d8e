"""Nested results: what is close, what is not, and what is said about it."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from dort_rewriter import OptionError, assert_all_close, results_to_string
from dort_rewriter.tools.results import tensors_in

T = torch.tensor


@dataclass
class Output:
    logits: Any
    cache: Any = None


class Held:
    """Equal to itself alone, like the caches of transformers."""

    def __init__(self, held: Any) -> None:
        self.held = held


CLOSE = {
    "tensors": (T([1.0, 2.0]), T([1.0, 2.000001])),
    "tensor and array": (T([1.0, 2.0]), np.array([1.0, 2.0], dtype=np.float32)),
    "nested": ([T(1.0), (T(2), {"a": None})], (T(1.0), [T(2), {"a": None}])),
    "mappings in another order": ({"a": 1, "b": 2.0}, OrderedDict(b=2.0, a=1)),
    "dataclasses": (Output(T([1.0])), Output(T([1.0]))),
    "plain objects": (Held([T([1.0]), "a"]), Held([T([1.0]), "a"])),
    "not finite": (T([math.nan, math.inf, -math.inf]), T([math.nan, math.inf, -math.inf])),
    "empty": (torch.zeros(0, 3), torch.zeros(0, 3)),
    "bfloat16": (T([1.5], dtype=torch.bfloat16), np.array([1.5], dtype=ml_dtypes.bfloat16)),
    "complex": (T([1 + 1j]), T([1 + 1.000001j])),
    "truth values": (T([True]), np.array([True])),
    "wide unsigned": (np.array([2**63], np.uint64), np.array([2**63], np.uint64)),
    "text and arrays of text": (["a", np.array(["b"])], ["a", np.array(["b", "long"])[:1]]),
    "numbers": ([1, 2.0, True], [1, 2.0000001, True]),
    "nan as a number": (math.nan, math.nan),
}


@pytest.mark.parametrize("name", CLOSE)
def test_close(name: str) -> None:
    assert_all_close(*CLOSE[name])


DIFFERENT = {
    "value": (
        T([[1.0, 2.0], [3.0, 4.0]]),
        T([[1.0, 2.5], [4.0, 4.0]]),
        "results: float32[2, 2]: 2 of 4 elements differ by more than 1e-05 (+ 1e-05 relative), "
        "at most by 1: at [1, 0] 3.0 expected, 4.0 given",
    ),
    "path": (
        {"a": [T(1), Output(T([1, 2]))]},
        {"a": [T(1), Output(T([1, 3]))]},
        "results['a'][1].logits: int64[2]: 1 of 2 elements differ: at [1] 2 expected, 3 given",
    ),
    "what an object holds": (
        Held([T(1)]),
        Held([T(2)]),
        "results.held[0]: int64[]: 1 of 1 elements",
    ),
    "functions": (repr, str, "<built-in function repr> expected"),
    "type": (T([1.0]), T([1]), "results: float32[1] expected, int64[1] given"),
    "shape": (T([1.0]), T([[1.0]]), "results: float32[1] expected, float32[1, 1] given"),
    "length": ([1, 2], [1], "results: 2 results expected, 1 given"),
    "keys": ({"a": 1}, {"b": 1}, "results: keys ['a'] expected, ['b'] given"),
    "structure": ([T(1)], T(1), "results: list of 1 expected, int64[] given"),
    "list and mapping": ([1], {0: 1}, "results: list of 1 expected, dict of 1 given"),
    "none": ([None], [T(1)], "results[0]: None expected, int64[] given"),
    "nan": (T([1.0]), T([math.nan]), "at most by inf: at [0] 1.0 expected, nan given"),
    "infinity": (T([math.inf]), T([-math.inf]), "at [0] inf expected, -inf given"),
    "finite": (T([math.inf]), T([1.0]), "at [0] inf expected, 1.0 given"),
    "number": (1.0, 1.1, "float64[]: 1 of 1 elements differ"),
    "number types": (1, True, "results: 1 expected, True given"),
    "large integers": (T([2**53]), T([2**53 + 1]), "9007199254740993 given"),
    "text": ("a", "b", "results: 'a' expected, 'b' given"),
    "shapes of text": (np.array(["a", "a"]), np.array(["a"]), "'a'], dtype='<U1') expected, "),
    "shapes of objects": (np.array([None]), np.array([[None]]), "array([[None]], dtype=object) "),
    "types of text": (np.array(["a"]), np.array(["a"], object), "array(['a'], dtype=object) "),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    expected, got, message = DIFFERENT[name]
    with pytest.raises(AssertionError) as failure:
        assert_all_close(expected, got)
    assert message in str(failure.value)


def test_tolerances_are_absolute_and_relative() -> None:
    assert_all_close(T([100.0]), T([101.0]), atol=0.0, rtol=0.011)
    assert_all_close(T([1.0]), T([1.1]), atol=0.11, rtol=0.0)
    with pytest.raises(AssertionError):
        assert_all_close(T([1.0]), T([1.1]), atol=0.09, rtol=0.0)


@pytest.mark.parametrize(("quantile", "outliers"), [(0.9, 1), (0.93, 0), (0.5, 5), (0.07, 9)])
def test_a_share_of_the_elements_may_be_further(quantile: float, outliers: int) -> None:
    expected, got = torch.zeros(10), torch.zeros(10)
    got[:outliers] = 1.0
    assert_all_close(expected, got, atol=(1e-3, quantile))
    got[outliers] = 1.0
    with pytest.raises(AssertionError, match=f"{outliers + 1} of 10 elements .*must not"):
        assert_all_close(expected, got, atol=(1e-3, quantile))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_share_may_be_infinitely_far(value: float) -> None:
    one = torch.arange(100.0)
    one[3] = value
    assert_all_close(one, one.clone(), atol=(1e-3, 0.99))
    with pytest.raises(AssertionError, match=r"at most by inf: at \[3\] 3.0 expected, (nan|inf) "):
        assert_all_close(torch.arange(100.0), one, atol=(1e-3, 0.99))
    with pytest.raises(AssertionError, match=r"1 of 100 .* at \[3\] (nan|inf) expected, 3.0 "):
        assert_all_close(one, torch.arange(100.0), atol=[(1e-3, 0.99), (1.0, 0.5)])


def test_several_quantiles_must_all_be_met() -> None:
    got = T([0.0] * 9 + [0.5])
    assert_all_close(torch.zeros(10), got, atol=((1e-3, 0.9), (1.0, 1.0)))
    with pytest.raises(AssertionError, match=r"more than 0\.1 "):
        assert_all_close(torch.zeros(10), got, atol=[(1e-3, 0.9), (0.1, 1.0)])


@pytest.mark.parametrize(
    "atol",
    [
        *(-1.0, (1.0, 2.0), (1.0, 0.0), (), [(1.0,)], "small", math.nan),
        *(None, [None], ("a", "b"), [("a", 0.5)], 1j, np.zeros(2), {}, {1.0: 0.5}),
    ],
)
def test_a_tolerance_without_sense_is_refused(atol: Any) -> None:
    with pytest.raises(OptionError, match="atol"):
        assert_all_close(1, 1, atol=atol)
    with pytest.raises(OptionError, match="rtol"):
        assert_all_close(1, 1, rtol=None if isinstance(atol, tuple | list) else atol)


def test_numbers_of_numpy_are_tolerances() -> None:
    assert_all_close(T([1.0]), T([1.05]), atol=np.float32(0.1), rtol=np.float64(0.0))
    assert_all_close(T([1.0]), T([1.05]), atol=(np.float32(0.1), np.int64(1)))
    with pytest.raises(AssertionError):
        assert_all_close(T([1.0]), T([1.2]), atol=np.float32(0.1))


def test_many_differences_are_counted_and_the_message_comes_first() -> None:
    with pytest.raises(AssertionError) as failure:
        assert_all_close(list(range(13)), [-1] * 13, msg="after step 3")
    lines = str(failure.value).splitlines()
    assert lines[0] == "after step 3"
    assert len(lines) == 12
    assert lines[-1] == "... and 3 more differences"


def test_a_cache_that_pytree_knows_is_compared() -> None:
    class Cache:
        def __init__(self, keys: torch.Tensor) -> None:
            self.keys = keys

    torch.utils._pytree.register_pytree_node(
        Cache, lambda c: ([c.keys], None), lambda leaves, _: Cache(leaves[0])
    )
    assert_all_close(Cache(T([1.0])), Cache(T([1.0])))
    with pytest.raises(AssertionError, match=r"results<0>: float32\[1\]"):
        assert_all_close(Cache(T([1.0])), Cache(T([2.0])))


def test_tensors_in_objects_that_hold_each_other() -> None:
    held = Held({"a": [T([1.0])], "b": (Output(T([2.0]), None), len)})
    held.held["c"] = Held([held, T([3.0])])
    assert [t.item() for t in tensors_in(held)] == [1, 2, 3]


def test_results_as_text() -> None:
    values = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    values[0, 0], values[0, 1] = math.nan, math.inf
    results = (
        values,
        {"ids": T([1, 2]), "mask": torch.ones(20, dtype=torch.bool)},
        [None, 1.5, torch.zeros(0, 2), np.float16(0.5)],
        torch.full((3, 4), 1 + 2j),
    )
    assert results_to_string(results, indent="> ").splitlines() == [
        "> tuple of 4",
        ">   [0]: float32[3, 4] min=2 max=11 mean=6.5 nan=1 inf=1",
        ">   [1]: dict of 2",
        ">     ['ids']: int64[2] = 1, 2",
        ">     ['mask']: bool[20] true=20",
        ">   [2]: list of 4",
        ">     [0]: None",
        ">     [1]: 1.5",
        ">     [2]: float32[0, 2], empty",
        ">     [3]: float16[] = 0.5",
        ">   [3]: complex64[3, 4] min=1 max=2 mean=1.5",
    ]


def test_sparse_results_as_text() -> None:
    wide, narrow = torch.eye(5), torch.eye(2)
    assert results_to_string(wide.to_sparse()) == ("float32[5, 5] sparse_coo min=0 max=1 mean=0.2")
    assert results_to_string(narrow.to_sparse()) == "float32[2, 2] sparse_coo = 1, 0, 0, 1"
    with pytest.raises(AssertionError, match=r"at \[0, 1\] 0.0 expected, 1.0 given"):
        assert_all_close(narrow.to_sparse(), torch.ones(2, 2).to_sparse())
