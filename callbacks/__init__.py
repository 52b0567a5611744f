"""Lightning callbacks to choose in YAML, one per file: ``class_path: callbacks.VarianceFilter``."""

from callbacks.variance_filter import VarianceFilter

__all__ = ["VarianceFilter"]
