"""Sessions from every form of model, their options, and what is said when they fail."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from dort_rewriter.errors import ExecutionError, NoKernelError, OptionError
from dort_rewriter.ort_module import load_onnxruntime
from dort_rewriter.runtime import model_files
from dort_rewriter.runtime.executor import Executor
from dort_rewriter.runtime.session import create_session, session_options
from dort_rewriter.runtime.threads import ThreadPolicy
from tests.runtime.graphs import parse, result, signature, tensor

SIGNATURE = signature([tensor("x")], [result("y")])


def weighted():
    """``y = x + w`` with 4096 bytes of weights."""
    model = parse("(float[N] x) => (float[N] y) { y = Add(x, w) }")
    weights = np.arange(1024, dtype=np.float32)
    model.graph.initializer.append(ir.to_proto(ir.Tensor(weights, name="w")))
    return model


def check(session) -> None:
    (y,) = Executor(session, SIGNATURE)(torch.ones(1024))
    assert torch.equal(y, torch.arange(1024.0) + 1)


FORMS = {
    "proto": lambda model: model,
    "bytes": lambda model: model.SerializeToString(),
    "ir": ir.from_proto,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_model(form: str) -> None:
    check(create_session(FORMS[form](weighted())))


@pytest.mark.parametrize("form", ["proto", "ir"])
def test_weights_beyond_one_message_go_to_a_file(form: str, monkeypatch) -> None:
    monkeypatch.setattr(model_files, "INLINE_LIMIT", 1000)
    model = FORMS[form](weighted())
    with model_files.serialized(model) as written:
        assert isinstance(written, str)
        file = Path(written)
        assert file.stat().st_size < 1000
        assert file.with_name("model.onnx.data").stat().st_size >= 4096
    assert not file.parent.exists()
    check(create_session(model))
    check(create_session(model))  # the model given was not emptied


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_written_for_a_model_that_fits(form: str, monkeypatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("nothing can be written here")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    check(create_session(FORMS[form](weighted())))


def test_weights_already_in_a_file(tmp_path) -> None:
    ir.save(ir.from_proto(weighted()), tmp_path / "m.onnx", external_data="m.data")
    check(create_session(ir.load(tmp_path / "m.onnx")))


def test_user_options_are_left_as_they_are() -> None:
    options = load_onnxruntime().SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 2
    session = create_session(weighted(), options=options)
    assert options.log_severity_level == 2
    assert session.ort.get_session_options().intra_op_num_threads == 1


def test_optimization_level() -> None:
    levels = load_onnxruntime().GraphOptimizationLevel
    disabled = session_options(optimization_level="disable")
    assert disabled.graph_optimization_level == levels.ORT_DISABLE_ALL
    with pytest.raises(OptionError, match="'most'"):
        session_options(optimization_level="most")


def test_threads_follow_torch() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert session_options().intra_op_num_threads == 1
    finally:
        torch.set_num_threads(before)
    assert session_options().intra_op_num_threads == before
    policy = ThreadPolicy(intra_op_threads=3)
    assert session_options(threads=policy).intra_op_num_threads == 3


@pytest.mark.parametrize(
    ("spinning", "allowed", "stops"), [("on", "1", None), ("stop", "1", "1"), ("off", "0", None)]
)
def test_spinning_entries(spinning, allowed, stops) -> None:
    options = session_options(threads=ThreadPolicy(spinning=spinning, intra_op_threads=1))
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == allowed
    if stops:
        assert options.get_session_config_entry("session.force_spinning_stop") == stops
        assert int(options.get_session_config_entry("session.intra_op.spin_duration_us")) > 0
    check(create_session(weighted(), options=options))


@pytest.mark.parametrize("wrong", [{"spinning": "maybe"}, {"intra_op_threads": 0}])
def test_wrong_thread_policy(wrong) -> None:
    with pytest.raises(OptionError):
        ThreadPolicy(**wrong)


@pytest.mark.parametrize("form", ["proto", "ir"])
def test_refused_node_is_named_with_its_origin(form: str) -> None:
    model = parse("(double[N] x) => (double[N] y) { y = Erf(x) }")
    node = model.graph.node[0]
    node.name = "erf_7"
    entry = node.metadata_props.add()
    entry.key, entry.value = "source", "model.py:12 in forward"
    with pytest.raises(ExecutionError) as caught:
        create_session(FORMS[form](model))
    for part in ("Erf", "'erf_7' is Erf(x)", "model.py:12 in forward", "CPUExecutionProvider"):
        assert part in str(caught.value)


def test_node_that_fails_at_run_time_is_named() -> None:
    model = parse("(float[N] a, float[M] b) => (float[K] y) { y = Add(a, b) }")
    model.graph.node[0].name = "sum_3"
    run = Executor(create_session(model), signature([tensor("a"), tensor("b")], [result("y")]))
    with pytest.raises(ExecutionError, match=r"Node 'sum_3' is Add\(a, b\)"):
        run(torch.ones(2), torch.ones(3))


@pytest.mark.parametrize(
    "body",
    [
        "(double[N] x) => (double[N] y) { y = Erf(x) }",
        "(bool[N] x) => (bool[N] y) { y = Add(x, x) }",
    ],
)
def test_types_without_a_kernel_have_their_own_error(body: str) -> None:
    with pytest.raises(NoKernelError, match="cannot build a session"):
        create_session(parse(body))


def test_bytes_that_are_no_model() -> None:
    with pytest.raises(ExecutionError, match="cannot build a session"):
        create_session(b"not a model")


def test_an_optimizer_that_makes_nodes_without_a_kernel_is_left_out() -> None:
    """onnxruntime 1.19 fuses a Transpose into a product of float64, and cannot run that."""
    model = parse(
        """(double[2,3,4] x, double[2,5,4] z) => (double[2,3,5] y) {
            t = Transpose<perm=[0, 2, 1]>(z)
            y = MatMul(x, t)
        }"""
    )
    session = create_session(model, options=session_options(optimization_level="all"))
    x, z = np.random.rand(2, 3, 4), np.random.rand(2, 5, 4)
    (y,) = session.ort.run(None, {"x": x, "z": z})
    np.testing.assert_allclose(y, x @ z.swapaxes(1, 2))
