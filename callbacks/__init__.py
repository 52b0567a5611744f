"""Lightning callbacks, one per file, selected in YAML: ``class_path: callbacks.VarianceFilter``."""

from callbacks.checkpoints import Checkpoints
from callbacks.echo_trap_detector import EchoTrapDetector
from callbacks.entropy_logger import EntropyLogger
from callbacks.evaluation_table import EvaluationTable
from callbacks.fault_log import FaultLog
from callbacks.gradient_probe import GradientProbe
from callbacks.interruption import Interruption
from callbacks.iteration_axis import IterationAxis
from callbacks.mutual_information import MutualInformation
from callbacks.phase_timer import PhaseTimer
from callbacks.policy_change import PolicyChange
from callbacks.report_writer import ReportWriter
from callbacks.results import Results
from callbacks.rollback import Rollback
from callbacks.rollout_metrics import RolloutMetrics
from callbacks.run_display import RunDisplay
from callbacks.sample_dialogues import SampleDialogues
from callbacks.skipped_steps import SkippedSteps
from callbacks.thread_tuning import ThreadTuning
from callbacks.trajectory_writer import TrajectoryWriter
from callbacks.variance_filter import VarianceFilter
from callbacks.watchdog import Watchdog

__all__ = [
    "Checkpoints",
    "EchoTrapDetector",
    "EntropyLogger",
    "EvaluationTable",
    "FaultLog",
    "GradientProbe",
    "Interruption",
    "IterationAxis",
    "MutualInformation",
    "PhaseTimer",
    "PolicyChange",
    "ReportWriter",
    "Results",
    "Rollback",
    "RolloutMetrics",
    "RunDisplay",
    "SampleDialogues",
    "SkippedSteps",
    "ThreadTuning",
    "TrajectoryWriter",
    "VarianceFilter",
    "Watchdog",
]
