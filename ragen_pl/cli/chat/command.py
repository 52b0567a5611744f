"""The command ``run.py chat``."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ragen_pl.cli.chat.conversation import ContextFullError, Conversation, TokenText
from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.config.files import PLAY, shown_command
from ragen_pl.cli.loaded_policy import LoadedPolicy, find_policy
from ragen_pl.errors import ConfigError
from ragen_pl.models.embedded import is_embedded
from ragen_pl.rollout.chat import Chat
from ragen_pl.runtime.visible_text import visible
from ragen_pl.training.run_folder import BEST, CONFIG, LAST, POLICY

_DESCRIPTION = """\
Talk to a policy in its own chat template.

  run.py chat runs/sokoban                  the last policy of a run (--policy best: the best one)
  run.py chat runs/sokoban/checkpoints/last.ckpt
  run.py chat FOLDER                        of Hugging Face, or of adapters

A run's policy gets the run's system message and forced opening tag, unless --system and --opening
say otherwise. While it runs:
"""
_COMMANDS = {
    "/system TEXT": "another system message, and a new dialogue",
    "/temperature T": "another temperature; 0 takes the likeliest token",
    "/reset": "a new dialogue",
    "/think": "show raw tokens, special ones among them, or not",
    "/help": "this list",
    "/quit": "the end",
}
_DEFAULT_CONTEXT, _FIRST_SEED = 4096, 0


def _parser() -> CommandParser:
    parser = CommandParser("chat", _DESCRIPTION + _help())
    parser.add_argument("place", metavar="RUN", type=Path, help="run, checkpoint or folder")
    parser.add_argument("--policy", choices=(LAST, BEST), help="of a run; last by default")
    parser.add_argument("--system", help="system message (default: the run's, or none)")
    parser.add_argument("--opening", help="text that begins each response in the policy's place")
    parser.add_argument("--temperature", type=float, default=1.0, help="(default: 1)")
    parser.add_argument(
        "--max_new_tokens", type=int, default=512, help="of one response (default: 512)"
    )
    parser.add_argument("--seed", type=int, default=_FIRST_SEED, help="of the sampling noise")
    return parser


def _help() -> str:
    return "\n".join(f"  {name:<16}{text}" for name, text in _COMMANDS.items())


def chat(argv: Sequence[str]) -> None:
    """Talk to a policy until ``/quit`` or the end of the input.

    Args:
        argv: Arguments after ``chat``.

    Raises:
        ConfigError: when there is no policy, or an option is wrong.
    """
    options = _parser().parse_args(list(argv))
    _check_temperature("--temperature", options.temperature)
    if options.max_new_tokens < 1:
        raise ConfigError(f"--max_new_tokens is {options.max_new_tokens}; it must be at least 1")
    policy = find_policy(options.place, options.policy)
    policy, system, opening = _protocol(policy)
    if is_embedded(policy.language.tokenizer):
        print(_about_embedded(options.place))
    _Dialogue(
        policy,
        system=system if options.system is None else options.system,
        opening=opening if options.opening is None else options.opening,
        options=options,
    ).run()


def _about_embedded(place: Path) -> str:
    """Return a line on what an embedded model can be asked.

    Args:
        place: The run, or a folder or checkpoint in it.
    """
    folders = (place, *place.parents)
    runs = (each for each in folders if (each / CONFIG).is_file() and (each / POLICY).is_dir())
    run = visible(shown_command(PLAY, [str(next(runs, "RUN"))]))
    return (
        "an embedded model: it has only learned its environment's texts, and answers free "
        f"questions with strings of words; to see what it can do, type in a shell: {run}"
    )


def _check_temperature(key: str, value: float) -> None:
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{key} is {value}; it must be 0 (greedy) or more")


def _protocol(policy: LoadedPolicy) -> tuple[LoadedPolicy, str, str]:
    """Return a policy with the markers of its run, the run's system message and its opening, which
    are empty for other policies; where they depend on the start, those of seed 0, and in a
    mixture those of the first environment."""
    parts = policy.parts
    if parts is None:
        return policy, "", ""
    data, language = parts.datamodule, policy.language
    env = copy.deepcopy(data.env)
    env.reset(seed=_FIRST_SEED)
    try:
        protocol = Chat(
            data.prompts, language.tokenizer, language.markers, data.dialogues.max_actions_per_turn
        )
        markers = protocol.markers_for(env)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    policy = replace(policy, language=replace(language, markers=markers))
    return policy, protocol.system_text(env), protocol.opening_tag


class _Dialogue:
    """The loop of a dialogue on the terminal."""

    def __init__(self, policy: LoadedPolicy, *, system: str, opening: str, options: Any) -> None:
        self.policy, self.system, self.opening = policy, system, opening
        self.temperature: float = options.temperature
        self.max_new_tokens: int = options.max_new_tokens
        self.raw, self._number = False, -1
        limit = policy.language.context_limit or _DEFAULT_CONTEXT
        self.max_context = min(limit, _DEFAULT_CONTEXT)
        self._generate = policy.sampler(self.max_context, options.seed)
        self._restart()

    def _restart(self) -> None:
        self._number += 1
        self.conversation = Conversation(
            self.policy.language,
            self._generate,
            self.max_context,
            system=self.system,
            opening=self.opening,
            number=self._number,
        )

    def run(self) -> None:
        """Talk until ``/quit`` or the end of the input."""
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:  # an encoding without these characters must not end it
            reconfigure(errors="replace")
        print(f"{visible(self.policy.source)}, temperature {self.temperature:g}; /help, /quit")
        while True:
            try:
                line = input("you> ")
            except EOFError:
                print()
                return
            if not sys.stdin.isatty():
                print(visible(line))  # a pipe has no echo
            if line.strip() == "/quit":
                return
            if line.startswith("/"):
                self._obey(line.strip())
            elif line.strip():
                self._answer(line)

    def _obey(self, line: str) -> None:
        command, _, rest = line.partition(" ")
        if command == "/system":
            self.system = rest.strip()
            self._restart()
        elif command == "/temperature":
            try:
                value = float(rest)
                _check_temperature(command, value)
            except ValueError:  # a ConfigError is one
                print(f"{command} takes a number, 0 or more")
                return
            self.temperature = value
        elif command == "/reset":
            self._restart()
        elif command == "/think":
            self.raw = not self.raw
            print(f"raw tokens are {'shown' if self.raw else 'hidden'}")
        else:
            print(_help())

    def _answer(self, message: str) -> None:
        """Show the response as it is sampled; Ctrl-C cuts it off."""
        conversation = self.conversation
        before, text = len(conversation.context), TokenText(self.policy.language, raw=self.raw)
        tokens = conversation.say(
            message, temperature=self.temperature, max_new_tokens=self.max_new_tokens
        )
        is_first = True
        try:
            for token in tokens:
                if is_first:
                    is_first = False
                    self._begin(before)
                print(visible(text.add(token)), end="", flush=True)
            print(visible(text.rest()))
        except ContextFullError:
            print(f"the dialogue is full ({self.max_context} tokens): /reset begins another")
        except KeyboardInterrupt:
            print(" …")

    def _begin(self, before: int) -> None:
        """Show what a response begins with: its raw prompt, or the forced opening."""
        if self.raw:
            prompt = self.conversation.context[before:-1]
            print(visible(str(self.policy.language.tokenizer.decode(prompt))), end="")
        else:
            print(f"policy> {visible(self.opening)}", end="")
