"""torch's own kernels in the models of a backend: when they are chosen, and what they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from packaging.version import Version

from dort_rewriter import OrtBackend, OrtBackendOptions, save, to_onnx
from dort_rewriter.kernels.operators import MKL_PRODUCT, TORCH_PRODUCTS
from dort_rewriter.plan import placement
from dort_rewriter.plan.placement import ATTENTION, Place
from dort_rewriter.runtime import model_files, threads

HALVES = [torch.bfloat16, torch.float16]


class Products(torch.nn.Module):
    """Layers whose products are all there are, and one of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(24, 40), torch.nn.Linear(40, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x).relu())
        return torch.baddbmm(y, y @ y.transpose(1, 2), y, beta=0.5, alpha=2)


@pytest.fixture(autouse=True)
def leave_small_products_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor: MKL's are within rounding."""
    monkeypatch.setattr(placement, "multiplies_bfloat16", lambda: False)


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=OrtBackend({"fallback": False, **options}))


def operators(dumped: Path) -> list[str]:
    """The operators of all models."""
    return [n.op_type for path in dumped.glob("*.onnx") for n in onnx.load(path).graph.node]


def repeated(dumped: Path) -> list[str]:
    """The nodes that repeat a tensor along an axis made for it."""
    found = []
    for path in dumped.glob("*.onnx"):
        nodes = onnx.load(path).graph.node
        made = {n.output[0] for n in nodes if n.op_type == "Unsqueeze"}
        found += [n.name for n in nodes if n.op_type == "Expand" and n.input[0] in made]
    return found


def chosen(dumped: Path) -> set[str]:
    return set(operators(dumped)) & TORCH_PRODUCTS


def made_here(**options: Any) -> None:
    """Train a layer that MKL is faster for."""
    layer, x = torch.nn.Linear(512, 512), torch.randn(512, 512)
    expected, got = layer(x), compiled(layer, **options)(x)
    torch.testing.assert_close(got, expected)
    for a, b in zip(
        *(torch.autograd.grad(y.sum(), list(layer.parameters())) for y in (expected, got)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


OPTIONS: dict[str, tuple[bool, int, dict[str, Any]]] = {
    "where it is faster": (True, 2, {}),
    "elsewhere": (False, 0, {}),
    "without our kernels": (True, 0, {"optimization": {"patterns": "default+onnxruntime"}}),
    "by ONNX Runtime": (True, 0, {"placement": {"aten::mm": "onnxruntime"}}),
    "all by ONNX Runtime": (True, 0, {"placement": {"*": "onnxruntime"}}),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_large_products_of_float32(
    case: str, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By MKL, in models that run here."""
    faster, expected, options = OPTIONS[case]
    monkeypatch.setattr(placement, "comes_with_mkl", lambda: True)
    monkeypatch.setattr(placement, "multiplies_faster", lambda: faster)
    made_here(**options)
    assert operators(dumped).count(MKL_PRODUCT) == expected


HAS_SETTING = hasattr(torch.backends.mkldnn, "matmul")
PRECISIONS = {"highest": 6, "high": 3, "medium": 1 if HAS_SETTING else 3}
"""Dynamo of torch 2.8 makes "high" of "medium", when it sets ``allow_tf32`` as it was."""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_by_parts_are_as_exact_as_torch_is_asked_to_be(
    precision: str, dumped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the processor has tiles; a variable leaves them to MKL."""
    for name in ("comes_with_mkl", "multiplies_faster", "multiplies_by_parts"):
        monkeypatch.setattr(placement, name, lambda: True)
    layer, x = torch.nn.Linear(512, 512).requires_grad_(False), torch.randn(512, 512)
    expected, before = layer(x), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        for amx in ("1", "0"):
            monkeypatch.setenv("DORT_AMX", amx)
            torch.testing.assert_close(compiled(layer)(x), expected, rtol=0, atol=5e-2)
    finally:
        torch.set_float32_matmul_precision(before)
    nodes = [n for path in sorted(dumped.glob("*.onnx")) for n in onnx.load(path).graph.node]
    products = [{a.name: a.i for a in n.attribute} for n in nodes if n.op_type == MKL_PRODUCT]
    assert [p.get("terms") for p in products] == [PRECISIONS[precision], None]


def test_files_have_no_products_by_mkl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor have saved models: they may run where there is none."""
    monkeypatch.setattr(placement, "comes_with_mkl", lambda: True)
    monkeypatch.setattr(placement, "multiplies_faster", lambda: True)
    layer, x = torch.nn.Linear(512, 512), torch.randn(512, 512)
    file = to_onnx(layer, (x,), options={"patterns": "default+onnxruntime+kernels"})
    assert MKL_PRODUCT not in {n.op_type for n in file.graph.node}
    with torch.no_grad():
        ours = compiled(layer)
        ours(x)
        save(ours, tmp_path / "saved", x)
    (path,) = (tmp_path / "saved").glob("*.onnx")
    assert MKL_PRODUCT not in {n.op_type for n in onnx.load(path).graph.node}


@pytest.mark.usefixtures("silent")
def test_autocast_gives_what_eager_mode_does(dumped: Path) -> None:
    """Bit for bit, forward and backward: the kernels are the same."""
    model, x = Products(), torch.randn(3, 5, 24)
    ours = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected, got = model(x), ours(x)
    assert torch.equal(got, expected)
    weights = list(model.parameters())
    for a, b in zip(
        *(torch.autograd.grad(y.sum(), weights) for y in (expected, got)), strict=True
    ):
        assert torch.equal(a, b)
    assert chosen(dumped) == {"mm", "addmm", "bmm", "baddbmm"}


@pytest.mark.parametrize("dtype", HALVES)
def test_a_model_of_halves(dtype: torch.dtype, dumped: Path) -> None:
    """Weights and inputs are of the type themselves; sizes are symbols."""
    model = Products().to(dtype)
    ours = compiled(model)
    for batch in (3, 4, 6):
        x = torch.randn(batch, 5, 24).to(dtype)
        with torch.no_grad():
            assert torch.equal(ours(x), model(x))
    assert chosen(dumped) == {"mm", "addmm", "bmm", "baddbmm"}


@pytest.mark.parametrize("dtype", HALVES)
def test_transposed_factors_are_not_copied(dtype: torch.dtype, dumped: Path) -> None:
    """They are read as they lie."""
    ours = compiled(lambda a, b: a.t() @ b.t())
    a, b = torch.randn(6, 9).to(dtype), torch.randn(4, 6).to(dtype)
    assert torch.equal(ours(a, b), a.t() @ b.t())
    assert operators(dumped) == ["mm"]


def test_float32_products_stay(dumped: Path) -> None:
    """ONNX Runtime's are as fast."""
    ours = compiled(Products())
    ours(torch.randn(3, 5, 24))
    assert chosen(dumped) == set()


@pytest.mark.parametrize(
    "options",
    [
        {"optimization": {"patterns": "default"}},
        {"optimization": {"patterns": "default+onnxruntime"}},
        {"placement": {"aten::mm": "onnxruntime"}},
    ],
)
def test_a_user_may_choose_otherwise(options: dict[str, Any], dumped: Path) -> None:
    """By the rules, or for an operator."""
    ours = compiled(lambda a, b: a @ b, **options)
    a, b = torch.randn(6, 9).to(torch.bfloat16), torch.randn(9, 4).to(torch.bfloat16)
    torch.testing.assert_close(ours(a, b), a @ b)
    assert chosen(dumped) == set()


def test_a_user_may_ask_for_them(dumped: Path) -> None:
    """Of a type for which they are not chosen."""
    ours = compiled(lambda a, b: a @ b, placement={"aten::mm": "torch kernel"})
    a, b = torch.randn(6, 9), torch.randn(9, 4)
    assert torch.equal(ours(a, b), a @ b)
    assert chosen(dumped) == {"mm"}


@pytest.mark.parametrize("patterns", ["default", "default+onnxruntime+kernels"])
def test_files_have_none(patterns: str) -> None:
    """They are run where there is no torch."""
    model = Products().to(torch.bfloat16)
    args = (torch.randn(3, 5, 24).to(torch.bfloat16),)
    exported = to_onnx(model, args, options={"patterns": patterns})
    assert isinstance(exported, onnx.ModelProto)
    assert not {n.op_type for n in exported.graph.node} & TORCH_PRODUCTS


FLASH = "_scaled_dot_product_flash_attention_for_cpu"
BY_TORCH: dict[str, Place] = dict.fromkeys(ATTENTION, "torch kernel")
"""Attention, and its gradient: ours are in their place otherwise."""


class Heads(torch.nn.Module):
    """Attention between two layers."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.heads = heads

    def forward(
        self, x: torch.Tensor, mask: torch.Tensor | None = None, causal: bool = False
    ) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.first(x).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return self.last(y.transpose(1, 2).reshape(batch, length, width))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("kind", ["full", "causal", "mask", "numbers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_runs_by_torchs_kernel(dtype: torch.dtype, kind: str, dumped: Path) -> None:
    """Forward and backward, sizes that are symbols too; no scores are made."""
    model = Heads().to(dtype)
    ours = compiled(model, placement=BY_TORCH)
    weights = list(model.parameters())
    for length in (10, 17, 12):
        x = torch.randn(2, length, 32).to(dtype)
        masks = {
            "mask": torch.rand(2, 1, length, length) > 0.3,
            "numbers": torch.randn(length, length).to(dtype),
        }
        args = (x, masks.get(kind), kind == "causal")
        expected, got = model(*args), ours(*args)
        torch.testing.assert_close(got, expected)
        gradients = (torch.autograd.grad(y.sum(), weights) for y in (expected, got))
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(b, a)
        with torch.no_grad():
            torch.testing.assert_close(ours(*args), expected)
    found = operators(dumped)
    assert {FLASH, f"{FLASH}_backward"} <= set(found)
    assert not {"Softmax", "Exp", "MatMul"} & set(found) or dtype is torch.float32


class WrittenOut(Heads):
    """A model that makes the mask of a causal attention itself."""

    def forward(self, x: torch.Tensor, seen: Any = None, causal: bool = False) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        mask = places[:, None] >= places
        if seen is not None:
            mask = mask & seen
        return super().forward(x, mask.expand(x.shape[0], 1, -1, -1))


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_mask_that_is_written_out_is_not_made(dtype: torch.dtype, dumped: Path) -> None:
    model = WrittenOut().to(dtype)
    patterns = {"patterns": "default+onnxruntime+kernels"}
    ours = compiled(model, optimization=patterns, placement=BY_TORCH)
    x, weights = torch.randn(2, 48, 32).to(dtype), list(model.parameters())
    expected, got = model(x), ours(x)
    torch.testing.assert_close(got, expected)
    gradients = (torch.autograd.grad(y.square().sum(), weights) for y in (expected, got))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(b, a)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), expected)
    nodes = [n for path in dumped.glob("*.onnx") for n in onnx.load(path).graph.node]
    attentions = [n for n in nodes if n.op_type.startswith(FLASH)]
    assert [a.i for n in attentions for a in n.attribute if a.name == "is_causal"] == [1, 1, 1]
    assert not {"Range", "GreaterOrEqual", "Where", "Less"} & {n.op_type for n in nodes}


@pytest.mark.usefixtures("silent")
def test_a_causal_mask_beside_one_that_is_given() -> None:
    model = WrittenOut()
    ours = compiled(model)
    x = torch.randn(2, 16, 32)
    for seen in (torch.rand(16, 16) > 0.3, torch.ones(16, 16, dtype=torch.bool)):
        seen.fill_diagonal_(True)
        torch.testing.assert_close(ours(x, seen), model(x, seen))


def test_attention_copies_no_heads(dumped: Path) -> None:
    """Transposes before and behind it are steps through memory."""
    ours = compiled(Heads())
    with torch.no_grad():
        ours(torch.randn(2, 256, 32))
    found = operators(dumped)
    assert "Attention" in found
    assert "Transpose" not in found


GROUPS_ON_CPU = Version(torch.__version__) >= Version("2.9")
"""Whether torch's attention for the CPU is told of groups of heads."""
PLACES: list[tuple[Place, torch.dtype]] = [
    ("torch kernel", torch.float32),
    ("torch kernel", torch.bfloat16),
    ("onnxruntime", torch.float32),
]


@pytest.mark.parametrize(("place", "dtype"), PLACES)
@pytest.mark.parametrize("written", ["repeated", *(["enable_gqa"] if GROUPS_ON_CPU else [])])
def test_a_step_reads_shared_heads_where_they_are(
    place: Place, dtype: torch.dtype, written: str, dumped: Path
) -> None:
    """One query for each head, several heads for one of keys: no cache is copied for each."""
    options = OrtBackendOptions(fallback=False, placement={f"aten::{FLASH}": place})

    def step(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if written == "repeated":
            batch, _, length, _ = k.shape
            wide = (batch, 2, 3, length, 16)
            k, v = (t[:, :, None].expand(wide).reshape(batch, 6, length, 16) for t in (k, v))
        attend = torch.nn.functional.scaled_dot_product_attention
        y = attend(q, k, v, mask, enable_gqa=written == "enable_gqa")
        return y.transpose(1, 2).reshape(q.shape[0], 1, -1) * 2

    ours = torch.compile(step, backend=OrtBackend(options))
    for batch, length in ((4, 40), (3, 70), (5, 33)):
        q = torch.randn(batch, 6, 1, 16).to(dtype)
        k, v = (torch.randn(batch, 2, length, 16).to(dtype) for _ in range(2))
        for mask in (None, torch.rand(batch, 1, 1, length) > 0.3):
            with torch.no_grad():
                torch.testing.assert_close(ours(q, k, v, mask), step(q, k, v, mask))
    found = operators(dumped)
    assert (FLASH in found) == (place == "torch kernel")
    assert not repeated(dumped)


def test_attention_with_dropout_is_left_to_torch(dumped: Path) -> None:
    """Its random numbers are torch's."""
    q = torch.randn(1, 2, 6, 8)

    def attention(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    ours = compiled(attention, fallback=True)
    torch.manual_seed(1)
    expected = attention(q)
    torch.manual_seed(1)
    torch.testing.assert_close(ours(q), expected)
    assert FLASH not in operators(dumped)


@pytest.mark.parametrize(
    ("alone", "dtype", "options", "expected"),
    [
        (False, torch.bfloat16, {}, "0"),
        (False, torch.float32, {}, "1"),
        (False, torch.bfloat16, {"spinning": "on"}, "1"),
        (True, torch.bfloat16, {}, "1"),
    ],
)
def test_threads_do_not_spin_beside_those_of_torch(
    alone: bool,
    dtype: torch.dtype,
    options: dict[str, Any],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless a user wants them to, or torch's kernels work in them."""
    monkeypatch.setattr(model_files, "works_alone", lambda: alone)
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    backend = OrtBackend({"intra_op_threads": 2, **options})
    a = torch.randn(8, 8).to(dtype)
    torch.compile(lambda a: a @ a, backend=backend)(a)
    ((info,),) = backend._all_ort_execution_info.execution_info_per_graph_module.values()
    used = info.session.get_session_options()
    assert used.get_session_config_entry("session.intra_op.allow_spinning") == expected
    assert "pause(PAUSE_SOFT)" not in info.executor.source or expected == "1"
