"""Ways out: this library's environments in the hands of other frameworks.

May not be imported by the rest of the library, except by the command ``serve``.
"""

from ragen_pl.envs.outward.trl_environment import TRLEnvironment, seed_rows, trl_environment

__all__ = ["TRLEnvironment", "seed_rows", "trl_environment"]
