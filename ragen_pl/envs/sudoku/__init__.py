"""Sudoku: the environment, its grids, reasons, puzzles, symmetries, text and pictures."""
