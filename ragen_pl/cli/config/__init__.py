"""Configurations: files by kind, the parser and its groups of keys, errors in a user's words."""
