"""``run.py chat``: streamed, token in and token out, with every kind of policy."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from ragen_pl.cli.chat.conversation import ContextFullError, Conversation, TokenText
from ragen_pl.cli.config.files import shown_command
from ragen_pl.cli.entry_point import main
from ragen_pl.cli.loaded_policy import find_policy
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.models.message_markers import encode_segments
from ragen_pl.types import EpisodeId, Request, Sampling
from tests.support.templates import TEMPLATES, save_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("policy"))


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Return a function that runs the command with typed lines and returns what it printed."""

    def run(place: Path, typed: str, *options: str) -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        status = main(["chat", str(place), "--max_new_tokens=6", *options])
        printed = capsys.readouterr()
        assert "\x1b" not in printed.out
        return printed.out if status == 0 else printed.err

    return run


def converse(folder: Path, max_context: int = 400) -> Conversation:
    policy = find_policy(folder)
    return Conversation(policy.language, policy.sampler(max_context), max_context, system="Be.")


def test_tokens_are_those_of_one_call_to_the_sampler_when_greedy(folder: Path) -> None:
    conversation = converse(folder)
    streamed = list(conversation.say("Up?", temperature=0.0, max_new_tokens=12))
    policy = find_policy(folder)
    markers = policy.language.markers
    (prompt,) = encode_segments(policy.language.tokenizer, [markers.first("Be.", "Up?")])
    request = Request(prompt, EpisodeId(0, 0, 0), 0)
    (completion,) = policy.sampler(400)([request], Sampling(0.0, 12))
    assert tuple(streamed) == completion.token_ids
    assert tuple(conversation.context) == prompt + completion.token_ids


def test_the_context_only_grows_and_closes_what_was_cut_off(folder: Path) -> None:
    conversation = converse(folder)
    markers, tokenizer = conversation.language.markers, conversation.language.tokenizer
    first = list(conversation.say("Up?", temperature=1.0, max_new_tokens=3))
    before = list(conversation.context)
    list(conversation.say("And?", temperature=1.0, max_new_tokens=2))
    closing = () if first[-1] == markers.end else (markers.end,)
    (later,) = encode_segments(tokenizer, [(*closing, *markers.later("And?"))])
    assert conversation.context[: len(before)] == before
    assert tuple(conversation.context[len(before) :][: len(later)]) == later


def test_a_full_context_is_told(folder: Path) -> None:
    conversation = converse(folder, max_context=40)
    with pytest.raises(ContextFullError):
        list(conversation.say("word " * 50, temperature=1.0, max_new_tokens=3))
    assert conversation.context == []


def test_characters_of_several_tokens_come_out_whole(folder: Path) -> None:
    language = find_policy(folder).language
    text = TokenText(language, raw=False)
    ids = language.tokenizer("√漢🧊 ok", add_special_tokens=False)["input_ids"]
    pieces = [text.add(token) for token in ids] + [text.rest()]
    assert "".join(pieces) == "√漢🧊 ok"
    assert all("�" not in piece for piece in pieces)


def test_commands_change_what_follows(talk, folder: Path) -> None:  # type: ignore[no-untyped-def]
    typed = "hi\n/think\n/system Be brief.\n/temperature 0\nhi\n/temperature hot\n/x\n/quit\nno\n"
    text = talk(folder, typed, "--system=Be.")
    assert "policy> " in text
    assert "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>" in text
    assert "Be.<|im_end|>" not in text  # raw text came later
    assert "takes a number" in text
    assert "/reset" in text
    assert not text.rstrip().endswith("no")


def test_adapters_are_joined_to_their_base(talk, folder: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    base = AutoModelForCausalLM.from_pretrained(folder)
    adapted = get_peft_model(base, LoraConfig(target_modules="all-linear", r=2))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.05)
    adapted.save_pretrained(str(tmp_path / "adapter"))
    plain = find_policy(folder).language.model.state_dict()
    joined = find_policy(tmp_path / "adapter").language.model.state_dict()
    assert plain.keys() == joined.keys()
    assert any(not torch.equal(plain[name], joined[name]) for name in plain)
    assert "policy> " in talk(tmp_path / "adapter", "hi\n")


def test_a_runs_policy_has_the_runs_template_options(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    save_model(run_dir / "policy" / "last", template=TEMPLATES["thoughts dropped"])
    own = find_policy(run_dir).language.markers
    (run_dir / "config.yaml").write_text(
        "model: {policy: {class_path: PretrainedModel, init_args: {path: nowhere, "
        "template_options: {enable_thinking: false}}}}\n"
        "data: {env: {class_path: ragen_pl.envs.Bandit}, "
        "eval_sets: {default: {class_path: ragen_pl.envs.Bandit}}}\n"
    )
    asked = find_policy(run_dir).language.markers
    assert len(asked.later("x")) > len(own.later("x")), "an empty thought is written for it"


def test_which_policy_is_asked_of_a_run_alone(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"--policy is best, but .* is no folder of a run"):
        find_policy(folder, "best")


def test_a_damaged_policy_of_a_run_is_told_with_the_sound_one(talk, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    for name in ("last", "best"):
        save_model(tmp_path / "policy" / name)
    weights = tmp_path / "policy" / "last" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:500])
    text = talk(tmp_path, "")
    assert "whose weights are damaged" in text
    assert text.endswith("\n  best is sound: --policy best\n")
    assert "policy> " in talk(tmp_path, "hi\n", "--policy", "best")


def test_an_embedded_model_is_told_to_be_one(talk, folder: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    run_dir = tmp_path / "run"
    last = run_dir / "policy" / "last"
    model = EmbeddedModel(hidden_size=32, intermediate_size=32, num_layers=1, num_heads=2)
    language = model.build(["Up"], 0)
    language.model.save_pretrained(last)
    language.tokenizer.save_pretrained(last)
    first, second, *_ = talk(last, "hi\n").splitlines()
    assert first.startswith("an embedded model: it has only learned its environment's texts")
    assert first.endswith(" play RUN")
    assert second.endswith("/help, /quit")
    (run_dir / "config.yaml").write_text(
        "data: {env: {class_path: ragen_pl.envs.Bandit}, "
        "eval_sets: {default: {class_path: ragen_pl.envs.Bandit}}}\n"
    )
    for place in (run_dir, last):
        first, *_ = talk(place, "hi\n").splitlines()
        assert first.endswith(f"type in a shell: {shown_command('play', [str(run_dir)])}")
    assert "embedded" not in talk(folder, "hi\n")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sytem", "x"], "chat: unknown option --sytem; did you mean --system?"),
        (["other"], "chat: other is one argument too many"),
        (["--system"], "chat: --system is given no value"),
    ],
)
def test_wrong_options_are_one_line(talk, tmp_path: Path, options: list[str], told: str) -> None:  # type: ignore[no-untyped-def]
    text = talk(tmp_path, "", *options)
    assert text.startswith(f"error: {told}")
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "told"), [("nowhere", "does not exist"), (".", "holds no policy")]
)
def test_no_policy_is_one_line(talk, tmp_path: Path, place: str, told: str) -> None:  # type: ignore[no-untyped-def]
    text = talk(tmp_path / place, "")
    assert text.startswith("error: ")
    assert told in text
    assert len(text.splitlines()) == 1
