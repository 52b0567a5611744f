"""What is computed on a CUDA GPU is what is computed on the CPU: ``pytest -m gpu``.

Where a test has a form for the CPU it runs in the plain tier as well, so that the test itself is
known to work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu_day_parts.numerics import score
from benchmarks.iteration import Bench, Iteration
from benchmarks.workload import RandomModel, Workload
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.engines import InProcess
from ragen_pl.rollout.engines.cuda_graphs import CaptureOrRun, GraphedDecodeStep
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.rollout.packing import pack
from ragen_pl.training.networks import Networks
from ragen_pl.types import Completion, EpisodeId, Request, RolloutBatch, Sampling, TrajectoryGroup

CUDA = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
)
on_a_gpu = pytest.param("cuda", marks=CUDA)
DEVICES = pytest.mark.parametrize("device", ["cpu", on_a_gpu])
ON_A_GPU = pytest.mark.parametrize("device", [on_a_gpu])

SHAPE = RandomModel(64, 128, 2, 4, 2, attention="sdpa", init_std=0.15)
DIALOGUE = Workload(num_groups=2, group_size=3, turns=2, words=5, response=6)


def bench(device: str, **changes: object) -> Bench:
    plain = Bench(SHAPE, DIALOGUE, torch.float32, device, token_budget=300, critic=False)
    return replace(plain, **changes)  # type: ignore[arg-type]


def played(iteration: Iteration) -> tuple[list[Completion], RolloutBatch]:
    """Play once; return what was said, and the rollout."""
    _, groups = iteration.play()
    return completions(groups), packed(groups)


def completions(groups: Sequence[TrajectoryGroup]) -> list[Completion]:
    return [turn.completion for g in groups for each in g.trajectories for turn in each.turns]


def packed(groups: Sequence[TrajectoryGroup]) -> RolloutBatch:
    trajectories = [each for group in groups for each in group.trajectories]
    return pack(trajectories, weights=[1.0] * len(trajectories))


def gap(rollout: RolloutBatch, scored: Tensor) -> float:
    return float((scored - rollout.sampled_log_probs).abs()[rollout.loss_mask].max())


@DEVICES
@pytest.mark.parametrize("attention", ["sdpa", "grouped_matmul"])
def test_sampled_and_recomputed_log_probs_agree(device: str, attention: str) -> None:
    iteration = Iteration(bench(device, model=replace(SHAPE, attention=attention)))
    _, rollout = played(iteration)
    assert rollout.sampled_log_probs[rollout.loss_mask].std() > 0.3, "not uniform"
    assert gap(rollout, score(iteration, rollout)) < 1e-4


@DEVICES
def test_in_bfloat16_they_agree_up_to_rounding(device: str) -> None:
    iteration = Iteration(bench(device, dtype=torch.bfloat16))
    _, rollout = played(iteration)
    assert gap(rollout, score(iteration, rollout)) < 0.3
    precise = score(Iteration(bench(device)), rollout)
    assert 1e-4 < gap(rollout, precise) < 0.3, "sampled in bfloat16"


@DEVICES
def test_tokens_are_those_of_the_cpu(device: str) -> None:
    """Noise is drawn on the CPU, and weights are the same."""
    here, there = played(Iteration(bench("cpu")))[0], played(Iteration(bench(device)))[0]
    assert [each.token_ids for each in there] == [each.token_ids for each in here]
    for one, other in zip(here, there, strict=True):
        assert other.log_probs == pytest.approx(one.log_probs, abs=1e-4)


@DEVICES
@pytest.mark.parametrize("lora", [None, LoRA(rank=4, alpha=8)], ids=["full", "lora"])
def test_updates_are_those_of_the_cpu(device: str, lora: LoRA | None) -> None:
    changed = []
    for each in ("cpu", device):
        iteration = Iteration(bench(each, lora=lora, critic=True))
        trained = {n: w for n, w in iteration.policy.named_parameters() if w.requires_grad}
        before = {name: weight.detach().clone() for name, weight in trained.items()}
        iteration.run()
        steps = {name: (weight - before[name]).cpu() for name, weight in trained.items()}
        changed.append(torch.cat([step.flatten() for step in steps.values()]))
    here, there = changed
    assert here.norm() > 0
    # AdamW's first step is the sign of a gradient: where that is near 0, rounding turns it.
    assert float((there - here).norm() / here.norm()) < 0.05


@DEVICES
def test_checkpointed_layers_learn_the_same(device: str) -> None:
    weights = []
    for checkpointing in (False, True):
        iteration = Iteration(bench(device, checkpointing=checkpointing))
        iteration.run()
        weights.append(next(iteration.policy.parameters()).detach().cpu())
    torch.testing.assert_close(*weights, atol=1e-5, rtol=0)


@ON_A_GPU
def test_cuda_graphs_replay_the_same(device: str) -> None:
    plain = played(Iteration(bench(device)))[0]
    graphs = Iteration(bench(device, cuda_graphs=True))
    replayed = played(graphs)[0]
    assert [each.token_ids for each in replayed] == [each.token_ids for each in plain]
    for one, other in zip(plain, replayed, strict=True):
        assert other.log_probs == pytest.approx(one.log_probs, abs=1e-4)


@ON_A_GPU
@pytest.mark.parametrize("is_bf16", [False, True], ids=["fp32", "bf16"])
def test_by_default_steps_are_captured_and_follow_the_weights(device: str, is_bf16: bool) -> None:
    """Weights change in place between rollouts; what autocast made of them lies elsewhere then."""
    language = Iteration(bench(device)).language

    def build(engine: InProcess) -> InProcessSampler:
        cast = lambda: torch.autocast("cuda", torch.bfloat16, enabled=is_bf16)  # noqa: E731
        built = engine.build(language, 0, 256, cast)
        assert isinstance(built, InProcessSampler)
        return built

    default, plain = build(InProcess()), build(InProcess(cuda_graphs=False))
    requests = [Request((3, *range(10, 20 + row)), EpisodeId(0, 0, row), 0) for row in range(3)]
    for _ in range(3):
        found, expected = (engine(requests, Sampling(1.0, 40)) for engine in (default, plain))
        for one, other in zip(found, expected, strict=True):
            if not is_bf16:
                assert one.token_ids == other.token_ids
            # In bf16 rounding may change a token, and all after it.
            gap, same = (0.2, 1) if is_bf16 else (1e-3, len(one.log_probs))
            assert one.log_probs[:same] == pytest.approx(other.log_probs[:same], abs=gap)
        with torch.no_grad():
            for weight in language.model.parameters():
                weight.mul_(1.05)
    assert isinstance(default.decode_step, GraphedDecodeStep)
    assert isinstance(default.new_capture, CaptureOrRun)
    assert not default.new_capture.has_failed
    assert not isinstance(plain.decode_step, GraphedDecodeStep)


@ON_A_GPU
def test_flash_attention_scores_as_math_does(device: str) -> None:
    """With the mask dropped there is a flash kernel in bfloat16."""
    iteration = Iteration(bench(device, dtype=torch.bfloat16))
    _, rollout = played(iteration)
    found = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            found.append(score(iteration, rollout))
    assert float((found[0] - found[1]).abs().max()) < 0.3


@ON_A_GPU
def test_compiled_layers_score_the_same(device: str) -> None:
    iteration = Iteration(bench(device))
    _, rollout = played(iteration)
    plain = score(iteration, rollout)
    Networks(iteration.policy, None, None).compile()
    torch.testing.assert_close(score(iteration, rollout), plain, atol=1e-3, rtol=0)
