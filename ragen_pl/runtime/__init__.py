"""The process: threads and their wait policy, memory, output of libraries and of its own, files,
the record of faults.

May not import any other room, nor, in this file, PyTorch: the wait policy is set before PyTorch is
loaded.
"""

from ragen_pl.runtime.visible_text import visible
from ragen_pl.runtime.wait_policy import describe_waiting, limit_spinning

__all__ = ["describe_waiting", "limit_spinning", "visible"]
