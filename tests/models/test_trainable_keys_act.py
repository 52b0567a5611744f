"""No key of a pretrained policy or of its adapters is ignored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.distributed.sharding import has_hooks
from ragen_pl.envs import Sokoban
from ragen_pl.models import PretrainedModel
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Critic, Policy
from ragen_pl.models.trainable import TrainableModel
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.prompts import Prompts
from tests.support.config_key_effects import KeyProof, differ, spelled
from tests.support.templates import TEMPLATES, save_model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    template = TEMPLATES["thoughts dropped"]
    return {
        name: str(save_model(tmp_path_factory.mktemp(name), name, template))
        for name in ("Qwen2", "Llama")
    }


def built(arguments: dict[str, Any]) -> dict[str, Any]:
    """Build; return the weights, the policy's output after a step of its adapters, and its
    prompt."""
    language = TrainableModel(**arguments).build(())
    chat = Chat(Prompts(), language.tokenizer, language.markers, 2)
    (heard,) = chat.encode_parts([chat.first_context(Sokoban(), "look")])
    weights = {f"w/{n}": p.detach().clone().float() for n, p in language.model.named_parameters()}
    with torch.no_grad():
        for name, parameter in language.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.01)
        tokens = torch.arange(20, 40)[None]
        log_probs = Policy(language.model)(tokens, tokens > 25, tokens >= 0).log_probs
    attention = language.model.config._attn_implementation
    return {**weights, "said": log_probs, "heard": torch.tensor(heard), "by": hash(attention)}


def bases(folders: dict[str, str]) -> tuple[dict[str, Any], ...]:
    policy = PretrainedModel(folders["Qwen2"])
    return ({"policy": policy, "lora": LoRA(), "gradient_checkpointing": False, "seed": 0},)


@pytest.mark.parametrize(
    "path",
    [
        *(("policy", key) for key in ("path", "dtype", "attention", "template_options")),
        *(("lora", key) for key in ("rank", "alpha", "target_modules")),
        ("seed",),
    ],
    ids=spelled,
)
def test_a_key_of_the_policy_acts(path: tuple[str, ...], folders: dict[str, str]) -> None:
    others: dict[str, tuple[Any, ...]] = {
        "PretrainedModel.path": (folders["Llama"], "no such folder"),
        "PretrainedModel.template_options": ({"enable_thinking": False}, {"no_such": 1}),
        "LoRA.rank": (4,),
        "LoRA.alpha": (5,),
        "LoRA.target_modules": (("q_proj",), ("no_such",)),
        "TrainableModel.seed": (1,),
    }
    KeyProof(TrainableModel, built, bases(folders), others).check(path)


def test_checkpointing_changes_no_gradient(folders: dict[str, str]) -> None:
    """Layers are computed twice for the same gradients of policy and critic."""
    tokens = torch.arange(20, 40)[None]
    found: list[dict[str, torch.Tensor]] = []
    runs: list[int] = []
    for checkpointing in (False, True):
        (base,) = bases(folders)
        optimization = Optimization(gradient_checkpointing=checkpointing)
        base["gradient_checkpointing"] = optimization.gradient_checkpointing
        model = TrainableModel(**base).build(()).model
        policy, critic = Policy(model), Critic.like(model)
        torch.nn.init.ones_(critic.head.weight)
        count = [0]
        for layer in cast(Any, model.base_model).layers:
            layer.mlp.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        log_probs = policy(tokens, tokens > 25, tokens >= 0).log_probs
        values = critic(tokens, tokens > 25, tokens >= 0)
        (log_probs.sum() + values.sum()).backward()
        runs.append(len(count) - 1)
        found.append(
            {
                f"{number}/{name}": parameter.grad
                for number, network in enumerate((policy, critic))
                for name, parameter in network.named_parameters()
                if parameter.grad is not None
            }
        )
    assert runs == [2, 4], "two layers of the policy, and again for its gradient"
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lora", [None, LoRA()])
def test_checkpointing_leaves_no_hooks(folders: dict[str, str], lora: LoRA | None) -> None:
    """With hooks decode steps would be neither captured nor fused."""
    (base,) = bases(folders)
    model = TrainableModel(**{**base, "lora": lora, "gradient_checkpointing": True}).build(()).model
    assert not has_hooks(model)


def test_another_seed_is_another_adapter(folders: dict[str, str]) -> None:
    (base,) = bases(folders)
    policy: PretrainedModel = base["policy"]
    assert not differ(built(base), built(base))
    assert differ(built(base), built({**base, "seed": 3}))
    assert policy == replace(policy), "a configuration is plain data"


def test_a_missing_model_is_one_short_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ragen_pl.cli.entry_point import main

    monkeypatch.chdir(tmp_path)
    names = ["--config", "bandit", "--config", "qwen2.5-0.5b"]
    assert main(["fit", *names, "--model.policy.path", "nowhere", "--threads", "1"]) == 2
    error = capsys.readouterr().err
    assert "error: model.policy.init_args.path is nowhere, which is neither" in error
    assert "Traceback" not in error
