"""The command ``run.py doctor``: checks of a configured run on this machine, before it starts."""
