"""Whether a session on CUDA may round the factors of float32 products to TF32, as torch may.

torch decides it for matrix products, where it is off by default, and for convolutions, where it is
on; onnxruntime has one switch for a session, and has it on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["may_use_tf32", "precisions"]

SMALL_SHARE = 1 / 16
"""Of the work of convolutions in TF32: products of so little go with them. They are those of a
classifier, which reads what the convolutions have rounded."""


def may_use_tf32(graph_module: torch.fx.GraphModule) -> bool:
    """What torch's settings come to for the operators of one graph."""
    products, convolutions = (precision == "tf32" for precision in precisions())
    if products == convolutions:
        return products
    work = _work(graph_module)
    convolved = sum(flops for is_convolution, flops in work if is_convolution)
    multiplied = sum(flops for is_convolution, flops in work if not is_convolution)
    if products:
        return not convolved
    return convolved > 0 and multiplied <= SMALL_SHARE * convolved


def precisions() -> tuple[str, str]:
    """What float32 products and convolutions are computed in on CUDA.

    NOTE: read by the names of torch 2.9 where they are, which the older ones raise beside.
    """
    cudnn = torch.backends.cudnn
    return _precision(torch.backends.cuda.matmul), _precision(getattr(cudnn, "conv", cudnn))


def _precision(settings: Any) -> str:
    named = getattr(settings, "fp32_precision", None)
    return str(named or ("tf32" if settings.allow_tf32 else "ieee"))


def _work(graph_module: torch.fx.GraphModule) -> list[tuple[bool, float]]:
    """The float32 products of a graph: if one is a convolution, and its operations."""
    from torch.utils.flop_counter import flop_registry

    found = []
    for node in graph_module.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if packet not in flop_registry:
            continue
        results = [t for t in pytree.tree_leaves(node.meta.get("val")) if torch.is_tensor(t)]
        if results and results[0].dtype == torch.float32:
            args, kwargs = pytree.tree_map(_sized, (node.args, node.kwargs))
            made = _sized(node)
            flops = float(flop_registry[packet](*args, **kwargs, out_val=made))
            found.append(("convolution" in str(packet), flops))
    return found


def _sized(value: Any) -> Any:
    """Stand in for a value of a graph with numbers for its sizes: a symbol counts as one."""
    if not isinstance(value, torch.fx.Node):
        return value
    return pytree.tree_map_only(torch.Tensor, _of_its_size, value.meta.get("val"))


def _of_its_size(tensor: torch.Tensor) -> torch.Tensor:
    sizes = [size if isinstance(size, int) else 1 for size in tensor.shape]
    return torch.empty(sizes, device="meta")
