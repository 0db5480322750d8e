"""What every way to the ``onnxrt`` backend must do, against eager."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch

from dort_rewriter import OrtBackend, UnsupportedOpError, onnx_custom_backend
from dort_rewriter.kernels.loading import is_available
from tests.backends.ways import compile_strictly, models

STATIC_OR_DYNAMIC = pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])


def _check_training(
    model: torch.nn.Module, *inputs: Any, dynamic: bool, steps: int = 3, tol: float = 1e-5
) -> Any:
    """Train a copy in eager and the model compiled, and compare every number of every step."""
    twin = copy.deepcopy(model)
    compiled, backend = compile_strictly(model, dynamic=dynamic)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, twin)]
    for _ in range(steps):
        losses = []
        for module, optimizer in zip((compiled, twin), optimizers, strict=True):
            optimizer.zero_grad()
            loss = module(*inputs).square().mean()
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[0], losses[1], atol=tol, rtol=tol)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=tol, rtol=tol)
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, atol=tol, rtol=tol)
    return backend


@STATIC_OR_DYNAMIC
def test_elementwise_for_five_batch_sizes(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).sigmoid() * x

    compiled, backend = compile_strictly(function, dynamic=dynamic)
    for batch in (2, 4, 6, 8, 10):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(compiled(x), function(x))
    assert backend.execution_count == 5
    if dynamic:
        assert sum(models(backend)) == 1


@STATIC_OR_DYNAMIC
def test_an_mlp_trains_as_in_eager(dynamic: bool) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Dropout(0.0), torch.nn.Linear(32, 1)
    )
    backend = _check_training(model, torch.randn(5, 10), dynamic=dynamic)
    assert sum(models(backend)) == 2
    assert backend.execution_count == 6


@STATIC_OR_DYNAMIC
def test_layer_norm_trains_as_in_eager(dynamic: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
    _check_training(model, torch.randn(4, 6), dynamic=dynamic)


@STATIC_OR_DYNAMIC
def test_a_convolutional_net_trains_as_in_eager(dynamic: bool) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1, stride=2),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.ConvTranspose2d(4, 3, 2, stride=2),
        torch.nn.Conv2d(3, 6, 3, groups=3, bias=False),
        torch.nn.Flatten(),
    )
    _check_training(model, torch.randn(3, 2, 8, 6), dynamic=dynamic, tol=1e-4)


def test_dropout_draws_what_eager_draws() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.4))
    x = torch.randn(4, 6)
    compiled, backend = compile_strictly(model)
    torch.manual_seed(3)
    got = compiled(x)
    torch.manual_seed(3)
    torch.testing.assert_close(got, model(x))
    assert sum(models(backend)) == 1


@STATIC_OR_DYNAMIC
def test_nested_and_repeated_results(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> Any:
        y = torch.relu(x)
        return {"y": y, "again": (y, y.t(), x), "view": y.view(-1), "number": x.shape[0]}

    compiled, _ = compile_strictly(function, dynamic=dynamic)
    x = torch.randn(4, 3)
    got, want = compiled(x), function(x)
    torch.testing.assert_close(got, want)
    assert got["again"][1].stride() == want["again"][1].stride()
    assert got["again"][2] is x


@STATIC_OR_DYNAMIC
def test_strides_are_those_of_eager(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.relu(x.t()), x.permute(1, 0) * 2, (x + 1).expand(2, *x.shape)

    compiled, _ = compile_strictly(function, dynamic=dynamic)
    x = torch.randn(4, 3)
    for got, want in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_a_function_without_inputs() -> None:
    compiled, _ = compile_strictly(lambda: torch.arange(4) * 2)
    torch.testing.assert_close(compiled(), torch.arange(4) * 2)


@STATIC_OR_DYNAMIC
def test_writing_to_an_input_is_seen_by_the_caller(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + 1

    compiled, _ = compile_strictly(function, dynamic=dynamic)
    a, b = torch.ones(3, 2), torch.ones(3, 2)
    torch.testing.assert_close(compiled(a), function(b))
    torch.testing.assert_close(a, b)


@STATIC_OR_DYNAMIC
def test_batch_norm_updates_its_buffers(dynamic: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    _check_training(model, torch.randn(5, 6), dynamic=dynamic)


def test_two_ranks_are_two_models() -> None:
    compiled, backend = compile_strictly(lambda x: torch.relu(x) + 1, dynamic=True)
    for x in (torch.randn(3, 4), torch.randn(2, 3, 4), torch.randn(5, 6)):
        torch.testing.assert_close(compiled(x), torch.relu(x) + 1)
    assert sum(models(backend)) == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.int32, torch.bool])
def test_element_types_are_kept(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.flip(0), torch.where(x != 0, 1, 2)

    x = torch.tensor([[0, 1], [2, 0]]).to(dtype)
    compiled, _ = compile_strictly(function)
    for got, want in zip(compiled(x), function(x), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_types_are_computed_in_a_wider_one(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x @ y).sum(0)

    x, y = torch.randn(4, 3, dtype=dtype), torch.randn(3, 5, dtype=dtype)
    compiled, _ = compile_strictly(function)
    torch.testing.assert_close(compiled(x, y), function(x, y), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_linear_layer_of_a_half_type_trains(dtype: torch.dtype) -> None:
    """Its weight is transposed, and Gemm may have no kernel for the type."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, w, b)

    given = [torch.randn(*shape, dtype=dtype) for shape in ((4, 3), (5, 3), (5,))]
    twins = [[t.clone().requires_grad_() for t in given] for _ in range(2)]
    compiled, _ = compile_strictly(function)
    got, want = compiled(*twins[0]), function(*twins[1])
    torch.testing.assert_close(got, want, atol=2e-2, rtol=2e-2)
    got.sum().backward()
    want.sum().backward()
    for a, b in zip(*twins, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8], ids=str)
def test_small_integers_are_computed_in_wider_ones(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * y + x, torch.where(x > y, x, y)

    x = torch.tensor([100, 3, 7], dtype=dtype)
    y = torch.tensor([2, 120, 7], dtype=dtype)
    compiled, _ = compile_strictly(function)
    torch.testing.assert_close(compiled(x, y), function(x, y))


def test_a_kernel_that_no_cast_can_replace_leaves_the_operator_to_torch() -> None:
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64)
    w = torch.randn(3, 2, 3, 3, dtype=torch.float64)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w).relu() * 2 + 1

    compiled, _ = compile_strictly(function, fallback=True)
    torch.testing.assert_close(compiled(x, w), function(x, w))


def test_inputs_that_are_not_contiguous() -> None:
    compiled, _ = compile_strictly(lambda x, y: x @ y)
    x, y = torch.randn(4, 3).t(), torch.randn(4, 1).expand(4, 5)
    torch.testing.assert_close(compiled(x, y), x @ y)


def test_an_unsupported_operator_runs_in_torch(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x.exp() + torch.eye(3)).relu() * 2

    x = torch.randn(3, 3)
    compiled, backend = compile_strictly(function, fallback=True, min_block_size=1)
    with caplog.at_level(logging.INFO, logger="dort_rewriter"):
        torch.testing.assert_close(compiled(x), function(x))
        compiled(x)
    assert sum(models(backend)) >= 1
    texts = [r.getMessage() for r in caplog.records if "linalg_inv" in r.getMessage()]
    assert len(texts) == 1


def test_strict_mode_names_the_operator() -> None:
    compiled, _ = compile_strictly(lambda x: torch.linalg.inv(x))
    with pytest.raises(Exception, match="linalg_inv") as info:
        compiled(torch.eye(3))
    error: BaseException | None = info.value
    while error is not None and not isinstance(error, UnsupportedOpError):
        error = getattr(error, "inner_exception", None) or error.__cause__
    assert isinstance(error, UnsupportedOpError)


def test_a_transform_changes_the_model() -> None:
    def relu_to_sigmoid(model: Any) -> None:
        for node in model.graph.node:
            if node.op_type == "Relu":
                node.op_type = "Sigmoid"

    calls = []
    compiled, _ = compile_strictly(
        torch.relu, pre_ort_model_transforms=(relu_to_sigmoid, lambda m: calls.append(m))
    )
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), x.sigmoid())
    compiled(x)
    assert len(calls) == 1


def test_a_transform_sees_no_operators_of_ours_and_those_are_made_after_it() -> None:
    """Two sums and a ReLU are one kernel of ours by default; a transform sees the three."""
    seen: list[str] = []

    def add_to_mul(model: Any) -> None:
        seen.extend(n.op_type for n in model.graph.node)
        model.graph.node[0].op_type = "Mul"

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y) + x

    compiled, backend = compile_strictly(function, pre_ort_model_transforms=(add_to_mul,))
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    torch.testing.assert_close(compiled(x, y), torch.relu(x * y) + x)
    assert seen == ["Add", "Relu", "Add"]
    ((info,),) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    assert len(info.session.get_outputs()) == 1
    stored: dict[str, Any] = {}
    options = {"enable_pattern": "default+kernels", "storage": stored}
    optimized = torch.compile(
        function,
        backend=lambda graph, args: onnx_custom_backend(
            graph, args, pre_ort_model_transforms=add_to_mul, **options
        ),
    )
    torch.testing.assert_close(optimized(x, y), torch.relu(x * y) + x)
    kinds = [n.op_type for n in stored["instance"][0]["onnx"].graph.node]
    assert kinds == (["Elementwise"] if is_available() else ["Mul", "Relu", "Add"])


def test_sessions_by_graph_have_the_views_of_a_dict() -> None:
    compiled, backend = compile_strictly(torch.relu)
    compiled(torch.randn(3))
    table = backend._all_ort_execution_info.execution_info_per_graph_module
    assert [len(view) for view in (table.keys(), table.values(), table.items())] == [1, 1, 1]
    ((graph, (info,)),) = table.items()
    assert graph in table
    assert list(table.keys()) == [graph]
    assert list(table.values()) == [[info]]


def test_files_are_dumped_at_the_first_call(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("ONNXRT_DUMP_PATH", str(tmp_path / "model_"))
    compiled, _ = compile_strictly(torch.relu)
    compiled(torch.randn(3))
    names = sorted(p.name for p in tmp_path.iterdir())
    assert names == ["model_0.onnx", "model_0.txt"]
    compiled(torch.randn(3))
    assert len(list(tmp_path.iterdir())) == 2


def test_equal_options_share_a_backend() -> None:
    OrtBackend.clear_cached_instances()
    first = OrtBackend.get_cached_instance_for_options({"min_block_size": 3})
    assert OrtBackend.get_cached_instance_for_options({"min_block_size": 3}) is first
    assert OrtBackend.get_cached_instance_for_options({"min_block_size": 4}) is not first
    assert len(OrtBackend.get_cached_instances()) == 2
    OrtBackend.clear_cached_instances()
    assert OrtBackend.get_cached_instances() == ()


def test_symbols_are_on_inputs_and_outputs() -> None:
    compiled, backend = compile_strictly(lambda x: x * 2, dynamic=True)
    compiled(torch.randn(4, 3))
    (infos,) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    for info in (infos[0].input_value_infos[-1], infos[0].output_value_infos[0]):
        assert all(d.dim_param for d in info.type.tensor_type.shape.dim)


def test_a_result_close_to_the_baseline_is_accepted_and_another_is_not() -> None:
    compiled, backend = compile_strictly(
        torch.relu,
        pre_ort_model_transforms=(lambda m: setattr(m.graph.node[0], "op_type", "Neg"),),
    )
    x = torch.randn(3)
    compiled(x)
    backend._assert_allclose_to_baseline = True
    with pytest.raises(AssertionError, match="not close"):
        compiled(x)


@STATIC_OR_DYNAMIC
def test_torch_allocates_the_results_when_asked(dynamic: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.relu() + 1, (x > 0).t()

    compiled, backend = compile_strictly(function, dynamic=dynamic, preallocate_output=True)
    x = torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    ((info,),) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    assert ("empty(" in info.executor.source) is not dynamic
