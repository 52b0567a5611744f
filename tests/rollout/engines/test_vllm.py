"""The contract with vLLM, against a fake of its interface.

``test_real_vllm`` asks vLLM itself, where it is installed.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ragen_pl.cli.entry_point import main
from ragen_pl.models.base import LanguageModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.lora import LoRA
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.engines import VLLM, InProcess
from ragen_pl.rollout.engines.vllm import VLLMSampler
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.types import EpisodeId, Request, Sampling
from tests.rollout.engines.answers import flattened, largest_gap, requests
from tests.rollout.engines.fake_vllm import LLM, make_module
from tests.support.config_key_effects import KeyProof, spelled
from tests.support.config_key_effects import Path as Key
from tests.support.doubles import make_trainer
from tests.support.toy_env import PROMPTS, NamedLamp, make_learner

MODEL = EmbeddedModel(
    hidden_size=32, intermediate_size=64, num_heads=4, num_key_value_heads=2, init_std=0.3
)
CONTEXT = 128


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", make_module())
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "WARNING")


@pytest.fixture
def language() -> LanguageModel:
    return MODEL.build([f"w{i}" for i in range(40)], seed=3)


def sampler(language: LanguageModel, seed: int = 0) -> VLLMSampler:
    built = VLLM(dtype="float32").build(language, seed, CONTEXT, nullcontext)
    built.reset()
    return built


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_log_probs_are_those_at_the_temperature_of_sampling(
    language: LanguageModel, temperature: float
) -> None:
    asked = requests(range(5))
    answered = sampler(language)(asked, Sampling(temperature, 9))
    assert largest_gap(language, asked, answered, temperature) < 1e-4
    assert {completion.entropies for completion in answered} == {None}


def test_a_greedy_response_is_the_likeliest_with_log_probs_at_temperature_1(
    language: LanguageModel,
) -> None:
    asked = requests(range(4))
    answered = sampler(language)(asked, Sampling(0.0, 9))
    assert largest_gap(language, asked, answered) < 1e-4
    ours = InProcess().build(language, 0, CONTEXT, nullcontext)(asked, Sampling(0.0, 9))
    assert [c.token_ids for c in answered] == [c.token_ids for c in ours]


def test_a_row_samples_by_its_identity_alone(language: LanguageModel) -> None:
    engine, how = sampler(language), Sampling(1.0, 9)
    together = engine(requests(range(4)), how)
    alone = [engine(requests([m]), how)[0] for m in range(4)]
    assert [c.token_ids for c in alone] == [c.token_ids for c in together]
    prefix = (3, 10, 11)
    ids = [EpisodeId(5, 0, 0), EpisodeId(6, 0, 0), EpisodeId(5, 1, 0), EpisodeId(5, 0, 1)]
    others = [*(Request(prefix, each, 0) for each in ids), Request(prefix, ids[0], 1)]
    drawn = {c.token_ids for c in engine(others, how)}
    drawn.add(sampler(language, seed=1)(others[:1], how)[0].token_ids)
    assert len(drawn) == 6


def test_only_the_chat_marker_ends_a_response(
    language: LanguageModel,
) -> None:
    asked, how, end = requests(range(24)), Sampling(2.0, 60), language.markers.end
    with flattened(language):
        engine = sampler(language)
    answered = engine(asked, how)
    assert 0 < sum(completion.stopped for completion in answered) < len(asked)
    for completion in answered:
        assert completion.stopped == (completion.token_ids[-1] == end)
        assert end not in completion.token_ids[:-1]
        assert completion.stopped or len(completion.token_ids) == 60
    (first, *_) = answered
    language.model.config.eos_token_id = first.token_ids[0]
    with flattened(language):
        (again,) = sampler(language)(asked[:1], how)
    assert again.token_ids == first.token_ids
    assert len(first.token_ids) > 1, "else nothing is shown"
    assert sampler(language)([], how) == []


def test_new_weights_arrive_with_a_reset(language: LanguageModel) -> None:
    asked, how, engine = requests(range(4)), Sampling(1.0, 9), sampler(language)
    engine(asked, how)
    with torch.no_grad():
        for weight in language.model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    assert largest_gap(language, asked, engine(asked, how)) > 0.1
    engine.reset()
    assert largest_gap(language, asked, engine(asked, how)) < 1e-4


def test_adapters_arrive_merged(language: LanguageModel) -> None:
    adapted = replace(language, adapted=LoRA(rank=2).attach(language.model, seed=0))
    engine, asked, how = sampler(adapted), requests(range(4)), Sampling(1.0, 9)
    with torch.no_grad():
        for name, weight in adapted.model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.3)
    assert largest_gap(adapted, asked, engine(asked, how)) > 0.1
    engine.reset()
    assert largest_gap(adapted, asked, engine(asked, how)) < 1e-4


def test_a_cache_that_stays_is_an_error(
    language: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sampler(language)
    monkeypatch.setattr(LLM, "keeps_prefixes", True)
    with pytest.raises(RuntimeError, match="prefix cache"):
        engine.reset()


def test_starting_it_does_not_change_the_runs_random_state(language: LanguageModel) -> None:
    before = torch.get_rng_state()
    sampler(language)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_are_copied_in_its_dtype(language: LanguageModel) -> None:
    engine = VLLM(dtype="bfloat16").build(language, 0, CONTEXT, nullcontext)
    engine.reset()  # the fake looks
    asked = requests(range(4))
    assert 1e-4 < largest_gap(language, asked, engine(asked, Sampling(1.0, 9))) < 0.5


def started(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments vLLM is started with."""
    VLLM(**arguments).build(MODEL.build(["w"], seed=0), 0, CONTEXT, nullcontext)
    return vars(LLM.latest.sizes)


PROOF = KeyProof(
    VLLM,
    started,
    others={
        "VLLM.gpu_memory_utilization": (0.8, 0.0, 1.0),
        "VLLM.max_num_seqs": (8, 0),
    },
)


@pytest.mark.parametrize("path", PROOF.paths(), ids=spelled)
def test_a_key_of_the_engine_acts(path: Key) -> None:
    PROOF.check(path)


@pytest.mark.run
def test_a_run_samples_with_it_and_follows_every_update(tmp_path: Path) -> None:
    module = make_learner()
    module.engine = VLLM(dtype="float32")
    rollout = RolloutConfig(
        num_groups=2, group_size=4, max_turns=2, max_actions_per_turn=1, max_response_tokens=6
    )
    data = RolloutDataModule(NamedLamp(), {"lamp": NamedLamp()}, prompts=PROMPTS, rollout=rollout)
    from callbacks import EntropyLogger

    trainer = make_trainer(tmp_path, 3, [EntropyLogger()])
    trainer.fit(module, datamodule=data)
    metrics = trainer.callback_metrics
    assert isinstance(module.sampler.engine, VLLMSampler)
    assert float(metrics["train/log_prob_gap"]) < 1e-4
    assert float(metrics["train/sampler_ratio_max"]) == pytest.approx(1, abs=1e-3)
    assert float(metrics["rollout/entropy"]) > 0
    assert "val/lamp/success" in metrics


def test_without_vllm_the_run_is_refused_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec

    def find_others(name: str, package: str | None = None) -> Any:
        return None if name == "vllm" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find_others)
    assert main(["fit", "--config", "bandit", "--config", "vllm", "--threads", "1"]) == 2
    error = capsys.readouterr().err
    assert "error: model.engine is VLLM, but vllm is not installed here: install it" in error
    assert "Traceback" not in error


def test_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    VLLM().check(1)
    with pytest.raises(ValueError, match="2 processes"):
        VLLM().check(2)
