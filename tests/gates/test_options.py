"""Options cannot change once given, explain themselves, and refuse what they do not know."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from typing import Any

import pytest

from dort_rewriter import options
from dort_rewriter.errors import OptionError
from tests.gates.sources import nodes, place, python_files

OPTIONS_NODES = [
    (path, node)
    for path in python_files("dort_rewriter")
    for node in nodes(path)
    if isinstance(node, ast.ClassDef) and node.name.endswith("Options")
]
OPTIONS_CLASSES: list[Any] = [
    value
    for _, value in inspect.getmembers(options, inspect.isclass)
    if dataclasses.is_dataclass(value) and value.__module__ == options.__name__
]


def undocumented_fields(body: list[ast.stmt]) -> list[str]:
    """The fields of a class that no string literal follows."""
    following = [*body[1:], ast.Pass()]
    return [
        ast.unparse(field.target)
        for field, after in zip(body, following, strict=True)
        if isinstance(field, ast.AnnAssign)
        and not (
            isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        )
    ]


@pytest.mark.parametrize(("path", "node"), OPTIONS_NODES, ids=lambda x: getattr(x, "name", ""))
def test_fields_are_documented(path: Any, node: ast.ClassDef) -> None:
    assert undocumented_fields(node.body) == [], place(path, node.lineno)


@pytest.mark.parametrize(("path", "node"), OPTIONS_NODES, ids=lambda x: getattr(x, "name", ""))
def test_class_is_a_frozen_keyword_only_dataclass(path: Any, node: ast.ClassDef) -> None:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    assert "dataclass(frozen=True, kw_only=True)" in decorators, place(path, node.lineno)


def test_the_gate_sees_the_classes_it_guards() -> None:
    names = {node.name for _, node in OPTIONS_NODES}
    assert {"ExportOptions", "OptimizationOptions"} <= names
    assert {cls.__name__ for cls in OPTIONS_CLASSES} <= names
    body = ast.parse("a: int = 1\n'''Text.'''\nb: int = 2\nc: int = 3\n'''Text.'''").body
    assert undocumented_fields(body) == ["b"]


@pytest.mark.parametrize("cls", OPTIONS_CLASSES)
def test_an_instance_cannot_change(cls: Any) -> None:
    instance = cls()
    for field in dataclasses.fields(cls):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(instance, field.name, None)


@pytest.mark.parametrize("cls", OPTIONS_CLASSES)
def test_positional_arguments_are_refused(cls: Any) -> None:
    with pytest.raises(TypeError, match="positional"):
        cls(True)


@pytest.mark.parametrize("cls", OPTIONS_CLASSES)
def test_an_unknown_key_is_refused_with_the_closest(cls: Any) -> None:
    for field in dataclasses.fields(cls):
        wrong = f"{field.name}_"
        with pytest.raises(OptionError, match=f"{wrong}.*{cls.__name__}.*{field.name!r}"):
            options.from_mapping(cls, {wrong: None})


@pytest.mark.parametrize("cls", OPTIONS_CLASSES)
def test_a_mapping_an_instance_and_none_are_accepted(cls: Any) -> None:
    default = cls()
    assert options.from_mapping(cls, None) == default
    assert options.from_mapping(cls, {}) == default
    assert options.from_mapping(cls, default) is default
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(cls)}
    assert options.from_mapping(cls, values) == default


def test_a_key_like_no_other_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'zzz'.*known: .*strict"):
        options.from_mapping(options.ExportOptions, {"zzz": 1})


def test_what_is_no_mapping_is_refused_by_type() -> None:
    with pytest.raises(OptionError, match="ExportOptions, got list"):
        options.from_mapping(options.ExportOptions, [("strict", True)])


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        ("OrtBackendOptions", {"freeze": "yes"}, "freeze of OrtBackendOptions is True or False"),
        (
            "OrtBackendOptions",
            {"target_opset": "18"},
            "target_opset .* is a whole number, not '18'",
        ),
        ("OrtBackendOptions", {"target_opset": True}, "target_opset .* is a whole number"),
        ("OrtBackendOptions", {"target_opset": 17}, "target_opset .* is 18 to 23, not 17"),
        ("OrtBackendOptions", {"target_opset": 99}, "target_opset .* is 18 to 23, not 99"),
        ("OrtBackendOptions", {"min_block_size": 0}, "min_block_size .* is 1 or more, not 0"),
        ("OrtBackendOptions", {"intra_op_threads": -1}, "intra_op_threads .* is 0 or more"),
        ("OrtBackendOptions", {"ort_session_options": 3}, "an onnxruntime.SessionOptions, not 3"),
        ("OrtBackendOptions", {"pre_ort_model_transforms": [3]}, "functions of a model, not 3"),
        ("OrtBackendOptions", {"pre_ort_model_transforms": len}, "transforms .* is a list, not"),
        ("OptimizationOptions", {"processor": "TPU"}, "processor='TPU' is none of 'CPU', 'CUDA'"),
        ("OrtBackendOptions", {"intra_op_threads": 1.5}, "intra_op_threads .* is a whole number"),
        ("OrtBackendOptions", {"spinning": "never"}, "spinning .* is one of 'on', 'stop', 'off'"),
        (
            "OrtBackendOptions",
            {"preferred_execution_providers": "CPUExecutionProvider"},
            "preferred_execution_providers .* is a list, not 'CPU",
        ),
        ("OrtBackendOptions", {"placement": {"aten::mm": "gpu"}}, "not 'gpu' of 'aten::mm'"),
        ("OrtBackendOptions", {"placement": {"aten::nope": "torch"}}, "mean 'aten::ne'"),
        ("OrtBackendOptions", {"placement": {"convolution": "torch"}}, "mean 'aten::convolution'"),
        ("OrtBackendOptions", {"placement": {"torch.add": "torch"}}, "mean 'aten::add'"),
        ("OrtBackendOptions", {"placement": {"aten::relu.default": "torch"}}, "mean 'aten::relu'"),
        ("OrtBackendOptions", {"placement": {"nowhere::op": "torch"}}, "once it is imported"),
        ("OptimizationOptions", {"verbose": "1"}, "verbose .* is a whole number, not '1'"),
        ("OptimizationOptions", {"processor": 0}, "processor .* is a text, not 0"),
        ("ExportOptions", {"strict": None}, "strict .* is True or False, not None"),
    ],
)
def test_values_that_do_not_fit_are_refused(cls: str, values: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        getattr(options, cls)(**values)


def test_none_is_a_value_where_it_says_so() -> None:
    made = options.OrtBackendOptions(ort_optimization_level=None, intra_op_threads=None)
    assert made.intra_op_threads is None
