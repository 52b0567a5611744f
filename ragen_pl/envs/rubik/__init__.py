"""Rubik's 2×2×2 cube: the environment, its geometry, search, scrambles, text and pictures."""
