"""Adapters on a frozen base: what is trained, what is shared, what is saved and exported."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from peft import LoraConfig, PeftModel
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel

from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GAE, CriticConfig
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.distributed.snapshot import restore_snapshot, take_snapshot
from ragen_pl.models import PretrainedModel
from ragen_pl.models.export import ADAPTER, export_policy
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.lora import FusedLoraLinear, LoRA
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.demonstrations import WarmStart
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import EpisodeId, Request, Sampling
from tests.support.doubles import make_trainer
from tests.support.templates import save_model
from tests.support.toy_env import Lamp

IDS = torch.arange(30, 60)[None]
MASK = (torch.arange(30) > 10)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base"))


def make_module(folder: Path, lora: LoRA | None = LoRA(rank=4, alpha=8)) -> StarPO:  # noqa: B008
    module = StarPO(
        policy=PretrainedModel(str(folder)),
        algorithm=Algorithm(
            advantage=GAE(critic=CriticConfig(lr=1e-2, warmup_iterations=0)), kl=KLPenalty()
        ),
        optimization=Optimization(lr=3e-2, imitation_lr=3e-2, warmup_iterations=0),
        lora=lora,
    )
    module.vocabulary = []
    return module


def make_data(warm_start: int = 0) -> RolloutDataModule:
    return RolloutDataModule(
        env=Lamp(),
        eval_sets={"default": Lamp()},
        prompts=Prompts(think=False, system="{instruction}", turn="{observation}"),
        rollout=RolloutConfig(
            num_groups=2,
            group_size=3,
            max_turns=2,
            max_actions_per_turn=1,
            max_response_tokens=24,
            max_context=200,
        ),
        warm_start=WarmStart(
            iterations=warm_start, updates_per_iteration=3, batch_size=4, demonstrations=4
        ),
    )


def fit(
    module: StarPO, tmp_path: Path, epochs: int, ckpt: Path | None = None, warm_start: int = 0
) -> dict[str, Tensor]:
    keep = ModelCheckpoint(
        tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=True
    )
    trainer = make_trainer(tmp_path, epochs, [keep], limit_val_batches=0, enable_checkpointing=True)
    trainer.fit(module, datamodule=make_data(warm_start), ckpt_path=ckpt)
    return dict(trainer.callback_metrics)


def log_probs(model: Any) -> Tensor:
    with torch.no_grad():
        return cast(Tensor, Policy(model)(IDS, MASK, torch.ones_like(MASK))[0])


def plain_model(folder: Path) -> PreTrainedModel:
    """Load a module's state, bit for bit."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder)
    use_fused_rms_norm(model)
    return model


def plain_log_probs(folder: Path) -> Tensor:
    return log_probs(plain_model(folder))


def test_adapters_start_without_effect_and_share_the_base(folder: Path) -> None:
    module = make_module(folder)
    module.configure_model()
    assert module.critic is not None
    assert module.reference is not None
    assert torch.equal(log_probs(module.language.model), plain_log_probs(folder))
    base = {id(p) for p in module.policy.parameters() if not p.requires_grad}
    for other in (module.critic.backbone, module.reference):
        weights = dict(other.named_parameters())
        shared = {name for name, weight in weights.items() if id(weight) in base}
        assert {name for name in weights if "lora_" not in name} == shared
    (optimizer,) = module.configure_optimizers()
    groups = optimizer.param_groups
    policy, critic = ([*group["params"]] for group in groups)
    assert len(policy) == 2 * 2 * 7, "two matrices for each of a layer's seven projections"
    assert len(critic) == len(policy) + 2, "and the critic's head"
    assert not {id(p) for p in policy} & {id(p) for p in critic}


def test_an_update_reaches_sampler_and_critic_but_not_base_or_reference(
    folder: Path, tmp_path: Path
) -> None:
    module = make_module(folder)
    module.configure_model()
    assert module.critic is not None
    assert module.reference is not None
    before = {name: value.clone() for name, value in module.state_dict().items()}
    request = [Request(tuple(range(30, 50)), EpisodeId(9, 0, 0), 0)]
    metrics = fit(module, tmp_path, 3)  # zeros are left one after another
    after = module.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {
        name
        for name in before
        if not name.startswith("reference") and ("lora_" in name or "critic.head" in name)
    }
    assert float(metrics["train/log_prob_gap"]) < 1e-5
    (sampled,) = module.generate(request, Sampling(1.0, 8))
    ids = torch.tensor([[*range(30, 50), *sampled.token_ids]])
    mask = (torch.arange(ids.shape[1]) >= 20)[None]
    there = torch.ones_like(mask)
    with torch.no_grad():
        trained = module.policy(ids, mask, there)[0][mask]
        reference = module.reference(ids, mask, there)[0]
        base = Policy(plain_model(folder))(ids, mask, there)[0]
    torch.testing.assert_close(torch.tensor(sampled.log_probs), trained, atol=1e-5, rtol=0)
    assert torch.equal(reference, base)
    assert float((trained - base[mask]).abs().max()) > 1e-3


def test_the_reference_of_a_warm_started_policy_is_where_rl_began(
    folder: Path, tmp_path: Path
) -> None:
    module = make_module(folder)
    fit(module, tmp_path, 1, warm_start=1)
    warm = log_probs(module.language.model)
    assert not torch.allclose(warm, plain_log_probs(folder))
    module = make_module(folder)
    fit(module, tmp_path, 2, warm_start=1)
    assert module.reference is not None
    torch.testing.assert_close(log_probs(module.reference.model), warm, atol=0, rtol=0)


def test_a_checkpoint_holds_what_was_trained_and_goes_on_bit_for_bit(
    folder: Path, tmp_path: Path
) -> None:
    whole = make_module(folder)
    fit(whole, tmp_path / "whole", 3)
    path = tmp_path / "whole/epoch=1.ckpt"
    held = torch.load(path, weights_only=True)["state_dict"]
    assert held
    assert all("lora_" in name or "critic.head" in name for name in held)
    resumed = make_module(folder)
    fit(resumed, tmp_path / "resumed", 3, ckpt=path)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_snapshot_holds_what_is_trained(folder: Path, tmp_path: Path) -> None:
    module = make_module(folder)
    fit(module, tmp_path, 1)
    optimizer = module.trainer.optimizers[0]
    snapshot = take_snapshot(module, [optimizer])
    before = log_probs(module.language.model)
    trained = {name for name, weight in module.named_parameters() if weight.requires_grad}
    assert {name for name in snapshot["weights"] if "lora_" in name or "head" in name} == trained
    assert not [name for name in snapshot["weights"] if "base_layer" in name or "embed" in name]
    with torch.no_grad():
        for weight in module.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    assert not torch.equal(log_probs(module.language.model), before)
    restore_snapshot(snapshot, module, [optimizer])
    assert torch.equal(log_probs(module.language.model), before)


def test_an_export_is_a_plain_model_and_an_adapter(folder: Path, tmp_path: Path) -> None:
    module = make_module(folder)
    fit(module, tmp_path / "run", 1)
    export_policy(module.language, tmp_path / "policy")
    expected = log_probs(module.language.model)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "policy")
    assert set(plain.state_dict()) == set(AutoModelForCausalLM.from_pretrained(folder).state_dict())
    torch.testing.assert_close(log_probs(plain), expected, atol=1e-5, rtol=0)
    base = AutoModelForCausalLM.from_pretrained(folder)
    adapted = PeftModel.from_pretrained(base, str(tmp_path / "policy" / ADAPTER))
    torch.testing.assert_close(log_probs(adapted.get_base_model()), expected, atol=1e-5, rtol=0)
    again = PretrainedModel(str(tmp_path / "policy")).build((), 0)
    assert again.markers == module.language.markers
    torch.testing.assert_close(log_probs(again.model), expected, atol=1e-5, rtol=0)


def test_a_frozen_base_may_be_coarse_but_trained_weights_may_not(
    folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"policy\.dtype is bfloat16, but lora is null"):
        StarPO(policy=PretrainedModel(str(folder), dtype="bfloat16"))
    module = StarPO(
        policy=PretrainedModel(str(folder), dtype="bfloat16"),
        optimization=Optimization(lr=1e-3, warmup_iterations=0),
        lora=LoRA(),
    )
    module.vocabulary = []
    fit(module, tmp_path, 1)
    export_policy(module.language, tmp_path / "policy")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "policy", dtype="auto")
    assert again.dtype is torch.bfloat16, "the exported configuration says what the weights are"
    types = {p.dtype for p in module.parameters() if p.requires_grad}
    assert types == {torch.float32}
    assert module.language.model.get_input_embeddings().weight.dtype is torch.bfloat16


def test_wrong_layers_and_sizes_are_named(folder: Path) -> None:
    language = PretrainedModel(str(folder)).build((), 0)
    with pytest.raises(ValueError, match=r"lora\.target_modules is \('no_such',\)"):
        LoRA(target_modules=("no_such",)).attach(language.model, 0)
    with pytest.raises(ValueError, match=r"lora\.rank is 0"):
        LoRA(rank=0)
    with pytest.raises(ValueError, match=r"target_modules is empty"):
        LoRA(target_modules=())


def adapted_layers(folder: Path, others: dict[str, LoraConfig]) -> tuple[Any, Any]:
    """Return one of a model's layers, whose adapters have an effect, and its copy as the library
    computes it."""
    model = plain_model(folder)
    adapted = LoRA(rank=4, alpha=8).attach(model, 0)
    for name, config in others.items():
        adapted.add_adapter(name, config)
    layer: Any = model.get_submodule("model.layers.0.mlp.up_proj")
    for up in layer.lora_B.values():
        torch.nn.init.normal_(up.weight)
    assert type(layer) is FusedLoraLinear
    other: Any = copy.deepcopy(layer)
    other.__class__ = LoraLinear
    return layer, other


def test_a_layer_with_an_adapter_computes_what_the_library_does(folder: Path) -> None:
    layer, other = adapted_layers(folder, {})
    x = torch.randn(2, 5, layer.in_features)
    torch.testing.assert_close(layer(x), other(x), atol=1e-5, rtol=1e-5)
    for each in (layer, other):
        each(x).square().sum().backward()
    for name, weight in layer.named_parameters():
        torch.testing.assert_close(weight.grad, other.get_parameter(name).grad)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer(x), other(x)), "rounded where the library rounds"
    low = x.bfloat16()
    assert torch.equal(layer.bfloat16()(low), other.bfloat16()(low))


def test_a_layer_that_was_changed_computes_as_the_library(folder: Path) -> None:
    config = LoraConfig(r=2, lora_alpha=4, lora_dropout=0.5, target_modules=["up_proj"])
    layer, other = adapted_layers(folder, {"doubtful": config})
    x = torch.randn(3, layer.in_features)
    adapted, plain = layer(x), layer.base_layer(x)
    assert not torch.allclose(adapted, plain)
    for names in ("doubtful", ["default", "doubtful"], "unknown", "default"):
        found = []
        for each in (layer, other):
            each.set_adapter(names)
            torch.manual_seed(0)
            found.append(each(x))
        torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)
    layer.enable_adapters(False)
    assert torch.equal(layer(x), plain)
    layer.enable_adapters(True)
    layer.merge()
    torch.testing.assert_close(layer(x), adapted, atol=1e-5, rtol=1e-5)
    layer.unmerge()
    assert layer(x[:0]).shape == (0, layer.out_features)


@pytest.mark.parametrize("inner", ["base_layer", "lora_A.default", "lora_B.default"])
def test_a_hook_inside_a_layer_sees_what_passes(folder: Path, inner: str) -> None:
    layer, other = adapted_layers(folder, {})
    seen = list[Tensor]()
    x, part = torch.randn(3, layer.in_features), layer.get_submodule(inner)
    handle = part.register_forward_hook(lambda _part, _given, result: seen.append(result))
    assert torch.equal(layer(x), other(x))
    assert len(seen) == 1
    handle.remove()
    layer(x)
    assert len(seen) == 1


def test_layers_with_transposed_weights_take_adapters() -> None:
    """GPT-2's; the library adapts them by the class that it has for linear layers."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": 60,
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 2,
        "n_positions": 32,
    }
    config = GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    model = AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    before = log_probs(model)
    LoRA(rank=2, alpha=4).attach(model, 0)
    model.eval()
    torch.testing.assert_close(log_probs(model), before)
