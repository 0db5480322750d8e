"""OxsDispatcher: onnxscript's torchlib behind the converters of this package.

torchlib's own tables are never edited.

NOTE: onnxscript and torchlib are imported when the first operator they have needs them, not
before: it costs more than converting a model.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dort_rewriter.export.dispatcher import Dispatcher
from dort_rewriter.export.onnxscript_functions import onnxscript_converter
from dort_rewriter.export.registry import Converter

DISTRUSTED: dict[str, str] = {
    "aten::_linalg_det": "fails: it gives one result of three",
    "aten::_native_batch_norm_legit": "training mode is ignored",
    "aten::_native_batch_norm_legit_functional": "training mode is ignored",
    "aten::_scaled_dot_product_efficient_attention": "logsumexp is zeros",
    "aten::_scaled_dot_product_flash_attention": "logsumexp is zeros",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "logsumexp is zeros",
    "aten::_upsample_bilinear2d_aa": "align_corners gives wrong numbers",
    "aten::avg_pool1d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::avg_pool2d": "divisor_override is ignored",
    "aten::avg_pool3d": "divisor_override is ignored",
    "aten::cumsum": "bool gives an invalid graph",
    "aten::max_pool1d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool1d_with_indices": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool2d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool2d_with_indices": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool3d": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::max_pool3d_with_indices": "ceil_mode gives wrong numbers on onnxruntime 1.19",
    "aten::native_batch_norm": "training mode is ignored",
    "aten::nll_loss_forward": "the total weight is invented",
    "aten::scatter_reduce.two": "reduce='mean' gives wrong numbers",
    "aten::split.Tensor": "fails: it gives one sequence, not tensors",
    "aten::sum": "bool gives an invalid graph",
}
"""torchlib functions that are not used, and why."""


class OxsDispatcher(Dispatcher):
    """Users' converters, then this package's, then torchlib's."""

    def prefers(self, name: str) -> bool:
        """Whether an operator is better converted: torchlib counts when it stands alone."""
        return super().prefers(name) or (not self._own_converters and self.converts(name))

    def _fallback(self, name: str) -> Converter | None:
        return _torchlib_converter(name)


@functools.cache
def _torchlib_converter(name: str) -> Converter | None:
    if name in DISTRUSTED or name.startswith("_operator::getitem"):
        return None
    mentioned = _mentioned_names()
    if mentioned and name not in mentioned:
        return None
    function = _torchlib_functions().get(name)
    if function is None:
        return None
    return onnxscript_converter(name, function, "torchlib's ")


@functools.cache
def _mentioned_names() -> frozenset[str]:
    """The names in torchlib's sources, all that it converts among them; none if there are
    no such files.

    NOTE: they are read as text, in milliseconds: to learn from an import that an operator is not
    there takes more than a second.
    """
    spec = importlib.util.find_spec("onnxscript")
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    files = (f for p in places for f in Path(p, "function_libs", "torch_lib", "ops").glob("*.py"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return frozenset(name for text in texts for name in re.findall(r'"(\w+::[\w.]+)"', text))


@functools.cache
def _torchlib_functions() -> Mapping[str, Callable[..., Any]]:
    import onnxscript.function_libs.torch_lib.ops  # noqa: F401  (fills the registry)
    from onnxscript.function_libs.torch_lib import registration

    registry = registration.default_registry
    return {name: registry[name].overloads[0] for name in registry if registry[name].overloads}
