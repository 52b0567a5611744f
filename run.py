"""The command in a checkout: ``python run.py fit --config sokoban.yaml``."""

import sys
from pathlib import Path

# The application's own packages are found from any working directory.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ragen_pl.cli.entry_point import main

if __name__ == "__main__":
    sys.exit(main())
