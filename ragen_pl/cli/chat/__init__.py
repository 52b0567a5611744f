"""The command ``run.py chat``: a dialogue with a policy in its own chat template."""
