"""The checks by name, in the order in which they run."""

from collections.abc import Callable, Iterator, Mapping

from ragen_pl.envs.contract_kit.checks.answers import check_answers
from ragen_pl.envs.contract_kit.checks.contract import check_contract_of
from ragen_pl.envs.contract_kit.checks.copies import check_copies
from ragen_pl.envs.contract_kit.checks.end import check_ends
from ragen_pl.envs.contract_kit.checks.episodes import check_episodes
from ragen_pl.envs.contract_kit.checks.features import check_features
from ragen_pl.envs.contract_kit.checks.history import check_history
from ragen_pl.envs.contract_kit.checks.methods import check_methods
from ragen_pl.envs.contract_kit.checks.players import check_expert, check_random
from ragen_pl.envs.contract_kit.checks.processes import check_processes
from ragen_pl.envs.contract_kit.checks.questions import check_questions
from ragen_pl.envs.contract_kit.checks.rewards import check_rewards
from ragen_pl.envs.contract_kit.checks.shared_state import check_shared_state
from ragen_pl.envs.contract_kit.checks.speed import check_speed
from ragen_pl.envs.contract_kit.checks.starts import check_starts
from ragen_pl.envs.contract_kit.checks.symmetries import check_symmetries
from ragen_pl.envs.contract_kit.checks.thoughts import check_thoughts
from ragen_pl.envs.contract_kit.checks.tools import check_tools
from ragen_pl.envs.contract_kit.examination import UnavailableError
from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.runtime.findings import Finding

_Check = Callable[[ExaminedEnv], Iterator[Finding]]


def _comparing(check: _Check) -> _Check:
    """Return a check that is skipped where the seed does not decide the start: it compares
    episodes, and would find that one cause again."""

    def compare(subject: ExaminedEnv) -> Iterator[Finding]:
        if not subject.starts_repeat:
            raise UnavailableError("a reset that the seed decides")
        yield from check(subject)

    return compare


CHECKS: Mapping[str, _Check] = {
    "contract": check_contract_of,
    "methods": check_methods,
    "starts": check_starts,
    "episodes": check_episodes,
    "end": check_ends,
    "questions": _comparing(check_questions),
    "history": _comparing(check_history),
    "copies": _comparing(check_copies),
    "features": _comparing(check_features),
    "shared state": check_shared_state,
    "processes": _comparing(check_processes),
    "hostile answers": check_answers,
    "tools": _comparing(check_tools),
    "expert": check_expert,
    "thoughts": _comparing(check_thoughts),
    "symmetries": _comparing(check_symmetries),
    "random play": check_random,
    "rewards": check_rewards,
    "speed": check_speed,
}
"""A further check is a function and a line here."""
