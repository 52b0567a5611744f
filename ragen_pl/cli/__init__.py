"""The command: config files by kind, parsing, errors, resuming, plans, play, chat, doctor.

May not be imported by any other room. This file and ``config/files.py`` load nothing heavy, so
that a wrong command fails at once.
"""

from ragen_pl.cli.config.files import find_config
from ragen_pl.cli.entry_point import main

__all__ = ["find_config", "main"]
