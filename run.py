"""Run a command of ragen-pl: ``python run.py fit --config sokoban.yaml``."""

import sys
from pathlib import Path

# Started from elsewhere, the application's own packages must be found all the same.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ragen_pl.cli.entry_point import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
