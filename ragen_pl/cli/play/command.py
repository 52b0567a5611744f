"""The command ``run.py play``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.configured_parts import ConfiguredParts, configured_parts
from ragen_pl.cli.loaded_policy import LoadedPolicy, policy_of_checkpoint, untrained_policy
from ragen_pl.cli.play.game import Game
from ragen_pl.cli.play.players import ActorPlayer, GamePlayer, Person, PolicyPlayer
from ragen_pl.cli.play.screen import Screen
from ragen_pl.cli.play.session import Pace, Session
from ragen_pl.cli.play.starts import Starts
from ragen_pl.envs.boundary import EnvError
from ragen_pl.errors import ConfigError
from ragen_pl.models.base import LanguageModel, PolicyModel
from ragen_pl.models.embedded import EmbeddedModel
from ragen_pl.rollout.actors import ExpertActor, RandomActor
from ragen_pl.rollout.chat import Chat
from ragen_pl.rollout.config import RolloutConfig
from ragen_pl.training.datamodule import RolloutDataModule
from ragen_pl.training.run_folder import CHECKPOINTS, CONFIG, LAST

_DESCRIPTION = """\
Play an environment in the terminal, or watch a policy play it.

  run.py play --config sokoban.yaml                    play yourself
  run.py play --config sokoban.yaml --ckpt_path last   watch the policy of its run
  run.py play runs/sokoban                             watch the policy of a run folder
  run.py play --config sokoban.yaml --player expert    watch the expert

Takes the configs and options of fit besides those below. While it runs, /help lists what one may
type.
"""
_PLAYERS = ("person", "policy", "expert", "random")
_ACTORS = {"expert": ExpertActor, "random": RandomActor}


def _parser() -> CommandParser:
    parser = CommandParser("play", _DESCRIPTION)
    parser.add_argument(
        "--player",
        choices=_PLAYERS,
        help="who plays (default: policy if a run or --ckpt_path is given, else person); policy "
        "without a checkpoint is the untrained one",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the first start, or its place in --eval_set (default: 0)",
    )
    parser.add_argument("--eval_set", help="name of the evaluation set whose starts are played")
    parser.add_argument("--games", type=int, help="number of games (default: until you quit)")
    parser.add_argument(
        "--delay", type=float, help="seconds between turns (default: Enter goes on)"
    )
    parser.add_argument(
        "--temperature", type=float, help="of the policy (default: data.evaluation.temperature)"
    )
    parser.add_argument(
        "--view",
        choices=("board", "prompt"),
        default="board",
        help="show the board, or the prompt that the agent is shown (default: board)",
    )
    return parser


def play(argv: Sequence[str]) -> None:
    """Play, or show a policy playing.

    Args:
        argv: Arguments after ``play``, with paths in place of the names of configs.

    Raises:
        ConfigError: when the configuration or an option is wrong.
    """
    options, rest = _parser().parse_before_keys(list(argv))
    _check(options)
    parts = configured_parts(_with_run(rest))
    data = parts.datamodule
    given = options.temperature
    temperature = data.evaluation.temperature if given is None else given
    starts = Starts(data, options.eval_set, temperature)
    found = parts.checkpoint()
    name = options.player or ("person" if found is None else "policy")
    policy = None
    if name == "policy":
        policy = untrained_policy(parts) if found is None else policy_of_checkpoint(parts, *found)
    screen = Screen.on_stdout(shows_prompt=options.view == "prompt")
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    games = options.games
    if games is None and name != "person" and not is_interactive:
        games = 1
    chat = _chat(parts, policy, screen, options.eval_set)
    rollout = _rollout(data, options.eval_set)
    if policy is None:  # no model's context limits who writes answers
        rollout = replace(
            rollout,
            max_context=max(rollout.max_context, 1 << 20),
            memory=rollout.memory.without_summaries,
        )
    session = Session(
        screen,
        lambda number, attempt: Game(starts.at(number), chat, rollout, attempt),
        Pace(options.delay, is_interactive),
    )
    player: GamePlayer
    if policy is not None:
        sampler = policy.sampler(rollout.max_context, parts.model.seed)
        player = PolicyPlayer(sampler, temperature)
        screen.say(f"policy: {policy.source}, temperature {temperature:g}")
    elif name == "person":
        player = Person(session.ask, screen.say)
    else:
        player = ActorPlayer(_ACTORS[name]())
    try:
        session.run(player, name, options.seed, games)
    except EnvError as error:
        raise ConfigError(f"data.env: {error}") from error


def _rollout(data: RolloutDataModule, eval_set: str | None) -> RolloutConfig:
    """Return the limits of a game: of training, in the first environment of a mixture, unless an
    evaluation set is played."""
    if eval_set is None:
        return next(iter(data.rollout_in.values()))
    return data.dialogues.rollout_on(eval_set)


def _check(options: Any) -> None:
    for name, least in (("seed", 0), ("games", 1), ("delay", 0), ("temperature", 0)):
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise ConfigError(f"--{name} is {value}; it must be {least} or more")


def _with_run(rest: Sequence[str]) -> list[str]:
    """Replace the folder of a run by its configuration and its last checkpoint.

    The folder is the first argument that is no option and not the value of ``--config``.
    """
    configs = 0
    while rest[configs : configs + 1] == ["--config"]:
        configs += 2
    if configs >= len(rest) or rest[configs].startswith("-"):
        return list(rest)
    folder, others = Path(rest[configs]), [*rest[:configs], *rest[configs + 1 :]]
    if folder.suffix == ".ckpt" and folder.exists():
        raise ConfigError(
            f"play is given the checkpoint {folder}: give the folder of its run, or --config, and "
            f"--ckpt_path {folder}"
        )
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"play is given {folder}, which is no run: there is no {folder / CONFIG}\n"
            "  give the folder of a run, or --config"
        )
    chosen = any(arg.partition("=")[0] == "--ckpt_path" for arg in others)
    checkpoint = [] if chosen else ["--ckpt_path", str(folder / CHECKPOINTS / f"{LAST}.ckpt")]
    return ["--config", str(folder / CONFIG), "--run_dir", str(folder), *others, *checkpoint]


def _chat(
    parts: ConfiguredParts, policy: LoadedPolicy | None, screen: Screen, eval_set: str | None
) -> Chat:
    """Return the chat protocol with the tokenizer of the policy or, if nobody needs the model's
    weights, of the configured model."""
    language = _tokenizer_of(parts, screen) if policy is None else policy.language
    data = parts.datamodule
    actions = data.dialogues.max_actions_per_turn
    if eval_set is not None:
        actions = data.dialogues.actions_per_turn_on(eval_set)
    try:
        return Chat(data.prompts, language.tokenizer, language.markers, actions)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _tokenizer_of(parts: ConfiguredParts, screen: Screen) -> LanguageModel:
    model: PolicyModel = parts.model.trainable.policy
    pieces = list(parts.datamodule.vocabulary())
    try:
        return model.build_without_weights(pieces)
    except ValueError:  # a model that is not on this machine is no reason not to play
        screen.say("the model's tokenizer is not on this machine: prompts have other markers")
        return EmbeddedModel().build_without_weights(pieces)
