"""The options of a script as keyword arguments."""

from __future__ import annotations

import pytest

from dort_rewriter import OptionError, get_parsed_args


def test_defaults_decide_types() -> None:
    found = get_parsed_args(
        "script",
        description="a script",
        expose="size,layers,rate,flag,sizes,repeat",
        new_args=["--layers", "3", "--flag", "1", "--sizes", "4,5", "--repeat=7"],
        size=("large", "how large"),
        layers=(1, "how many layers"),
        rate=(0.5, "50% of it"),
        flag=(False, "whether"),
        sizes=((1, 2), "each"),
        hidden=("x", "not for users"),
    )
    assert (found.size, found.layers, found.rate, found.flag) == ("large", 3, 0.5, True)
    assert (found.sizes, found.repeat, found.hidden, found.warmup) == ((4, 5), 7, "x", 5)


@pytest.mark.parametrize("given", [["--hidden", "y"], ["--layers", "many"], ["--flag", "2"]])
def test_what_cannot_be_given(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        get_parsed_args(
            "script", expose="layers,flag", new_args=given,
            layers=(1, "layers"), flag=(True, "flag"), hidden=("x", "hidden"),
        )  # fmt: skip
    assert "usage: script" in capsys.readouterr().err


def test_help_and_mistakes_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        get_parsed_args("script", new_args=["--help"], rate=(0.5, "50% of it"))
    assert "50% of it, default is 0.5" in capsys.readouterr().out
    with pytest.raises(OptionError, match="expose names 'no'"):
        get_parsed_args("script", expose="rate,no", new_args=[], rate=(0.5, ""))
    with pytest.raises(OptionError, match="rate is a pair"):
        get_parsed_args("script", new_args=[], rate=0.5)  # type: ignore[arg-type]
