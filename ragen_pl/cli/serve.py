"""The command ``run.py serve``: an environment for other frameworks, as an OpenEnv server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web
from jsonargparse.typing import NonNegativeInt, PositiveFloat

from ragen_pl.cli.command_parser import CommandParser
from ragen_pl.cli.configured import configured_parts
from ragen_pl.cli.parser import Parser
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.check import check_contract
from ragen_pl.envs.outward.openenv_server import OpenEnvServer
from ragen_pl.envs.workers import EnvHost
from ragen_pl.errors import ConfigError

_DESCRIPTION = """\
Serve an environment to other frameworks, in OpenEnv's protocol.

  run.py serve --config sokoban.yaml                  the environment of a configuration
  run.py serve --config sokoban.yaml --eval_set NAME  that of one of its evaluation sets
  run.py serve --env my_envs.Mine --env.size 5        a class, with its arguments

Takes the configs and options of fit besides those below. data.rollout.env_workers and
data.rollout.step_timeout_s (with --env: --workers and --time_limit) put the environments into
processes, with a limit of seconds for each call. There is no authentication: let --host name no
address that strangers can reach.
"""
_SHUTDOWN_S = 1.0


def _parser() -> CommandParser:
    parser = CommandParser("serve", _DESCRIPTION)
    parser.add_argument("--eval_set", help="name of the evaluation set whose environment is served")
    parser.add_argument("--host", default="127.0.0.1", help="address (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8000, help="port; 0 chooses a free one (default: 8000)"
    )
    parser.add_argument(
        "--sessions", type=int, default=256, help="sessions at a time (default: 256)"
    )
    return parser


def serve(argv: Sequence[str]) -> None:
    """Serve an environment until the process is interrupted.

    Args:
        argv: Arguments after ``serve``, with paths in place of the names of configs.

    Raises:
        ConfigError: when the configuration or an option is wrong, or the port is taken.
    """
    options, rest = _parser().parse_known_args(list(argv))
    if options.sessions < 1:
        raise ConfigError(f"--sessions is {options.sessions}; it must be 1 or more")
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port is {options.port}; it must be from 0 to 65535")
    served = _of_class(rest) if _names_class(rest) else _of_config(rest, options.eval_set)
    host = EnvHost(served.workers, served.limit) if served.workers else None
    env = served.env if host is None else host.wrap(served.env)
    try:
        asyncio.run(_run(OpenEnvServer(env, options.sessions), options.host, options.port))
    finally:
        if host is not None:
            host.close()


@dataclass(frozen=True, slots=True)
class _Served:
    """What is served, and where it lives."""

    env: TextEnv
    workers: int
    """Processes that the environments live in; 0 for the server's own."""
    limit: float | None
    """Seconds that one call to a process may take."""


def _names_class(rest: Sequence[str]) -> bool:
    return any(arg.partition("=")[0].partition(".")[0] == "--env" for arg in rest)


def _of_class(rest: Sequence[str]) -> _Served:
    """Make the environment that ``--env`` names, with its arguments."""
    parser = Parser()
    parser.add_subclass_arguments(TextEnv, "env", required=True)
    parser.add_argument("--workers", type=NonNegativeInt, default=0)
    parser.add_argument("--time_limit", type=PositiveFloat, default=None)
    config = parser.parse_args(list(rest))
    try:
        env = parser.instantiate_classes(config).env
        check_contract(env, "--env")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return _Served(env, config.workers, config.time_limit)


def _of_config(rest: Sequence[str], eval_set: str | None) -> _Served:
    """Make the environment that a configuration trains in, or evaluates on."""
    data = configured_parts(rest).datamodule
    workers, limit = data.rollout.env_workers, data.rollout.step_timeout_s
    if eval_set is None:
        return _Served(data.env, workers, limit)
    if eval_set not in data.eval_sets:
        raise ConfigError(
            f"--eval_set is {eval_set}, which is not among data.eval_sets: "
            f"{', '.join(data.eval_sets)}"
        )
    return _Served(data.eval_sets[eval_set], workers, limit)


async def _run(server: OpenEnvServer, host: str, port: int) -> None:
    """Serve until the task is cancelled, as it is when the process is interrupted."""
    runner = web.AppRunner(server.application(), shutdown_timeout=_SHUTDOWN_S)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"--host {host} --port {port} cannot be listened at: {error.strerror}; give "
                "another --port, or 0 for a free one"
            ) from error
        bound = runner.addresses[0][1]
        print(f"{server.name} at http://{host}:{bound} (WebSocket /ws); Ctrl+C ends", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
