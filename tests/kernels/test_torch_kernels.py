"""torch's own kernels as operators of a session."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import helper

from dort_rewriter.dtypes import to_onnx_type
from dort_rewriter.errors import ExecutionError
from dort_rewriter.kernels.loading import custom_ops_library
from dort_rewriter.kernels.operators import OWN_DOMAIN, TORCH_PRODUCTS
from dort_rewriter.kernels.torch_library import has_function
from dort_rewriter.ort_module import bindings
from dort_rewriter.runtime import model_files
from dort_rewriter.runtime.model_files import uses_torch_kernels
from dort_rewriter.runtime.ort_values import push
from dort_rewriter.runtime.providers import ort_device
from dort_rewriter.runtime.session import create_session, session_options

TYPES = [torch.bfloat16, torch.float16, torch.float32]


def model_of(
    name: str, types: Sequence[torch.dtype], results: Sequence[torch.dtype], **attributes: Any
) -> onnx.ModelProto:
    """A model of one node, whose sizes are known when it runs."""
    given = [f"x{i}" for i in range(len(types))]
    made = [f"y{i}" for i in range(len(results))]
    node = helper.make_node(name, given, made, domain=OWN_DOMAIN, **attributes)
    graph = helper.make_graph(
        [node],
        "kernel",
        [_info(n, t) for n, t in zip(given, types, strict=True)],
        [_info(n, t) for n, t in zip(made, results, strict=True)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(OWN_DOMAIN, 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def _info(name: str, dtype: torch.dtype) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, int(to_onnx_type(dtype)), None)


def run(model: onnx.ModelProto, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The results of a model, whatever the types."""
    return run_session(create_session(model).ort, *tensors)


def run_session(
    session: onnxruntime.InferenceSession, *tensors: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The same for a session that is there."""
    state = bindings()
    feeds, fetches = state.OrtValueVector(), state.OrtValueVector()
    for tensor in tensors:
        push(feeds, tensor.contiguous())
    names = [i.name for i in session.get_inputs()], [o.name for o in session.get_outputs()]
    cpu = ort_device(None)
    session.run_with_ortvaluevector(
        onnxruntime.RunOptions(), names[0], feeds, names[1], fetches, [cpu] * len(names[1])
    )
    return tuple(torch.from_dlpack(v.to_dlpack()) for v in fetches)


def product(name: str, *tensors: torch.Tensor, **attributes: Any) -> torch.Tensor:
    dtype = tensors[0].dtype
    (result,) = run(model_of(name, [t.dtype for t in tensors], [dtype], **attributes), *tensors)
    return result


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def test_torch_has_them_all() -> None:
    """On all versions that are tested."""
    functions = (f"aoti_torch_cpu_{name}_out" for name in TORCH_PRODUCTS)
    assert all(map(has_function, functions))
    assert not has_function("aoti_torch_cpu_no_such_operator")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sizes", [(5, 7, 3), (64, 96, 33), (1, 1, 1), (0, 4, 3), (4, 0, 3)])
def test_products_are_those_of_eager_mode(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    """Bit for bit, since the kernel is the same; also of nothing."""
    m, k, n = sizes
    a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
    assert torch.equal(product("mm", a, b), a @ b)
    c, d = torch.randn(2, m, k).to(dtype), torch.randn(2, k, n).to(dtype)
    assert torch.equal(product("bmm", c, d), torch.bmm(c, d))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("addend", [(5, 3), (3,), (1, 3), (5, 1), ()])
def test_something_is_added(dtype: torch.dtype, addend: tuple[int, ...]) -> None:
    """What broadcasts to the product, times a number."""
    a, b, x = (torch.randn(s).to(dtype) for s in [(5, 7), (7, 3), addend])
    got = product("addmm", x, a, b, beta=0.5, alpha=3.0)
    assert torch.equal(got, torch.addmm(x, a, b, beta=0.5, alpha=3.0))
    a, b = torch.stack([a, -a]), torch.stack([b, b + 1])
    got = product("baddbmm", x, a, b, beta=1.0, alpha=0.25)
    assert torch.equal(got, torch.baddbmm(x, a, b, beta=1.0, alpha=0.25))


@pytest.mark.parametrize("dtype", TYPES)
def test_transposed_factors_are_read_as_they_lie(dtype: torch.dtype) -> None:
    """Steps through memory, as those of eager mode."""
    a, b = torch.randn(7, 33).to(dtype), torch.randn(20, 7).to(dtype)
    assert torch.equal(product("mm", a, b, perm0=[1, 0], perm1=[1, 0]), a.t() @ b.t())
    x = torch.randn(20).to(dtype)
    got = product("addmm", x, a, b, perm1=[1, 0], perm2=[1, 0], beta=1.0, alpha=1.0)
    assert torch.equal(got, torch.addmm(x, a.t(), b.t()))
    c, d = torch.randn(4, 3, 8).to(dtype), torch.randn(3, 8, 5).to(dtype)
    got = product("bmm", c, d, perm0=[1, 0, 2])
    assert torch.equal(got, torch.bmm(c.permute(1, 0, 2), d))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("perm", [None, [0, 2, 1]])
def test_a_matrix_for_all_batches(perm: list[int] | None, dtype: torch.dtype) -> None:
    """Of which there is one, as it lies or transposed; and something is added."""
    a, b = torch.randn(1, 6, 7).to(dtype), torch.randn(5, 7, 3).to(dtype)
    lies = a if perm is None else a.permute(perm)
    order = {} if perm is None else {"perm0": perm}
    torch.testing.assert_close(product("bmm", lies, b, **order), torch.matmul(a, b))
    assert product("bmm", lies, b[:0], **order).shape == (0, 6, 3)
    x = torch.randn(1, 6, 1).to(dtype)
    order = {} if perm is None else {"perm1": perm}
    got = product("baddbmm", x, lies, b, beta=1.0, alpha=1.0, **order)
    torch.testing.assert_close(got, torch.baddbmm(x, a.expand(5, -1, -1), b))


BAD_NODES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "one factor": ("mm", 1, {}),
    "three factors": ("bmm", 3, {}),
    "no order of axes": ("mm", 2, {"perm0": [0, 0]}),
    "an order of many axes": ("mm", 2, {"perm1": list(range(14))}),
    "no factor": ("addmm", 3, {"beta": 1.0}),
}


@pytest.mark.parametrize("case", BAD_NODES)
def test_a_node_that_nobody_wrote_is_refused(case: str) -> None:
    """When its kernel is made."""
    name, inputs, attributes = BAD_NODES[case]
    model = model_of(name, [torch.float32] * inputs, [torch.float32], **attributes)
    with pytest.raises(ExecutionError):
        create_session(model)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_other_types_are_refused(dtype: torch.dtype) -> None:
    """They have standard operators."""
    with pytest.raises(ExecutionError, match="products are of float"):
        create_session(model_of("mm", [dtype] * 2, [dtype]))


BAD_SIZES = [
    ("mm", [(2, 3), (4, 2)], {}),
    ("mm", [(2, 3), (3,)], {}),
    ("mm", [(2, 3), (3, 2)], {"perm0": [1, 0]}),
    ("mm", [(2, 3), (3, 2)], {"perm0": [0, 1, 2]}),
    ("bmm", [(2, 3), (3, 2)], {}),
    ("bmm", [(2, 3, 4), (3, 4, 5)], {}),
    ("addmm", [(4,), (2, 3), (3, 5)], {"beta": 1.0, "alpha": 1.0}),
    ("addmm", [(1, 2, 5), (2, 3), (3, 5)], {"beta": 1.0, "alpha": 1.0}),
]


@pytest.mark.parametrize(("name", "shapes", "attributes"), BAD_SIZES)
def test_sizes_that_do_not_fit_are_refused(
    name: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]
) -> None:
    """Before torch sees them."""
    with pytest.raises(Exception, match=r"sizes of the factors|broadcast|order of other axes"):
        product(name, *(torch.randn(s) for s in shapes), **attributes)


WITHOUT_TORCH = """
import sys
import numpy as np

sys.modules["torch"] = None  # the packages of some versions import it where they can
import onnxruntime

options = onnxruntime.SessionOptions()
options.log_severity_level = 4
options.register_custom_ops_library(sys.argv[1])
own, torchs = sys.argv[2:]
session = onnxruntime.InferenceSession(own, options, providers=["CPUExecutionProvider"])
x = np.ones((2, 2), np.float32)
assert (session.run(None, {"x0": x, "x1": x})[0] == 2).all()
try:
    onnxruntime.InferenceSession(torchs, options, providers=["CPUExecutionProvider"])
except Exception as error:
    print(error)
"""


def test_without_torch_the_others_run(tmp_path: Any) -> None:
    """The library is loaded by a plain onnxruntime; what needs torch says so in a line."""
    types = [torch.float32, torch.float32]
    own = model_of("Elementwise", types, types[:1])
    own.graph.node[0].attribute.append(helper.make_attribute("program", [0, 0, -1, -2, 0]))
    own.graph.node[0].attribute.append(helper.make_attribute("results", [0]))
    onnx.save(own, str(tmp_path / "own.onnx"))
    onnx.save(model_of("mm", types, types[:1]), str(tmp_path / "torch.onnx"))
    done = subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-c", WITHOUT_TORCH, custom_ops_library()),
            *(str(tmp_path / "own.onnx"), str(tmp_path / "torch.onnx")),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a kernel of torch runs only in a Python process that has imported torch" in done.stdout


def test_results_outlive_their_session() -> None:
    """The memory is that of ONNX Runtime; torch only sees it."""
    a = torch.randn(8, 8).to(torch.bfloat16)
    kept = product("mm", a, a)
    others = [product("mm", a + i, a) for i in range(5)]
    assert torch.equal(kept, a @ a)
    assert all(o.float().isfinite().all() for o in others)


FLASH = "_scaled_dot_product_flash_attention_for_cpu"


def attend(
    *tensors: torch.Tensor, results: tuple[torch.dtype, ...] = (), **attributes: Any
) -> tuple[torch.Tensor, ...]:
    types = [t.dtype for t in tensors]
    return run(
        model_of(FLASH, types, results or (types[0], torch.float32), **attributes), *tensors
    )


def qkv(dtype: torch.dtype, heads: int = 4, groups: int = 4) -> list[torch.Tensor]:
    sizes = [(2, heads, 9, 8), (2, groups, 13, 8), (2, groups, 13, 8)]
    return [torch.randn(s).to(dtype) for s in sizes]


MASKS: dict[str, Any] = {
    "none": None,
    "of all": (2, 4, 9, 13),
    "broadcast": (2, 1, 1, 13),
    "a matrix": (9, 13),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("mask", MASKS)
def test_attention_is_that_of_eager_mode(dtype: torch.dtype, mask: str) -> None:
    """Forward and backward, bit for bit; a row that masks everything too."""
    q, k, v = given = qkv(dtype)
    shape = MASKS[mask]
    masked = {}
    if shape is not None:
        values = torch.randn(shape)
        values[values < -0.5] = -torch.inf
        values[..., 0, :] = -torch.inf
        masked["attn_mask"] = values.to(dtype)
    out, sums = getattr(torch.ops.aten, FLASH)(q, k, v, 0.0, False, **masked, scale=0.3)
    got = attend(*given, *masked.values(), is_causal=0, scale=0.3)
    assert torch.equal(got[0], out)
    assert torch.equal(got[1], sums)
    read = (torch.randn(out.shape).to(dtype), q, k, v, out, sums)
    backward = getattr(torch.ops.aten, f"{FLASH}_backward")
    expected = backward(*read, 0.0, False, **masked, scale=0.3)
    types = [t.dtype for t in (*read, *masked.values())]
    model = model_of(f"{FLASH}_backward", types, [dtype] * 3, is_causal=0, scale=0.3)
    for a, b in zip(run(model, *read, *masked.values()), expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("groups", [1, 2])
def test_heads_in_groups_have_the_result_of_torch(groups: int) -> None:
    """Several heads of queries share one of keys, where torch's kernel takes that."""
    q, k, v = qkv(torch.float32, 4, groups)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    wide = [t.repeat_interleave(4 // groups, 1) for t in (k, v)]
    got, _ = attend(q, *wide)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("heads", [8, 512])
def test_heads_in_groups_are_refused_where_torch_reads_behind_them(heads: int) -> None:
    """A model of a file may have them: torch before 2.9 knows no groups, and looks at no size."""
    q, k, v = qkv(torch.float32, heads, 1)
    wide = [t.expand(-1, heads, -1, -1).contiguous() for t in (k, v)]
    types = [torch.float32] * 6
    back = model_of(f"{FLASH}_backward", types, types[:3], is_causal=0)
    if knows_groups():
        out, sums = attend(q, k, v)
        torch.testing.assert_close(out, attend(q, *wide)[0])
        gradients = run(back, torch.ones_like(out), q, k, v, out, sums)
        assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
        return
    with pytest.raises(Exception, match="a head of keys for each one"):
        attend(q, k, v)
    out, sums = attend(q, *wide)
    with pytest.raises(Exception, match="a head of keys for each one"):
        run(back, torch.ones_like(out), q, k, v, out, sums)


def knows_groups() -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9)


@pytest.mark.parametrize("dtype", TYPES)
def test_attention_reads_and_gives_any_order_of_heads(dtype: torch.dtype) -> None:
    """Without a copy: heads lie beside each other, as a product gives them."""
    q, k, v = qkv(dtype)
    turned = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    perms = {f"perm{i}": [0, 2, 1, 3] for i in range(3)}
    got, sums = attend(*turned, **perms, order0=[0, 2, 1, 3], order1=[2, 0, 1], is_causal=1)
    seen = [t.transpose(1, 2) for t in turned]
    out, expected = getattr(torch.ops.aten, FLASH)(*seen, 0.0, True)
    assert torch.equal(got, out.transpose(1, 2))
    assert torch.equal(sums, expected.permute(2, 0, 1))


BAD_ATTENTION: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "other heads": ([(2, 3, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8)], {}),
    "other batches": ([(2, 2, 4, 8), (1, 2, 5, 8), (1, 2, 5, 8)], {}),
    "other widths": ([(2, 2, 4, 8), (2, 2, 5, 4), (2, 2, 5, 4)], {}),
    "fewer values": ([(2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 4, 8)], {}),
    "three axes": ([(2, 4, 8), (2, 5, 8), (2, 5, 8)], {}),
    "nothing": ([(2, 2, 4, 8), (2, 2, 0, 8), (2, 2, 0, 8)], {}),
    "another mask": ([(2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8), (4, 4)], {}),
    "a mask of three axes": ([(2, 2, 4, 8), (2, 2, 5, 8), (2, 2, 5, 8), (2, 4, 5)], {}),
    "an order of numbers": ([(2, 2, 4, 8)] * 3, {"perm1": [0, 1, 3, 2]}),
    "an order of three axes": ([(2, 2, 4, 8)] * 3, {"order0": [0, 2, 1]}),
}


@pytest.mark.parametrize("case", BAD_ATTENTION)
def test_attention_of_other_sizes_is_refused(case: str) -> None:
    """Before torch's kernel, which trusts what it is told, reads any memory."""
    shapes, attributes = BAD_ATTENTION[case]
    refusals = r"attention is of|do not fit|nothing to attend|mask does not|last axis|other axes"
    with pytest.raises(Exception, match=refusals):
        attend(*(torch.randn(s) for s in shapes), **attributes)


@pytest.mark.parametrize(
    "types",
    [
        [torch.float32, torch.float32, torch.bfloat16],
        [torch.float32, torch.float32, torch.float32, torch.bfloat16],
        [torch.float64] * 3,
        [torch.float32] * 2,
    ],
)
def test_attention_of_other_types_is_refused(types: list[torch.dtype]) -> None:
    """When its kernel is made."""
    with pytest.raises(ExecutionError):
        create_session(model_of(FLASH, types, [types[0], torch.float32]))


def test_results_of_other_types_are_refused() -> None:
    """ONNX Runtime made memory of the type that the model says."""
    for results in ([torch.bfloat16, torch.float32], [torch.float32, torch.bfloat16]):
        with pytest.raises(ExecutionError, match="a result is of another type"):
            create_session(model_of(FLASH, [torch.float32] * 3, results))


def test_a_session_says_that_torchs_threads_work_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not ended before a run, nor starved by threads that spin."""
    monkeypatch.setattr(model_files, "works_alone", lambda: False)
    types = [torch.bfloat16] * 2
    model = model_of("mm", types, types[:1])
    assert uses_torch_kernels(model)
    assert uses_torch_kernels(ir.from_proto(model))
    assert create_session(model).beside_torch
    a = torch.randn(300, 200).bfloat16()
    assert torch.equal(product("mm", a, a.t()), a @ a.t())
    other = model_of("Elementwise", [torch.float32], [torch.float32], program=[6, 0, -1, 0, 0])
    assert not uses_torch_kernels(other)


SHARED = """<ir_version: 8, opset_import: ["" : 18, "dort_rewriter" : 1]>
graph (float[M,N] x, float[M,N] y) => (float[M,N] z, float[M] s, float[M,N] g)
    <float[M,N] z, float[M] s, float[M,N] g> {
    z = dort_rewriter.Elementwise <
        program = [0, 0, -1, -2, 0, 2, 0, 0, -2, 0], results = [0]> (x, y)
    s = dort_rewriter.Sum <trailing = 1, keepdims = 0> (z)
    g = dort_rewriter.GeluGrad (z, x)
}"""


@pytest.fixture(name="two_threads")
def share_between_two() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _build(text: str) -> onnxruntime.InferenceSession:
    options = session_options(optimization_level="disable")
    return create_session(onnx.parser.parse_model(text), options=options).ort


@pytest.mark.usefixtures("two_threads")
def test_other_kernels_share_the_threads_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as in those of onnxruntime, also when several threads call."""
    feeds = {name: torch.randn(700, 300).numpy() for name in "xy"}
    expected = _build(SHARED).run(None, feeds)
    monkeypatch.setattr("dort_rewriter.runtime.session.uses_torch_kernels", lambda model: True)
    session = _build(SHARED)
    with ThreadPoolExecutor(3) as callers:
        results = list(callers.map(lambda _: session.run(None, feeds), range(12)))
    for got in results:
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_array_equal(a, b)
