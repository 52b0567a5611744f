"""Lightning callbacks to choose in YAML, one per file: ``class_path: callbacks.VarianceFilter``."""

from callbacks.echo_trap_detector import EchoTrapDetector
from callbacks.entropy_logger import EntropyLogger
from callbacks.results import Results
from callbacks.rollout_metrics import RolloutMetrics
from callbacks.run_display import RunDisplay
from callbacks.variance_filter import VarianceFilter

__all__ = [
    "EchoTrapDetector",
    "EntropyLogger",
    "Results",
    "RolloutMetrics",
    "RunDisplay",
    "VarianceFilter",
]
