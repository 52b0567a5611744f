"""Faster forms of a language model's parts; each equals the part it stands for."""
