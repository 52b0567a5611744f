"""The command ``run.py check-env``: the contract kit on an environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from ragen_pl.cli.command_parser import CommandParser, seconds
from ragen_pl.cli.config.files import DOCTOR, shown_command
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.cli.findings_page import print_findings
from ragen_pl.cli.given_env import env_of_class
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract_kit import examine_env
from ragen_pl.envs.contract_kit.subject import SECONDS
from ragen_pl.errors import ConfigError
from ragen_pl.rollout.prompts import check_actions
from ragen_pl.runtime.findings import CheckFinding, failure, note

_DESCRIPTION = """\
Examine an environment, in a few seconds: starts, noise, states, copies, processes, hostile answers,
speed, expert, random play, rewards. The exit status is 1 if something has failed.

  check-env --env my_envs.Mine --env.size 6     one environment, with keys of its own
  check-env --config sokoban                    all environments of a configuration
"""


def check_env(argv: Sequence[str]) -> int:
    """Print one line per check of each environment, with what is wrong and how to mend it.

    Args:
        argv: Arguments after ``check-env``, with paths in place of the names of configs.

    Returns:
        The exit status: 1 if a check has failed, else 0.
    """
    parser = CommandParser("check-env", _DESCRIPTION)
    parser.add_argument("--env", metavar="CLASS", help="class of the environment (--env.KEY: keys)")
    parser.add_argument("--json", action="store_true", help="print JSON, for other programs")
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=SECONDS,
        help="time after which a check of a slow environment tries no further start; half of it "
        "for further environments of a class",
    )
    options, rest = parser.parse_before_keys(list(argv))
    if options.env is not None:
        envs: Mapping[str, TextEnv] = {"env": env_of_class(options.env, rest)}
        return print_findings(_examined(envs, options.seconds), as_json=options.json)
    envs = _configured(rest)
    found = chain(_examined(envs, options.seconds), [_unmeasured(rest)])
    return print_findings(found, as_json=options.json)


def _unmeasured(argv: Sequence[str]) -> CheckFinding:
    """Return the note on what needs a tokenizer, which an environment alone does not have.

    Args:
        argv: Configs and options of the configuration.
    """
    told = note(
        "whether prompts fit into data.rollout.max_context and the expert's answers into "
        "data.rollout.max_response_tokens is not measured here",
        "doctor measures them:",
        shown_command(DOCTOR, argv),
    )
    return CheckFinding("lengths", told, 0.0)


def _examined(envs: Mapping[str, TextEnv], seconds: float) -> Iterator[CheckFinding]:
    """Examine environments; of one class, such as those of evaluation sets, the first has the whole
    time for each check and further ones half of it."""
    seen = set[type[TextEnv]]()
    for key, env in envs.items():
        allowed = seconds / 2 if type(env) in seen else seconds
        seen.add(type(env))
        yield from _read_actions(key, env)
        for line in examine_env(env, key, allowed):
            yield replace(line, subject=f"{key} ({type(env).__name__})")


def _read_actions(key: str, env: TextEnv) -> Iterator[CheckFinding]:
    """Yield a failure if the answer format of a run could not hold the names of actions."""
    try:
        actions: object = env.actions
    except Exception:  # the boundary to user code: the contract has its own words for it
        return
    if not isinstance(actions, tuple) or not all(isinstance(each, str) for each in actions):
        return
    try:
        check_actions({key: env})
    except ValueError as error:
        text = str(error).removeprefix("data.")
        found = failure(text, "rename the action")
        yield CheckFinding("actions", found, 0.0, f"{key} ({type(env).__name__})")


def _configured(argv: Sequence[str]) -> Mapping[str, TextEnv]:
    """Return the environments of a configuration by key."""
    if not argv:
        raise ConfigError(
            "check-env is given no environment; give a class, such as "
            "check-env --env ragen_pl.envs.Sokoban, or a configuration, such as --config sokoban"
        )
    return ExaminedRun(argv).envs
