"""What :mod:`device_check` checks: each on a device, by its own sessions, against eager."""

from __future__ import annotations

import copy
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dort_rewriter import OrtBackend, OrtBackendOptions
from dort_rewriter.runtime.ort_values import from_ort, to_ort
from dort_rewriter.runtime.providers import CPU, CUDA

__all__ = ["CHECKS", "NEEDS_CUDA"]

TOLERANCE = {"cpu": 1e-5, "cuda": 1e-4}

Check = Callable[[torch.device], None]
CHECKS: dict[str, Check] = {}
NEEDS_CUDA: set[str] = set()


def check(*, cuda_only: bool = False) -> Callable[[Check], Check]:
    def register(function: Check) -> Check:
        name = function.__name__.replace("_", " ")
        CHECKS[name] = function
        if cuda_only:
            NEEDS_CUDA.add(name)
        return function

    return register


def compile_on_ort(
    function: Callable[..., Any], *, dynamic: bool = False, **options: Any
) -> tuple[Callable[..., Any], OrtBackend]:
    """Compile, without leaving anything to torch unseen."""
    backend = OrtBackend(OrtBackendOptions(**{"fallback": False, **options}))
    return torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True), backend


def sessions(backend: OrtBackend) -> list[Any]:
    table = backend._all_ort_execution_info.execution_info_per_graph_module
    return [info.session for infos in table.values() for info in infos]


def same(got: Any, want: Any) -> None:
    """Compare values, types, devices and strides."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(want) if isinstance(t, torch.Tensor)]
    tol = TOLERANCE[tensors[0].device.type if tensors else "cpu"]
    torch.testing.assert_close(got, want, atol=tol, rtol=tol, check_stride=True)


def train(model: nn.Module, *inputs: torch.Tensor, dynamic: bool = False) -> OrtBackend:
    """Train a model for three steps beside its twin in eager."""
    twin = copy.deepcopy(model)
    compiled, backend = compile_on_ort(model, dynamic=dynamic)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin)]
    for _ in range(3):
        losses = []
        for module, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(module(*inputs).square().mean())
            losses[-1].backward()
        same(*losses)
        same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
        for optimizer in optimizers:
            optimizer.step()
    same(model.state_dict(), twin.state_dict())
    return backend


@check()
def the_provider_of_the_device_comes_first(device: torch.device) -> None:
    compiled, backend = compile_on_ort(torch.relu)
    compiled(torch.randn(3, device=device))
    (session,) = sessions(backend)
    names = session.get_providers()
    assert names[0] == (CUDA if device.type == "cuda" else CPU), names
    assert names[-1] == CPU, names
    check_device_id(session, device)


def check_device_id(session: Any, device: torch.device) -> None:
    if device.type == "cuda":
        used = session.get_provider_options()[CUDA]["device_id"]
        assert used == str(device.index or 0), used


@check()
def a_provider_chosen_by_name_follows_the_tensors(device: torch.device) -> None:
    name = CUDA if device.type == "cuda" else CPU
    compiled, backend = compile_on_ort(torch.relu, preferred_execution_providers=[name])
    x = torch.randn(3, device=device)
    same(compiled(x), x.relu())
    check_device_id(sessions(backend)[0], device)


@check(cuda_only=True)
def products_are_as_exact_as_those_of_torch(device: torch.device) -> None:
    x, weight = torch.randn(256, 1024, device=device), torch.randn(1024, 256, device=device)
    exact = x.double() @ weight.double()
    asked = torch.get_float32_matmul_precision()
    for precision in ("highest", "high"):
        torch.set_float32_matmul_precision(precision)
        try:
            got, want = (f(x, weight) for f in (compile_on_ort(torch.matmul)[0], torch.matmul))
        finally:
            torch.set_float32_matmul_precision(asked)
        off, allowed = ((t - exact).abs().max() for t in (got, want))
        assert off <= 2 * allowed, (precision, off, allowed)


@check()
def tensors_share_their_memory(device: torch.device) -> None:
    for dtype in (torch.float32, torch.int64, torch.bool, torch.float16, torch.bfloat16):
        x = torch.ones(2, 3, device=device).to(dtype)
        vector = to_ort([x])
        (back,) = from_ort(vector, [dtype])
        assert back.data_ptr() == x.data_ptr(), dtype
        assert back.device == x.device, back.device


@check()
def results_outlive_their_session(device: torch.device) -> None:
    compiled, _ = compile_on_ort(lambda x: x + 1)
    y = compiled(torch.zeros(10_000, device=device))
    torch._dynamo.reset()
    del compiled
    gc.collect()
    scratch = [torch.full((10_000,), 7.0, device=device) for _ in range(20)]
    assert y.eq(1).all()
    assert len(scratch) == 20


@check()
def torch_allocates_when_asked(device: torch.device) -> None:
    compiled, _ = compile_on_ort(torch.relu, preallocate_output=True)
    x = torch.randn(3, 4, device=device)
    for _ in range(2):
        same(compiled(x), x.relu())


@check(cuda_only=True)
def compiling_and_resetting_leaves_no_memory(device: torch.device) -> None:
    compiled, _ = compile_on_ort(lambda x: x.relu() + 1)
    free = []
    for _ in range(3):
        for _ in range(10):
            compiled(torch.ones(1024, device=device))
            torch._dynamo.reset()
        gc.collect()
        torch.cuda.synchronize(device)
        free.append(torch.cuda.mem_get_info(device)[0])
    assert free[0] - free[-1] < 64 << 20, free


@check(cuda_only=True)
def every_device_has_its_session(device: torch.device) -> None:
    for index in range(torch.cuda.device_count()):
        other = torch.device("cuda", index)
        the_provider_of_the_device_comes_first(other)
        a_provider_chosen_by_name_follows_the_tensors(other)


@check(cuda_only=True)
def work_is_ordered_with_the_current_stream(device: torch.device) -> None:
    compiled, _ = compile_on_ort(lambda x: (x * 2).sum(0))
    compiled(torch.zeros(1024, 1024, device=device))
    for stream in (torch.cuda.current_stream(device), torch.cuda.Stream(device)):
        for step in range(20):
            with torch.cuda.stream(stream):
                x = torch.zeros(1024, 1024, device=device)
                torch.cuda._sleep(1_000_000)
                x += step  # late: a session that does not wait reads zeros
                y = compiled(x)
                x.fill_(-1)  # early: a session that is not waited for reads these
                total = y.sum()
            stream.synchronize()
            assert total.item() == 2 * step * 1024 * 1024, (stream, step)


@check(cuda_only=True)
def models_that_stage_numbers_on_the_host_come_and_go(device: torch.device) -> None:
    """A process that ends here has ended a session with work left: see `runtime/session.py`."""
    for number in range(20):
        torch._dynamo.reset()
        compiled, _ = compile_on_ort(lambda x, n=number: torch.cat([x * 2, x + n]).sort()[0])
        x = torch.randn(1 << 16, device=device)
        for _ in range(3):
            compiled(x)
        del compiled
        gc.collect()


@check(cuda_only=True)
def dropout_is_that_of_eager_mode(device: torch.device) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch._dynamo.reset()
        compiled, _ = compile_on_ort(lambda x: nn.functional.dropout(x * 2, 0.1).relu())
        x = torch.rand(16, 100, device=device).to(dtype).requires_grad_()
        results = []
        for function in (compiled, lambda x: nn.functional.dropout(x * 2, 0.1).relu()):
            torch.manual_seed(0)
            results.append(function(x))
        assert torch.equal(results[0] == 0, results[1] == 0), dtype


@check()
def elementwise_is_one_model_for_five_sizes(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sigmoid() * x

    compiled, backend = compile_on_ort(function, dynamic=True)
    for batch in (2, 4, 6, 8, 10):
        x = torch.randn(batch, 3, device=device)
        same(compiled(x), function(x))
    assert len(sessions(backend)) == 1
    assert backend.execution_count == 5


@check()
def an_mlp_trains(device: torch.device) -> None:
    for dynamic in (False, True):
        model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1))
        backend = train(model.to(device), torch.randn(5, 10, device=device), dynamic=dynamic)
        assert len(sessions(backend)) == 2
        assert backend.execution_count == 6


@check()
def a_convolutional_net_trains(device: torch.device) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2, bias=False),
        nn.Flatten(),
    )
    train(model.to(device), torch.randn(3, 2, 9, 9, device=device))


@check()
def a_layer_of_llama_trains(device: torch.device) -> None:
    try:
        from transformers import LlamaConfig, LlamaModel
    except ImportError:
        print("  transformers is not installed: left out")
        return

    class Model(nn.Module):
        def __init__(self, attention: str) -> None:
            super().__init__()
            sizes = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
            config = LlamaConfig(
                **sizes, num_hidden_layers=1, vocab_size=32, attn_implementation=attention
            )
            self.model = LlamaModel(config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, use_cache=False).last_hidden_state

    for attention in ("eager", "sdpa"):
        ids = torch.randint(0, 32, (2, 8), device=device)
        train(Model(attention).to(device), ids, dynamic=True)


@check()
def every_layout_and_type_is_read_right(device: torch.device) -> None:
    base = torch.arange(12.0, device=device).reshape(3, 4)
    layouts = [base.t(), base[:, ::2], base[1:], base[:1].expand(5, -1), base[:0], base[0, 0]]
    layouts += [torch._neg_view(base), base.bool(), base.half(), base.bfloat16(), base.long()]
    for x in layouts:
        torch._dynamo.reset()
        compiled, _ = compile_on_ort(lambda x: (x.flip(0) if x.dim() else x.clone(), x != 0))
        want = (x.flip(0) if x.dim() else x.clone(), x != 0)
        torch.testing.assert_close(compiled(x), want)


@check()
def tensors_of_the_cpu_and_of_the_device_mix(device: torch.device) -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * scale, scale + 1

    compiled, _ = compile_on_ort(function)
    x, scale = torch.randn(3, device=device), torch.tensor(2.0)
    same(compiled(x, scale), function(x, scale))


@check()
def results_that_are_views_and_numbers(device: torch.device) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x.relu()
        return y, y.t(), x.view(-1), x, x.shape[0], None

    compiled, _ = compile_on_ort(function, dynamic=True)
    x = torch.randn(4, 3, device=device)
    got, want = compiled(x), function(x)
    same(got, want)
    assert got[3] is x
    assert got[1].data_ptr() == got[0].data_ptr()


@check()
def what_is_written_in_place_is_written(device: torch.device) -> None:
    def function(cache: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        cache[:, 1:3] = new * 2
        return cache.sum(1)

    compiled, _ = compile_on_ort(function)
    new = torch.randn(3, 2, device=device)
    mine, theirs = torch.zeros(3, 5, device=device), torch.zeros(3, 5, device=device)
    same(compiled(mine, new), function(theirs, new))
    same(mine, theirs)


@check()
def threads_share_a_model(device: torch.device) -> None:
    compiled, _ = compile_on_ort(lambda x: x.relu() + 1)
    x = torch.randn(256, device=device)
    want = compiled(x)
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(50) if not torch.equal(compiled(x), want))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@check()
def what_is_not_converted_runs_in_torch(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.exp() + 3 * torch.eye(3, device=x.device)).relu() * 2

    compiled, backend = compile_on_ort(function, fallback=True, min_block_size=1)
    x = torch.randn(3, 3, device=device)
    same(compiled(x), function(x))
    assert sessions(backend)
