"""Configurations: files by kind, the parser and its groups of keys, errors in a user's words.

A command line goes through ``files`` (names become paths), ``parser`` and ``groups`` (keys become
values), and ``trainer_keys``; what goes wrong on the way is worded by ``key_check`` and
``messages``, with names from ``schema``, ``given`` and ``nearest``. Nothing here starts a run.
"""
