"""Converters whose arguments are one record."""

from __future__ import annotations

import torch

from dort_rewriter.export.registry import arguments


def test_arguments_have_the_names_of_the_schema_and_its_defaults() -> None:
    clamp = torch.ops.aten.clamp.default
    assert vars(arguments(clamp, (1.0,), {"max": 2.0})) == {"x": 1.0, "min": None, "max": 2.0}


def test_arguments_come_by_position_or_by_name() -> None:
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    found = arguments(op, ("q", "k", "v", 0.0, True), {"scale": 0.5})
    assert (found.query, found.value, found.is_causal) == ("q", "v", True)
    assert (found.attn_mask, found.scale) == (None, 0.5)


def test_self_given_by_name_is_x() -> None:
    assert arguments(torch.ops.aten.relu.default, (), {"self": 1}).x == 1
