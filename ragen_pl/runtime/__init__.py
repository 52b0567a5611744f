"""The process on its machine: threads and how they wait, memory, and what libraries print.

May not import anything else of this library but its error, nor, in this file, PyTorch: the waiting
policy is set before PyTorch is loaded.
"""

from ragen_pl.runtime.wait_policy import describe_waiting, limit_spinning

__all__ = ["describe_waiting", "limit_spinning"]
