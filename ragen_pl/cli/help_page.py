"""The page of ``run.py --help``: one line for each command."""

from __future__ import annotations

from ragen_pl.cli.config.files import (
    CHAT,
    CHECK_ENV,
    COMPARE,
    DOCTOR,
    FETCH,
    NEW,
    PINS,
    PLAN,
    PLAY,
    REPORT,
    SERVE,
)

SUMMARIES = {
    "fit": "train a policy: --config sokoban",
    "validate": "play the evaluation sets with a checkpoint, as during training",
    "test": "play the evaluation sets with a checkpoint, and record the results",
    "predict": "play with a checkpoint and write the trajectories",
    PLAN: "print the memory that a run needs, without building its weights",
    PLAY: "play an environment in the terminal, or watch a policy play it",
    CHAT: "talk to a policy in its own chat template",
    DOCTOR: "check a configured run on this machine before it starts",
    CHECK_ENV: "examine an environment, such as one of your own",
    COMPARE: "compare policies on the evaluation sets, start by start",
    FETCH: "write a small real model as a folder, without the Hub",
    PINS: "print the fingerprints of a configuration's evaluation sets",
    REPORT: "write one HTML page about a run, or about several",
    SERVE: "serve an environment to other frameworks, in OpenEnv's protocol",
    NEW: "write a folder for a project of your own",
}
"""What each command does."""


def help_page() -> str:
    """Return the page."""
    width = max(map(len, SUMMARIES))
    lines = [f"  {name.ljust(width)}  {text}" for name, text in SUMMARIES.items()]
    return "\n".join(
        [
            "usage: run.py COMMAND [--config NAME ...] [--KEY VALUE ...]",
            "",
            "Train language-model agents with reinforcement learning, and look at the result.",
            "",
            *lines,
            "",
            "run.py COMMAND --help lists what a command takes; that of fit, every key. Configs are",
            "found by name (docs/configuration.md).",
        ]
    )
