"""The advantage of self-distillation, against the gradient of the reverse KL by enumeration."""

from __future__ import annotations

import torch

from ragen_pl.ops.distillation import distillation_advantages


def test_it_follows_the_gradient_of_the_reverse_kl() -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(7, dtype=torch.float64).log_softmax(-1)
    log_p = logits.log_softmax(-1)
    (exact,) = torch.autograd.grad((log_p.exp() * (log_p - teacher)).sum(), logits)

    every_token = torch.ones(1, 7, dtype=torch.bool)
    now = logits.log_softmax(-1)
    advantages = distillation_advantages(teacher[None], now.detach()[None], every_token, 50.0)
    loss = -(now.detach().exp() * advantages[0] * now).sum()  # a policy gradient's expectation
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(found, exact)


def test_it_is_limited_and_zero_where_the_teacher_does_not_judge() -> None:
    teacher = torch.tensor([[-1.0, -40.0, -0.5, float("-inf")]])
    sampled = torch.tensor([[-2.0, -0.1, -9.0, -1.0]])
    mask = torch.tensor([[True, True, True, False]])
    found = distillation_advantages(teacher, sampled, mask, 5.0)
    assert found.tolist() == [[1.0, -5.0, 5.0, 0.0]]
