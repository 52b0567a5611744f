"""Faster implementations of a language model's modules, each with the same result."""
