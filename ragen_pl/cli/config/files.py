"""Config files and the command line, before anything heavy is imported."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import yaml

from ragen_pl.cli.config.checked_yaml import KeyFaultError, load_yaml
from ragen_pl.errors import ConfigError

PLAN, PLAY, CHAT, DOCTOR, NEW = "plan", "play", "chat", "doctor", "new"
COMPARE, PINS, REPORT, CHECK_ENV, SERVE = "compare", "pins", "report", "check-env", "serve"
FETCH = "fetch"
"""The commands that start no run."""
COMMANDS = (
    *("fit", "validate", "test", "predict"),
    *(PLAN, PLAY, CHAT, DOCTOR, CHECK_ENV, COMPARE, FETCH, PINS, REPORT, SERVE, NEW),
)
READS_RUNS = (COMPARE, REPORT)
"""The commands that take folders of runs in place of a configuration."""
CONFIGS = "configs"
FOLDER = Path(__file__).resolve().parents[3] / CONFIGS
"""The folder of the shipped configs."""
KINDS = ("experiment", "evaluation", "model", "algorithm", "variant", "hardware")
"""Folders of configs by kind, in the order in which they apply: the environment and its rollouts,
further evaluation sets, the model, the algorithm, a change to these, the hardware."""
_SUFFIXES = (".yaml", ".yml")


def find_config(name: str) -> Path:
    """Find a config file by path or name, with or without its suffix.

    Looks in the working directory, then in its ``configs/``, then in the shipped ``configs/``. The
    search of a ``configs/`` includes its folders of ``KINDS``.

    Raises:
        ConfigError: when there is no such file; the message suggests the nearest names.
    """
    if not name or name.startswith("--"):
        raise ConfigError("--config is given no value; name a config, such as --config sokoban")
    folders = [Path()]
    for configs in (Path(CONFIGS), FOLDER):
        folders += [configs, *(configs / kind for kind in KINDS)]
    for folder in folders:
        for suffix in ("", *_SUFFIXES):
            path = folder / f"{name}{suffix}"
            if path.is_file():
                return path
    if Path(name).is_dir():
        raise ConfigError(f"--config {name} is a folder; give the path or name of a YAML file")
    known = sorted({p.stem for f in folders for s in _SUFFIXES for p in f.glob(f"*{s}")})
    nearest = nearest_configs(Path(name).stem, known)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"known: {', '.join(known)}"
    where = (
        "there is no such file"
        if Path(name).is_absolute()
        else f"there is no such file in {Path.cwd()} or its configs/, nor is one shipped"
    )
    raise ConfigError(f"--config {name}: {where}\n  {hint}")


def nearest_configs(name: str, known: Sequence[str]) -> list[str]:
    """Return the names that a config's begins, or else those closest to it; at most three."""
    if name in known:
        return [name]
    begun = [each for each in known if len(name) > 2 and each.startswith(name)]
    return (begun or get_close_matches(name, known))[:3]


def read_config(path: Path) -> dict[str, Any]:
    """Read a config file.

    Raises:
        ConfigError: when the file does not hold keys and values, or holds a key twice.
    """
    try:
        tree = load_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not text in UTF-8 (byte {error.start}): save it as UTF-8, or give another "
            "file"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except KeyFaultError as error:
        raise ConfigError(f"{path}, {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        raise ConfigError(f"{path} is empty; a config is `key: value` lines")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}; a config is `key: value` lines")
    return tree


# --- order --------------------------------------------------------------------------------------


def in_order(paths: Sequence[Path]) -> list[Path]:
    """Sort configs by kind, whatever order they were given in.

    A file outside the folders of ``KINDS`` counts as an experiment if it names ``data.env`` or
    ``data.envs``; otherwise it applies after all kinds. Files of the same rank keep the order
    given.

    Raises:
        ConfigError: when two files of one kind disagree, so that their order would decide.
    """
    kinds = [_kind(path) for path in paths]
    for (one, kind), (other, its) in combinations(zip(paths, kinds, strict=True), 2):
        if kind is not None and kind == its:
            _refuse_disagreement(one, other, kind)
    ranks = {path: _rank(path, kind) for path, kind in zip(paths, kinds, strict=True)}
    return sorted(paths, key=ranks.__getitem__)


def _kind(path: Path) -> str | None:
    folder = path.resolve().parent
    return folder.name if folder.parent.name == CONFIGS and folder.name in KINDS else None


def _rank(path: Path, kind: str | None) -> int:
    if kind is not None:
        return KINDS.index(kind)
    data = read_config(path).get("data")
    if isinstance(data, dict) and data.get("envs"):
        return KINDS.index("experiment")
    env = data.get("env") if isinstance(data, dict) else None
    names_env = "class_path" in env if isinstance(env, dict) else env is not None
    return KINDS.index("experiment") if names_env else len(KINDS)


def _refuse_disagreement(one: Path, other: Path, kind: str) -> None:
    first, second = read_config(one), read_config(other)
    forth, back = merge(first, second), merge(second, first)
    if forth == back:
        return
    keys = _differing(forth, back)
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    raise ConfigError(
        f"{one.name} and {other.name} are both of the kind {kind} and disagree about "
        f"{', '.join(keys[:3])}{more}\n"
        "  keep one of them, and set what else you want by key after it"
    )


def _differing(one: Any, other: Any, path: str = "") -> list[str]:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [path]
    keys = dict.fromkeys([*one, *other])
    parts = [(f"{path}.{key}" if path else str(key), one.get(key), other.get(key)) for key in keys]
    return [each for part, mine, its in parts for each in _differing(mine, its, part)]


# --- merging ------------------------------------------------------------------------------------


def merge(old: Any, new: Any) -> Any:
    """Merge configurations as the parser does: by key, unless ``new`` names another class.

    In one case the parser differs: it replaces mappings whose keys users choose as a whole, unless
    their entries may be null (``data.eval_sets``, ``data.rollout.rewards``). These cannot be told
    apart without the constructors, so they are merged here.
    """
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return new
    if "class_path" in new and not same_class(old.get("class_path"), new["class_path"]):
        return new
    merged = dict(old)
    for key, value in new.items():
        key = str(key).removesuffix("+")
        merged[key] = merge(merged[key], value) if key in merged else value
    return merged


def same_class(one: object, other: object) -> bool:
    """Return whether two names mean one class; a bare name matches any path that ends in it."""
    if one == other or not (isinstance(one, str) and isinstance(other, str)):
        return one == other
    paths = [name.rpartition(".") for name in (one, other)]
    if paths[0][2] != paths[1][2]:
        return False
    if not (paths[0][0] and paths[1][0]):
        return True
    try:
        found = [getattr(importlib.import_module(module), name) for module, _, name in paths]
    except (ImportError, AttributeError):
        return False
    return found[0] is found[1]


# --- the command line ---------------------------------------------------------------------------


def prepare(argv: Sequence[str]) -> list[str]:
    """Put the command first, then the paths of its configs in the order in which they apply, then
    its options.

    Raises:
        ConfigError: when a config is not found, or ``--config`` has no value.
    """
    rest = list(argv)
    own = (NEW, FETCH, *READS_RUNS)
    places = (
        place
        for place, arg in enumerate(rest)
        if arg in COMMANDS and arg not in own and not _is_value(rest, place)
    )
    place = next(places, None)
    command = None if place is None else rest.pop(place)
    names: list[str] = []
    others: list[str] = []
    expects_config = False
    for arg in rest:
        if expects_config:
            names.append(arg)
            expects_config = False
        elif re.match(r"-[A-Za-z]\w", arg):  # the parser would read -config as -c onfig
            raise ConfigError(f"{arg} is unknown; the names of options begin with --")
        elif arg.startswith(("--config=", "-c=")):
            names.append(arg.partition("=")[2])
        elif _is_config(arg):
            expects_config = True
        else:
            others.append(arg)
    if expects_config:
        names.append("")  # which is refused
    paths = in_order([find_config(name) for name in names])
    configs = [part for path in paths for part in ("--config", str(path))]
    return [*([] if command is None else [command]), *configs, *others]


def shown_command(command: str, argv: Sequence[str]) -> str:
    """Return the line to type in a shell for a command.

    Args:
        command: The command.
        argv: Its arguments, with names or paths of configs.
    """
    program = ("ragen-pl",) if shutil.which("ragen-pl") else ("python", "run.py")
    shown = [
        _shortest(arg) if place and _is_config(argv[place - 1]) else arg
        for place, arg in enumerate(argv)
    ]
    return shlex.join((*program, command, *shown))


def _shortest(config: str) -> str:
    """Return the name by which a config is found, or else its path."""
    name = Path(config).stem
    try:
        return name if find_config(name).samefile(config) else config
    except (ConfigError, OSError):
        return config


def config_paths(argv: Sequence[str]) -> list[Path]:
    """List the config files of a prepared command line, in order."""
    return [Path(value) for flag, value in pairwise(argv) if _is_config(flag)]


def options(argv: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Iterate over (key, value) of a prepared command line; None if no value follows.

    Config files appear as ``config``.
    """
    position = 0
    while position < len(argv):
        arg = argv[position]
        position += 1
        if _is_config(arg):
            arg = "--config"
        if not arg.startswith("--"):
            continue
        key, has_value, value = arg[2:].partition("=")
        following = argv[position] if position < len(argv) else "--"
        if has_value:
            yield key, value
        elif following.startswith("--"):
            yield key, None
        else:
            position += 1
            yield key, following


def _is_value(argv: Sequence[str], place: int) -> bool:
    """Return whether an argument belongs to the option before it, as in ``--run_dir test``."""
    option = argv[place - 1] if place else ""
    alone = ("--help", "--print_config", "--version")
    return _is_config(option) or (
        option.startswith("--") and "=" not in option and option not in alone
    )


def _is_config(arg: str) -> bool:
    return arg in ("--config", "-c")
