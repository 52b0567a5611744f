"""stub"""
from ragen_pl.envs.tools.toolbox import Toolbox
class Python(Toolbox):
    pass
