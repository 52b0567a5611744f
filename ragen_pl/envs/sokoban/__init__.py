"""Sokoban: the environment, its search, its rooms and the paper's, its text and its pictures."""
