"""The environment that a command is given: by its class, or by a configuration."""

from __future__ import annotations

from collections.abc import Sequence

from ragen_pl.cli.config.constructors import ConstructorError
from ragen_pl.cli.config.files import options
from ragen_pl.cli.config.given_keys import refuse_broken_modules
from ragen_pl.cli.config.key_check import explain
from ragen_pl.cli.config.messages import no_value, qualify
from ragen_pl.cli.config.parser import Parser
from ragen_pl.envs.base import TextEnv
from ragen_pl.errors import ConfigError
from ragen_pl.training.datamodule import RolloutDataModule


def env_of_class(name: str, keys: Sequence[str]) -> TextEnv:
    """Return an environment, built of a class and keys as in a configuration.

    Args:
        name: Value of ``--env``.
        keys: Options below it, such as ``--env.size 6``.

    Raises:
        ConfigError: for a configuration beside the class, for an unknown class or key, for
            a value that the constructor refuses, and for a module or constructor that fails.
    """
    given = ["--env", name, *keys]
    for key, value in options(keys):
        if key == "config":
            raise ConfigError(
                f"--env is {name}, and --config is {value}: give one of them; keys of the "
                "environment are set as --env.KEY"
            )
        if value is None:
            raise ConfigError(no_value(f"--{key}"))
    parser = Parser()
    parser.add_argument("--env", type=TextEnv, required=True)
    try:
        built = parser.instantiate_classes(parser.parse_args(given)).env
    except ConstructorError:
        raise
    except ConfigError as error:
        refuse_broken_modules(given)  # a module's own error may look like a wrong value
        whole = ConfigError(str(error.__cause__ or error))  # which names the key, too
        whole.__cause__ = error.__cause__
        found = explain(whole, given, {"env": TextEnv})
        raise (error if found is whole else found) from error
    except Exception as error:  # the boundary to user code: an import may raise anything
        refuse_broken_modules(given)
        if not isinstance(error, ValueError):
            raise
        raise ConfigError(f"--env {name}: {qualify(str(error), {})}") from error
    assert isinstance(built, TextEnv)
    return built


def env_of_data(data: RolloutDataModule, eval_set: str | None, command: str) -> TextEnv:
    """Return the environment of an evaluation set, or without one the one to train in.

    Args:
        command: Name of the command, for the error.

    Raises:
        ConfigError: when there is no such evaluation set, or none is named and there is a mixture.
    """
    if eval_set is None:
        if data.is_mixture:
            raise ConfigError(
                f"{command}: data.envs is a mixture of {', '.join(data.envs)}: say which "
                f"environment by an evaluation set, --eval_set {' or '.join(data.eval_sets)}"
            )
        return data.env
    if eval_set not in data.eval_sets:
        raise ConfigError(
            f"--eval_set is {eval_set}, which is not among data.eval_sets: "
            f"{', '.join(data.eval_sets)}"
        )
    return data.eval_sets[eval_set]
