"""The parts of the GPU day: what each is, how it is run by itself, and what it found.

``part`` and ``runner`` know nothing of PyTorch: a part is a process of its own (``__main__``) that
records figures as it finds them, so that what ends it early loses nothing before. ``catalog`` lists
the parts in the order of their value, ``aims`` what ``benchmarks/LOG.md`` asks of a GPU, ``page``
writes both down. Every other file is one part.
"""
