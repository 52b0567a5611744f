"""Warnings of runs that end too soon, and of rollouts that there is little to learn from.

``short_runs`` looks at a run's limits before it starts, ``full_contexts`` and ``lost_rollouts`` at
each rollout. Rollouts that are lost several times in a row end the run.
"""
