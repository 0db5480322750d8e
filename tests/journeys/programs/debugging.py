"""What is not converted is named; what is not finite is found; what is asked wrong is said."""

import pytest
import torch

from dort_rewriter import (
    NotFiniteError,
    OptionError,
    OrtBackend,
    OrtBackendOptions,
    UnsupportedOpError,
    explain,
)

strict = OrtBackend(OrtBackendOptions(fallback=False))
with pytest.raises(UnsupportedOpError, match="linalg_eig"):
    torch.compile(torch.linalg.eigvals, backend=strict)(torch.eye(3))
with pytest.raises(OptionError, match="did you mean 'fallback'"):
    OrtBackend({"fallbak": False})


def normalized(x: torch.Tensor) -> torch.Tensor:
    return x / x.sum(-1, keepdim=True)


checked = torch.compile(normalized, backend=OrtBackend(OrtBackendOptions(verify="finite")))
checked(torch.ones(2, 3))
with pytest.raises(NotFiniteError, match=r"x / x\.sum"):
    checked(torch.zeros(2, 3))
assert "ONNX Runtime" in str(explain(normalized, torch.ones(2, 3)))
print("debugging: done")
