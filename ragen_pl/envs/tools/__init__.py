"""Tools: environments whose actions are calls, and tools for them."""

from ragen_pl.envs.tools.calculator import Calculator
from ragen_pl.envs.tools.env import ToolEnv
from ragen_pl.envs.tools.mcp_server import MCPServer
from ragen_pl.envs.tools.python import Python
from ragen_pl.envs.tools.questions import ToolQuestions
from ragen_pl.envs.tools.search import Search
from ragen_pl.envs.tools.toolbox import Toolbox, ToolUnavailableError

__all__ = [
    "Calculator",
    "MCPServer",
    "Python",
    "Search",
    "ToolEnv",
    "ToolQuestions",
    "ToolUnavailableError",
    "Toolbox",
]
