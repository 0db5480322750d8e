"""A patch wraps, binds, is taken back exactly, and knows when somebody else came after it."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from dort_rewriter.errors import HookError
from dort_rewriter.hook.patch import Patch
from dort_rewriter.hook.versions import PATCHES, PRISTINE, parse_series


class Engine:
    """A class that torch could have."""

    def __init__(self, power: int) -> None:
        self.power = power

    def run(self, speed: int) -> int:
        """Run."""
        return self.power * speed

    def __call__(self, speed: int) -> int:
        return self.run(speed)


def start(speed: int) -> int:
    """A function that torch could have."""
    return speed + 1


ORIGINALS = {name: vars(Engine)[name] for name in ("run", "__call__")}


@pytest.fixture
def module() -> Iterator[Any]:
    module: Any = ModuleType("engines")
    module.Engine = Engine
    yield module
    for name, value in ORIGINALS.items():
        setattr(Engine, name, value)


def double(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return 2 * wrapped(*args, **kwargs)


def make_patch(attribute: str, **more: Any) -> Patch:
    return Patch(
        module="engines", attribute=attribute, replacement=double, reason="", since=(2, 3), **more
    )


def test_a_method_is_wrapped_and_restored(module: Any) -> None:
    applied = make_patch("Engine.run").apply(module)
    assert Engine(3).run(2) == 12
    assert Engine(3).run(speed=2) == 12
    assert Engine.run.__doc__ == "Run."
    assert applied.obstacle() is None
    applied.restore()
    assert vars(Engine)["run"] is ORIGINALS["run"]


def test_calls_of_the_instance_are_wrapped(module: Any) -> None:
    make_patch("Engine.__call__").apply(module)
    assert Engine(3)(2) == 12


def test_a_bound_method_can_be_copied_and_pickled(module: Any) -> None:
    make_patch("Engine.run").apply(module)
    engine = Engine(3)
    copied = copy.deepcopy({"engine": engine, "run": engine.run})
    engine.power = 0
    assert copied["run"](2) == 12
    copied["engine"].power = 5  # type: ignore[attr-defined]
    assert copied["run"](2) == 20
    assert pickle.loads(pickle.dumps(Engine(3).run))(2) == 12


def test_a_function_can_be_copied_and_pickled(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, as Python's."""
    monkeypatch.setitem(sys.modules, "engines", module)
    monkeypatch.setattr(start, "__module__", "engines")
    module.start = start
    make_patch("start").apply(module)
    assert module.start(2) == 6
    assert copy.deepcopy([module.start])[0] is module.start
    assert pickle.loads(pickle.dumps(module.start)) is module.start
    make_patch("Engine.run").apply(module)
    assert copy.deepcopy([Engine.run])[0](Engine(3), 2) == 12


def test_a_missing_attribute_is_an_error(module: Any) -> None:
    with pytest.raises(HookError, match=r"engines\.Engine\.fly: torch has no such"):
        make_patch("Engine.fly").apply(module)
    with pytest.raises(HookError, match="there is no 'Wing' in engines"):
        make_patch("Wing.fly").apply(module)


def test_a_missing_attribute_may_have_a_substitute(module: Any) -> None:
    applied = make_patch("extra", absent=lambda: 4).apply(module)
    assert module.extra() == 8
    applied.restore()
    assert not hasattr(module, "extra")


def test_who_replaced_a_patch_is_named(module: Any) -> None:
    applied = make_patch("Engine.run").apply(module)

    def intruder(self: Engine, speed: int) -> int:
        return 0

    Engine.run = intruder  # type: ignore[method-assign]
    assert f"{__name__}.test_who_replaced_a_patch_is_named" in str(applied.obstacle())
    assert "intruder" in str(applied.obstacle())
    assert "test_patch.py:" in str(applied.obstacle())


def test_who_wrapped_a_patch_is_named(module: Any) -> None:
    applied = make_patch("Engine.run").apply(module)
    make_patch("Engine.run").apply(module)
    assert f"{__name__}.double" in str(applied.obstacle())


def test_who_removed_a_patch(module: Any) -> None:
    applied = make_patch("Engine.run").apply(module)
    del Engine.run
    assert str(applied.obstacle()) == "engines.Engine.run is now nothing"


def test_a_patch_fits_a_range_of_versions() -> None:
    patch = make_patch("x", before=(2, 9))
    assert [patch.fits(s) for s in ((2, 2), (2, 3), (2, 8), (2, 9))] == [False, True, True, False]
    assert make_patch("x").fits((3, 0))


@pytest.mark.parametrize(
    ("version", "series"),
    [("2.8.0+cu128", (2, 8)), ("2.13.0", (2, 13)), ("2.9.0a0+git123", (2, 9)), ("10.0", (10, 0))],
)
def test_versions_are_understood(version: str, series: tuple[int, int]) -> None:
    assert parse_series(version) == series


def test_every_hooked_series_is_known_by_content() -> None:
    hooked = [patch for patch in PATCHES if patch.before is not None]
    series = [parse_series(name) for name in PRISTINE]
    assert hooked
    for patch in hooked:
        assert series == [(2, minor) for minor in range(3, 9) if patch.fits((2, minor))]
