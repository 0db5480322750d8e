"""Each test starts from a torch that has compiled nothing, as those of the backends do."""

from tests.backends.conftest import dumped, onnxrt

__all__ = ["dumped", "onnxrt"]
