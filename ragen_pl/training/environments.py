"""The environments of a run by name and by key: which are trained in, and checks of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract.declared import check_declared
from ragen_pl.rollout.prompts import Prompts, check_actions, check_tools


def training_envs(env: TextEnv | None, envs: Mapping[str, TextEnv | None]) -> dict[str, TextEnv]:
    """Return the environments to train in by name; a single one has the name ``""``.

    Raises:
        ValueError: unless there is either one environment or a mixture of at least two.
    """
    mixed = {name: each for name, each in envs.items() if each is not None}
    if env is not None and mixed:
        raise ValueError(
            f"data.env is {type(env).__name__}, but data.envs has {', '.join(mixed)}: set data.env "
            "to null, or leave data.envs out"
        )
    if env is not None:
        return {"": env}
    if not mixed:
        raise ValueError(
            "data.env must be set: give a config first, such as --config sokoban.yaml; or name the "
            "environment to train in, or several in data.envs"
        )
    if len(mixed) == 1:
        (name,) = mixed
        raise ValueError(f"data.envs has {name} alone, which is no mixture: set data.env to it")
    for name in mixed:
        if not name or "/" in name or name != name.strip():
            raise ValueError(f"data.envs has the name {name!r}; it must be a word without a slash")
    return mixed


def key_of(name: str) -> str:
    """Return the key of an environment to train in, by its name."""
    return f"data.envs.{name}" if name else "data.env"


def envs_by_key(
    envs: Mapping[str, TextEnv], eval_sets: Mapping[str, TextEnv]
) -> dict[str, TextEnv]:
    """Return the environments to train in and to evaluate in, by their keys below ``data``."""
    training = {key_of(name).removeprefix("data."): each for name, each in envs.items()}
    return training | {f"eval_sets.{name}": each for name, each in eval_sets.items()}


def check_envs(
    envs: dict[str, TextEnv], prompts: Prompts, check_contract: Callable[[TextEnv, str], None]
) -> None:
    """Check environments before anything else is done with them.

    Args:
        envs: The environments by their keys below ``data``.
        prompts: The wording of the dialogue.
        check_contract: Check of an environment, with its key, by its contract.

    Raises:
        ValueError: for one that declares what it does not have, breaks its contract, or cannot be
            played in the dialogue.
    """
    for key, each in envs.items():
        check_declared(each, f"data.{key}")
    check_actions(envs)
    for key, each in envs.items():
        check_contract(each, f"data.{key}")
    check_tools(prompts, envs)


def accepting(check: Callable[[TextEnv], None], envs: Mapping[str, TextEnv]) -> tuple[str, ...]:
    """Return the sorted names of the environments that a check accepts, at least one.

    Raises:
        ValueError: the check's, if it accepts none.
    """
    accepted, refusal = list[str](), None
    for name, env in envs.items():
        try:
            check(env)
        except ValueError as error:
            refusal = error
        else:
            accepted.append(name)
    if refusal is not None and not accepted:
        raise refusal
    return tuple(sorted(accepted))
