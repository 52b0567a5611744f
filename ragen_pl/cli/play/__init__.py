"""The command ``run.py play``: a person plays in the terminal, or watches a policy play."""
