"""What the torch that runs the tests does, by its version."""

from __future__ import annotations

import torch

__all__ = ["COMPILES_OWN_MODULES_IN_PLACE"]

_VERSION = torch.torch_version.TorchVersion(torch.__version__)

COMPILES_OWN_MODULES_IN_PLACE = _VERSION >= (2, 15)
"""Dynamo reads ``nn.Sequential(...).compile()``, and skips it before."""
