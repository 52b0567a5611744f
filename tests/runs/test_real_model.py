"""A whole run with a real model: SmolLM2-135M-Instruct plays and learns Sokoban."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from ragen_pl.algorithms.config import Algorithm, KLPenalty
from ragen_pl.algorithms.estimators import GRPO
from ragen_pl.algorithms.optimization import Optimization
from ragen_pl.envs import Sokoban
from ragen_pl.models import LanguageModel, PretrainedModel
from ragen_pl.models.chat_template import ChatTemplate, conversation
from ragen_pl.models.kernels.last_layer import enable_gather
from ragen_pl.models.kernels.rms_norm import use_fused_rms_norm
from ragen_pl.models.lora import LoRA
from ragen_pl.models.policy import Policy
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.collect import GroupSeed, collect
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.rollout.engines.in_process import InProcessSampler
from ragen_pl.rollout.packing import pack
from ragen_pl.rollout.prompts import Prompts
from ragen_pl.training.starpo import StarPO
from ragen_pl.types import Sampling, TrajectoryGroup
from tests.support.smollm2 import obtain_smollm2
from tests.support.tiny_run import ROOT, run_process

pytestmark = pytest.mark.real_model

CONFIG = RolloutConfig(
    group_size=2, max_turns=2, max_response_tokens=24, max_context=400, max_actions_per_turn=2
)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """The model as a plain Hugging Face folder, kept in pytest's cache."""
    return obtain_smollm2(request.config.cache.mkdir("smollm2"))  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def language(folder: Path) -> LanguageModel:
    return PretrainedModel(str(folder)).build((), 0)


def play(language: LanguageModel, config: RolloutConfig = CONFIG) -> list[TrajectoryGroup]:
    """Collect two groups with the cached engine, in the model's own template."""
    chat = Chat(Prompts(), language.tokenizer, language.markers, config.max_actions_per_turn)
    engine = InProcessSampler(
        language.model, stop_id=language.markers.end, seed=0, max_context=config.max_context
    )
    sampling = Sampling(1.0, config.max_response_tokens)
    starts = [GroupSeed(0, 3), GroupSeed(1, 4)]
    return collect(Sokoban(), starts, chat, engine, config, iteration=0, sampling=sampling)


def score(policy: Policy, groups: list[TrajectoryGroup]) -> tuple[Tensor, Tensor]:
    """Return sampled and recomputed log-probs of the sampled tokens."""
    members = [t for group in groups for t in group.trajectories]
    batch = pack(members, weights=[1.0] * len(members))
    with torch.no_grad():
        found = policy(batch.input_ids, batch.loss_mask, batch.attention_mask).log_probs
    return batch.sampled_log_probs[batch.loss_mask], found[batch.loss_mask]


def test_it_responds_in_its_own_template(language: LanguageModel) -> None:
    chat = Chat(Prompts(), language.tokenizer, language.markers, 1)
    question = "What is the capital of France?"
    parts = language.markers.first("You are a helpful assistant.", question)
    (ids,) = chat.encode_parts([parts])
    template = ChatTemplate(language.tokenizer, {})
    text = template.render(conversation("You are a helpful assistant.", [], question))
    assert list(ids) == language.tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = language.model.generate(  # type: ignore[operator]
        torch.tensor([ids]), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    assert "Paris" in chat.decode(answer[0, len(ids) :].tolist())


def test_sampled_and_recomputed_log_probs_agree(language: LanguageModel) -> None:
    groups = play(language)
    turns = [turn for g in groups for t in g.trajectories for turn in t.turns]
    assert len({turn.response for turn in turns}) > len(turns) // 2
    sampled, recomputed = score(Policy(language.model), groups)
    gap = float((sampled - recomputed).abs().max())
    print(f"largest gap between sampled and recomputed log-probs: {gap:.2g}")
    assert gap < 1e-4
    assert -8 < float(sampled.mean()) < -0.1, "neither noise nor a constant"


def test_the_whole_run_through_the_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One iteration of ``fit`` with adapters and KL; then checkpoint, adapter and export."""
    from ragen_pl.cli.entry_point import main

    monkeypatch.chdir(tmp_path)
    options = {
        "model.policy.path": folder,
        "model.lora.rank": 4,
        "model.optimization.lr": 1e-3,
        "data.rollout.num_groups": 2,
        "data.rollout.group_size": 2,
        "data.rollout.max_turns": 2,
        "data.rollout.max_response_tokens": 16,
        "data.rollout.max_context": 400,
        "data.evaluation.size": 1,
        "results.temperatures": "[0.5]",
        "filter.include_zero": "true",
        "trainer.max_epochs": 1,
        "trainer.precision": "32-true",
        "trainer.limit_val_batches": 0,
        "threads": 1,
        "model.algorithm.kl": "{coef: 0.001}",
    }
    names = ["sokoban", "qwen2.5-0.5b", "lora", "grpo"]
    configs = [word for name in names for word in ("--config", name)]
    assert main(["fit", *configs, *(f"--{key}={value}" for key, value in options.items())]) == 0
    run = tmp_path / "runs/sokoban"
    history = json.loads((run / "results.json").read_text())["history"]
    assert history["train/skipped_steps"][-1] == 0
    assert history["train/log_prob_gap"][-1] < 1e-4
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    held = checkpoint["state_dict"]
    assert held
    assert all("lora_" in name for name in held), "the base is not saved again"
    trained = {n: w for n, w in held.items() if n.startswith("policy.") and "lora_B" in n}
    assert any(bool(weight.any()) for weight in trained.values()), "a step was taken"
    check_export(run / "policy/last", folder, held)


def check_export(exported: Path, folder: Path, held: dict[str, Any]) -> None:
    """Plain transformers loads what was exported, and it is base and adapters together."""
    module = StarPO(
        policy=PretrainedModel(str(folder)),
        algorithm=Algorithm(advantage=GRPO(), kl=KLPenalty()),
        optimization=Optimization(),
        lora=LoRA(rank=4, alpha=64),
    )
    module.vocabulary = []
    module.configure_model()
    assert module.reference is not None
    base = AutoModelForCausalLM.from_pretrained(folder)
    # As what learns beside it is: thirty layers add up their rounding.
    use_fused_rms_norm(base)
    enable_gather(base)  # without it, prompts are not shared
    module.load_state_dict(held, strict=False)
    groups = play(module.language)
    sampled, trained = score(module.policy, groups)
    torch.testing.assert_close(sampled, trained, atol=1e-4, rtol=0)
    _, from_base = score(Policy(base), groups)
    assert float((from_base - sampled).abs().max()) > 1e-3, "the adapters reach the sampler"
    _, from_reference = score(module.reference, groups)
    torch.testing.assert_close(from_reference, from_base, atol=1e-5, rtol=0)
    plain = AutoModelForCausalLM.from_pretrained(exported)
    assert AutoTokenizer.from_pretrained(exported).chat_template
    _, from_export = score(Policy(plain), groups)
    torch.testing.assert_close(from_export, trained, atol=1e-4, rtol=0)


SHORTER = (
    *("--trainer.max_epochs=1", "--trainer.check_val_every_n_epoch=1", "--threads=1"),
    *("--data.rollout.num_groups=1", "--data.rollout.group_size=4", "--data.evaluation.size=2"),
    *("--results.temperatures=[1.0]", "--filter.include_zero=true"),
)


def test_the_pages_recipe_runs_as_it_is_written(folder: Path, tmp_path: Path) -> None:
    """Fetch, a dialogue, a run, its report, and a dialogue with what it exported, which was once
    refused: its log-probs round worse than those of the model that was fetched."""
    page = (ROOT / "docs/real_model.md").read_text(encoding="utf-8")
    found = re.search(r"## Ten minutes\n+```bash\n(.*?)```", page, re.DOTALL)
    assert found
    text = found[1].replace("\\\n", " ")
    lines = [line for line in text.splitlines() if "run.py" in line]
    (tmp_path / "models").mkdir()
    (tmp_path / "models/smollm2-135m").symlink_to(folder)
    program = shlex.join([sys.executable, str(ROOT / "run.py")])
    said: dict[str, list[str]] = {}
    for line in lines:
        (name,) = re.findall(r"run\.py (\w+)", line)
        line = line.replace("python run.py", program)
        line += " " + shlex.join(SHORTER) if name == "fit" else ""
        done = run_process(["bash", "-c", f"set -o pipefail; {line}"], tmp_path)
        assert done.returncode == 0, (line, done.stderr[-2000:])
        said.setdefault(name, []).append(done.stdout)
    assert list(said) == ["fetch", "chat", "fit", "report"]
    before, after = said["chat"]
    assert "policy> The capital of France is Paris." in before
    assert re.search(r"policy> \S", after)
    assert (tmp_path / "runs/bandit_smollm2/report.html").is_file()
