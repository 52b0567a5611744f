"""The checks by name, in the order in which they run: what later ones need comes first."""

from collections.abc import Callable, Iterator, Mapping

from ragen_pl.cli.doctor.checks.answers import check_answers
from ragen_pl.cli.doctor.checks.checkpoint import check_checkpoint
from ragen_pl.cli.doctor.checks.configuration import check_configuration
from ragen_pl.cli.doctor.checks.devices import check_devices
from ragen_pl.cli.doctor.checks.environment import check_environment
from ragen_pl.cli.doctor.checks.expert import check_expert
from ragen_pl.cli.doctor.checks.lengths import check_lengths
from ragen_pl.cli.doctor.checks.memory import check_memory
from ragen_pl.cli.doctor.checks.model import check_model
from ragen_pl.cli.doctor.checks.ratio import check_ratio
from ragen_pl.cli.doctor.checks.rewards import check_rewards
from ragen_pl.cli.doctor.checks.sampling import check_sampling
from ragen_pl.cli.doctor.checks.shared_state import check_shared_state
from ragen_pl.cli.doctor.checks.starts import check_starts
from ragen_pl.cli.doctor.checks.storage import check_storage
from ragen_pl.cli.doctor.checks.template import check_template
from ragen_pl.cli.doctor.checks.threads import check_threads
from ragen_pl.cli.doctor.subject import ExaminedRun
from ragen_pl.runtime.findings import Finding

CHECKS: Mapping[str, Callable[[ExaminedRun], Iterator[Finding]]] = {
    "configuration": check_configuration,
    "threads": check_threads,
    "devices": check_devices,
    "run folder": check_storage,
    "environment": check_environment,
    "shared state": check_shared_state,
    "expert": check_expert,
    "starts": check_starts,
    "memory": check_memory,
    "model": check_model,
    "template": check_template,
    "lengths": check_lengths,
    "answers": check_answers,
    "rewards": check_rewards,
    "sampling": check_sampling,
    "ratio": check_ratio,
    "checkpoint": check_checkpoint,
}
"""A further check is a function and a line here."""
