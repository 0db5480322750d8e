"""What the torch that runs the tests does, by its version."""

from __future__ import annotations

import torch

__all__ = ["COMPILES_OWN_MODULES_IN_PLACE", "REFUSES_GRADIENTS_OF_TYPES", "TELLS_SQUARES_APART"]

_VERSION = torch.torch_version.TorchVersion(torch.__version__)

COMPILES_OWN_MODULES_IN_PLACE = _VERSION >= (2, 15)
"""Dynamo reads ``nn.Sequential(...).compile()``, and skips it before."""

REFUSES_GRADIENTS_OF_TYPES = _VERSION < (2, 15)
"""``special.i1`` takes bfloat16, its gradient does not."""

TELLS_SQUARES_APART = _VERSION >= (2, 15)
"""AOTAutograd asks whether two sizes of a transposed result are equal."""
