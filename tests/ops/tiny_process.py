"""A tiny enumerable decision process with an exactly known policy gradient."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

STATES, ACTIONS, HORIZON = 3, 2, 3
NEXT = torch.tensor([[1, 2], [2, 0], [0, 1]])
REWARD = torch.tensor([[0.0, 1.0], [0.5, -1.0], [2.0, 0.0]], dtype=torch.float64)


def enumerate_paths(theta: Tensor) -> list[tuple[list[int], list[int], Tensor, list[float]]]:
    """List every (states, actions, probability, rewards) of the process from state 0."""
    paths = []
    for actions in itertools.product(range(ACTIONS), repeat=HORIZON):
        state, states, rewards = 0, [], []
        probability = torch.ones((), dtype=torch.float64)
        for action in actions:
            states.append(state)
            probability = probability * torch.softmax(theta[state], -1)[action]
            rewards.append(float(REWARD[state, action]))
            state = int(NEXT[state, action])
        paths.append((states, list(actions), probability, rewards))
    return paths


def random_policy(seed: int) -> Tensor:
    """Draw the logits of a policy, (STATES, ACTIONS), that require a gradient."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        STATES, ACTIONS, dtype=torch.float64, generator=generator, requires_grad=True
    )


def true_gradient(theta: Tensor) -> Tensor:
    """Differentiate the expected return."""
    objective = sum(p * sum(r) for _, _, p, r in enumerate_paths(theta))
    (truth,) = torch.autograd.grad(objective, theta)  # type: ignore[arg-type]
    return truth


def exact_values(theta: Tensor) -> Tensor:
    """Return V of the policy by time and state, (HORIZON + 1, STATES)."""
    exact = torch.zeros(HORIZON + 1, STATES, dtype=torch.float64)
    policy = torch.softmax(theta.detach(), -1)
    for t in reversed(range(HORIZON)):
        exact[t] = (policy * (REWARD + exact[t + 1][NEXT])).sum(-1)
    return exact
