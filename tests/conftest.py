"""Make this folder importable, for ``from doubles import …``."""
