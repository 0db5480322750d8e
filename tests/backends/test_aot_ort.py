from __future__ import annotations

import torch

from dort_rewriter import make_aot_ort


def test_a_pair_of_the_same_backend_that_trains() -> None:
    torch._dynamo.reset()
    backend, same = make_aot_ort(dynamic=True, rewrite=True, verbose=0)
    assert backend is same
    model = torch.nn.Linear(3, 2)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    x = torch.randn(4, 3)
    compiled(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    assert len(got) == 2
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)


def test_without_rewriting_the_model_is_as_exported() -> None:
    assert make_aot_ort(rewrite=False)[0]._options.optimization.patterns is None
    assert make_aot_ort(rewrite=False)[0]._options.optimization.remove_unused is False


def test_left_out_rules_are_written_into_the_selection() -> None:
    backend, _ = make_aot_ort(enable_pattern="default", disable_pattern="CastCast,Identity")
    assert backend._options.optimization.patterns == "default-CastCast-Identity"
