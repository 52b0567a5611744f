"""Checks of callbacks, which may be Lightning's or a user's own.

``unfit_callbacks`` and ``user_callbacks`` refuse them before a run, ``fitted_callbacks`` has
Lightning's act at the end of iterations, ``checked_selection`` checks what they select in each
rollout; ``user_callbacks`` also tells what their hooks raise.
"""
