"""Which execution providers run a graph, best first, and in which precision.

torch decides TF32 for matrix products, where it is off by default, and for convolutions, where it
is on; onnxruntime has one switch for a session, and has it on.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dort_rewriter.kernels.torch_library import float32_precision
from dort_rewriter.options import OrtBackendOptions
from dort_rewriter.plan.recipe import Providers
from dort_rewriter.runtime.providers import (
    CPU,
    CUDA,
    OPENVINO,
    Provider,
    ProviderSpec,
    infer,
    parse,
    take_present,
)


def selection_of(
    backend: Any, options: OrtBackendOptions
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Providers]:
    """How a backend selects its providers: its own method, but for that of torch's class.

    NOTE: torch's puts the CPU before CUDA, and leaves out which device.
    """
    if (backend._select_eps.__module__ or "").startswith("torch."):
        return functools.partial(select_providers, options)
    return lambda graph_module, args: backend._select_eps(graph_module, *args)


def select_providers(
    options: OrtBackendOptions, graph_module: torch.fx.GraphModule, args: Sequence[Any]
) -> list[tuple[str, Mapping[str, Any]]]:
    """The providers of a session, best first, each once.

    Raises :class:`OptionError` for one that is named and not there, if it is required or the
    options say ``fallback=False``.
    """
    chosen: dict[str, Provider] = {}
    for provider in map(parse, options.preferred_execution_providers or ()):
        chosen.setdefault(provider.name, provider)
    if options.infer_execution_providers:
        devices = [a.device for a in args if isinstance(a, torch.Tensor)]
        for provider in infer([*devices, *_result_devices(graph_module)]):
            # What the user left open follows the tensors, as the device's number.
            named = chosen.get(provider.name, provider)
            options_of = {**provider.options, **named.options}
            chosen[provider.name] = dataclasses.replace(named, options=options_of)
    for provider in map(parse, options.default_execution_providers or (CPU,)):
        chosen.setdefault(provider.name, provider)
    here = take_present(list(chosen.values()), strict=not options.fallback)
    return [_as_torch_computes(p, graph_module).spelled() for p in here or [Provider(CPU)]]


def providers_of_files(specs: Sequence[ProviderSpec]) -> list[tuple[str, Mapping[str, Any]]]:
    """The providers that run models of files, as the user names them, with the CPU behind them.

    Raises :class:`OptionError` for one that is not there.
    """
    here = take_present([*specs, CPU], strict=True)
    return [_as_torch_computes(p, None).spelled() for p in here]


_PINNED: Mapping[str, Mapping[str, str]] = {
    # On a processor with AMX or AVX512_BF16 it would be bfloat16, on a GPU float16: gradients were
    # off by 1.6e-2.
    OPENVINO: {
        "load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f32"},'
        '"GPU":{"INFERENCE_PRECISION_HINT":"f32"}}'
    },
    # Its networks compute in float16 on Apple's GPU and neural engine; typed programs do not.
    "CoreMLExecutionProvider": {
        "ModelFormat": "MLProgram",
        "AllowLowPrecisionAccumulationOnGPU": "0",
    },
    # By default float32 is computed in float16.
    "QNNExecutionProvider": {"enable_htp_fp16_precision": "0"},
    # By default it takes float16 wherever an operator has both.
    "CANNExecutionProvider": {"precision_mode": "must_keep_origin_dtype"},
}
"""Options of providers that would lower the precision of float32 by themselves, and why."""


def _as_torch_computes(provider: Provider, graph_module: torch.fx.GraphModule | None) -> Provider:
    """A provider with options to compute as exactly as torch's settings ask for, in all graphs
    where none is given.

    What the user's own options say wins.
    """
    own = provider.options
    if provider.name == CUDA:
        return dataclasses.replace(provider, options={**_cuda_options(graph_module), **own})
    pinned = dict(_PINNED.get(provider.name, {}))
    if not pinned or float32_precision() == "bf16":
        return provider
    if provider.name == OPENVINO:
        pinned = {} if "precision" in own else pinned
        if pinned and (config := _with_hints(own.get("load_config"), pinned["load_config"])):
            own = {**own, "load_config": config}
    return dataclasses.replace(provider, options={**pinned, **own})


def _with_hints(config: str | None, pinned: str) -> str | None:
    """The user's configuration of OpenVINO, with the precision for each device where it says
    none; None where it is not one, but the name of a file."""
    try:
        known = json.loads(config or "{}")
    except ValueError:
        return None
    if not isinstance(known, dict) or not all(isinstance(v, dict) for v in known.values()):
        return None
    return json.dumps(
        {**known, **{k: {**v, **known.get(k, {})} for k, v in json.loads(pinned).items()}}
    )


def _cuda_options(graph_module: torch.fx.GraphModule | None) -> Mapping[str, str]:
    """What torch's settings say of CUDA's products and convolutions.

    NOTE: by itself onnxruntime rounds to TF32 and tries every algorithm of a convolution, which
    takes seconds at each first call, as torch does only when it is asked to.
    """
    search = "EXHAUSTIVE" if torch.backends.cudnn.benchmark else "HEURISTIC"
    tf32 = all(precision == "tf32" for precision in precisions())
    if graph_module is not None:
        tf32 = may_use_tf32(graph_module)
    return {"use_tf32": str(int(tf32)), "cudnn_conv_algo_search": search}


def _result_devices(graph_module: torch.fx.GraphModule) -> list[torch.device]:
    output = next(n for n in graph_module.graph.nodes if n.op == "output")
    values = [n.meta.get("val") for n in output.all_input_nodes]
    return [v.device for v in values if isinstance(v, torch.Tensor)]


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
