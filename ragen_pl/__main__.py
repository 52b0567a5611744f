"""The command as a module: ``python -m ragen_pl fit --config sokoban.yaml``."""

import sys

from ragen_pl.cli.entry_point import main

if __name__ == "__main__":
    sys.exit(main())
