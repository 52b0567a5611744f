"""``run.py plan``: the memory that a configured run needs, before it runs."""
