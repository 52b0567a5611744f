"""Tools: the expert's calls are right, and no tool raises what only its own slip explains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ragen_pl.envs.contract_kit.subject import ExaminedEnv
from ragen_pl.envs.contract_kit.trial import Trial
from ragen_pl.envs.tools.env import ToolEnv
from ragen_pl.runtime.findings import Finding, ok, warning

_SHARE = 0.5
"""Share of a check's time for the calls of each player."""
_DOUBTFUL = ("KeyError", "IndexError")
"""What a look-up raises, by an agent's argument or by a slip of the tool's own."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """A call and what the agent is told of it."""

    call: str
    told: str
    is_wrong: bool
    raised: str

    def __str__(self) -> str:
        return f"{self.call:.80} is answered with {self.told:.200}"


def check_tools(subject: ExaminedEnv) -> Iterator[Finding]:
    """Make the calls of the expert and of random play again, and look at how they are answered."""
    if not isinstance(subject.env, ToolEnv):
        yield ok("its actions call no tools")
        return
    by_expert = list(_answers(subject, subject.expert_play))
    by_chance = list(_answers(subject, subject.random_play))
    wrong = [each for each in by_expert if each.is_wrong]
    doubtful = [each for each in by_chance if each.raised in _DOUBTFUL]
    if wrong:
        yield warning(
            f"{len(wrong)} of the expert's {len(by_expert)} calls are wrong, first {wrong[0]}",
            "mend expert_turn, or the tool: a warm start imitates these calls",
        )
    if doubtful:
        yield warning(
            f"{len(doubtful)} of {len(by_chance)} calls in random play raise "
            f"{' or '.join(sorted({each.raised for each in doubtful}))}; the agent is told so, and "
            f"the run goes on; first {doubtful[0]}",
            "mend the tool, or raise a ValueError that tells the agent what to do instead",
        )
    if not wrong and not doubtful:
        yield ok(f"{len(by_expert) + len(by_chance)} calls are answered; no look-up fails in them")


def _answers(subject: ExaminedEnv, played: Sequence[Trial]) -> Iterator[_Answer]:
    env = subject.copy()
    for number in subject.in_time(range(len(played)), share=_SHARE):
        trial = played[number]
        env.reset(seed=trial.seed, options={"noise_seed": trial.seed})
        for step in trial.steps:
            _, _, _, _, info = env.step(step.action)
            told = step.observation.partition("Error: ")[2]
            yield _Answer(step.action, told, info["wrong_call"], info["raised"])
