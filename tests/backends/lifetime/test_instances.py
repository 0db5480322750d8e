"""Which options share an instance of a backend, and how many instances are kept."""

from __future__ import annotations

import threading
from typing import Any

import onnxruntime
import pytest

from dort_rewriter import OptimizationOptions, OptionError, OrtBackendOptions
from dort_rewriter.backends import instances
from tests.backends.ways import backend_class


@pytest.mark.load_sensitive
def test_first_built_wins() -> None:
    barrier = threading.Barrier(4)
    results = []

    def build() -> Backend:
        barrier.wait()
        return Backend()

    def get() -> None:
        results.append(instances.instance_for(Backend, OrtBackendOptions(), build))

    threads = [threading.Thread(target=get) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(r is results[0] for r in results)
    instances.clear_instances(Backend)


def _transform(model: Any) -> None:
    pass


EQUAL: dict[str, tuple[Any, Any]] = {
    "none": (None, {}),
    "a mapping and the dataclass": ({"fallback": False}, OrtBackendOptions(fallback=False)),
    "nested": (
        {"optimization": {"patterns": "default"}},
        OrtBackendOptions(optimization=OptimizationOptions(patterns="default")),
    ),
    "lists and tuples": (
        {"preferred_execution_providers": [("CPUExecutionProvider", {"a": [1], "b": 2})]},
        {"preferred_execution_providers": (("CPUExecutionProvider", {"b": 2, "a": [1]}),)},
    ),
    "functions": (
        {"pre_ort_model_transforms": [_transform]},
        {"pre_ort_model_transforms": [_transform]},
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_options_share_an_instance(name: str) -> None:
    get = backend_class().get_cached_instance_for_options
    first, second = EQUAL[name]
    assert get(first) is get(second)
    assert backend_class().get_cached_instances() == (get(first),)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"fallback": False}),
        ({"optimization": {"patterns": "default"}}, {"optimization": {"patterns": None}}),
        (
            {"pre_ort_model_transforms": [_transform]},
            {"pre_ort_model_transforms": [lambda model: None]},
        ),
        ({"ort_session_options": onnxruntime.SessionOptions()},) * 2,
    ],
)
def test_other_options_do_not(first: Any, second: Any) -> None:
    get = backend_class().get_cached_instance_for_options
    assert get(first) is not get(second)


def test_options_of_a_session_are_not_kept() -> None:
    options = {"ort_session_options": onnxruntime.SessionOptions()}
    assert backend_class().get_cached_instance_for_options(options) is not None
    assert backend_class().get_cached_instances() == ()


def test_more_than_eight_are_kept_and_forgotten() -> None:
    cls = backend_class()
    made = [cls.get_cached_instance_for_options({"min_block_size": n}) for n in range(1, 10)]
    assert list(cls.get_cached_instances()) == made
    cls.clear_cached_instances()
    assert cls.get_cached_instances() == ()


def test_an_unknown_option_is_refused_with_the_closest_known_one() -> None:
    with pytest.raises(OptionError, match="did you mean 'fallback'"):
        backend_class().get_cached_instance_for_options({"falback": False})


class Backend:
    """Stands for a class that takes a while to build."""


def test_the_ones_used_last_are_kept() -> None:
    def get(n: int) -> Backend:
        return instances.instance_for(Backend, OrtBackendOptions(min_block_size=n), Backend)

    first = get(1)
    others = [get(n) for n in range(2, instances.CAPACITY + 1)]
    assert get(1) is first
    get(instances.CAPACITY + 1)
    assert get(1) is first
    assert get(2) is not others[0]
    assert len(instances.instances_of(Backend)) == instances.CAPACITY
    instances.clear_instances(Backend)
