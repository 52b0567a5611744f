"""The command ``run.py serve``: an environment for other frameworks, as an OpenEnv server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from ragen_pl.cli.command_parser import CommandParser, seconds
from ragen_pl.cli.configured_parts import configured_parts
from ragen_pl.cli.given_env import env_of_class, env_of_data
from ragen_pl.envs.base import TextEnv
from ragen_pl.envs.contract import check_contract
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
    parser.add_argument("--env", metavar="CLASS", help="class of the environment (--env.KEY: keys)")
    parser.add_argument("--workers", type=int, help="processes that it lives in, with --env")
    parser.add_argument("--time_limit", type=seconds, help="seconds of a call to a process")
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
    options, rest = _parser().parse_before_keys(list(argv))
    if options.sessions < 1:
        raise ConfigError(f"--sessions is {options.sessions}; it must be 1 or more")
    if not 0 <= options.port < 1 << 16:
        raise ConfigError(f"--port is {options.port}; it must be from 0 to 65535")
    served = _of_config(options, rest) if options.env is None else _of_class(options, rest)
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


def _of_class(options: argparse.Namespace, keys: Sequence[str]) -> _Served:
    """Make the environment that ``--env`` names, with its arguments."""
    if options.eval_set is not None:
        raise ConfigError(
            f"--eval_set is {options.eval_set}, but --env {options.env} has no evaluation sets: "
            "give a configuration with --config"
        )
    workers = options.workers or 0
    if workers < 0:
        raise ConfigError(f"--workers is {workers}; it must be 0 or more")
    if options.time_limit is not None and not workers:
        raise ConfigError(
            f"--time_limit is {options.time_limit:g}, but --workers is 0, so that no process could "
            "be ended: raise it"
        )
    env = env_of_class(options.env, keys)
    try:
        check_contract(env, "--env")
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return _Served(env, workers, options.time_limit)


def _of_config(options: argparse.Namespace, rest: Sequence[str]) -> _Served:
    """Make the environment that a configuration trains in, or evaluates on."""
    given = {
        "--workers": (options.workers, "data.rollout.env_workers"),
        "--time_limit": (options.time_limit, "data.rollout.step_timeout_s"),
    }
    for option, (value, key) in given.items():
        if value is not None:
            raise ConfigError(f"{option} goes with --env; in a configuration it is --{key}")
    data = configured_parts(rest).datamodule
    env = env_of_data(data, options.eval_set, "serve")
    return _Served(env, data.rollout.env_workers, data.rollout.step_timeout_s)


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
