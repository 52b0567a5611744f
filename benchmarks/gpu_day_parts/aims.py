"""What ``benchmarks/LOG.md`` asks of a GPU, or says is unmeasured on one: each beside its figure.

An aim names its entry and words of it; a test finds them there. Aims of the log that are about a
CPU alone (threads that wait, an iteration before and after, loops beside a run) are not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.gpu_day_parts.catalog import BESIDE_TRL
from benchmarks.gpu_day_parts.part import Figure


class Verdict(StrEnum):
    """What a figure says of an aim."""

    MET = "met"
    MISSED = "missed"
    MEASURED = "measured"
    """The log names no number."""
    OPEN = "not measured"
    NOT_JUDGED = "not judged"
    """Figures of tiny shapes say nothing of speed or learning."""


@dataclass(frozen=True, kw_only=True)
class Aim:
    """One aim.

    Args:
        entry: The entry of the log that states it.
        words: Words of that entry.
        what: The aim in one line.
        figure: Name of the figure that answers it.
        at_least: Smallest value that meets it.
        at_most: Largest value that meets it. With neither the log names no number.
    """

    entry: int
    words: str
    what: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None

    def verdict(self, figures: Mapping[str, Figure], *, tiny: bool = False) -> Verdict:
        """Judge the figure.

        Args:
            figures: All figures by name.
            tiny: Whether they are those of tiny shapes.
        """
        figure = figures.get(self.figure)
        if figure is None:
            return Verdict.OPEN
        if tiny:
            return Verdict.NOT_JUDGED
        if self.at_least is None and self.at_most is None:
            return Verdict.MEASURED
        is_enough = self.at_least is None or figure.value >= self.at_least
        is_little = self.at_most is None or figure.value <= self.at_most
        return Verdict.MET if is_enough and is_little else Verdict.MISSED

    @property
    def bound(self) -> str:
        """The bound in words."""
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "–" if self.at_most is None else f"≤ {self.at_most:g}"


def _beside_generate(turns: str, dtype: str, times: float) -> Aim:
    return Aim(
        entry=2,
        words="The aims are 2 and 8",
        what=f"rollouts of {turns} turns beside generate, tiny model, {dtype}",
        figure=f"beside/tiny/rollout_{'short' if turns == '5' else 'long'}/{dtype}/to_generate",
        at_least=times,
    )


def _beside_trl(model: str, way: str) -> Aim:
    is_large = model == "135m"
    return Aim(
        entry=15 if is_large else 2,
        words="The aim, 1.5, is within what hours" if is_large else "The aims are 1.5 and 3",
        what=f"rollout and update beside TRL, {model}, {way}",
        figure=f"beside/{model}/training/{way}/to_trl",
        at_least=1.5,
    )


def _of_the_limit(model: str, dtype: str) -> Aim:
    return Aim(
        entry=5,
        words="The aims of 1.5 times and of half the limit",
        what=f"rollout and update, share of the arithmetic limit, {model}, {dtype}",
        figure=f"beside/{model}/training/{dtype}/of_limit",
        at_least=0.5,
    )


def _with_adapters(entry: int, words: str, way: str, at_least: float | None = None) -> Aim:
    return Aim(
        entry=entry,
        words=words,
        what=f"rollout and update beside TRL, 135m with adapters, {way}",
        figure=f"beside/135m_lora/training/{way}/to_trl",
        at_least=at_least,
    )


_UNMEASURED = "On a GPU it is unmeasured"
_FOR_GPUS = "It is made for GPUs, where it is unmeasured"
_GRAPHS = "records steps of a token for a GPU to replay"
_FLASH = "on GPUs flash attention takes 16-bit types"

AIMS = (
    *(_beside_generate("5", dtype, 2) for dtype in ("fp32", "bf16")),
    *(_beside_generate("30", dtype, 8) for dtype in ("fp32", "bf16")),
    *(_beside_trl("tiny", dtype) for dtype in ("fp32", "bf16")),
    *(_beside_trl("135m", dtype) for dtype in ("fp32", "bf16")),
    Aim(
        entry=2,
        words="The aims are 1.5 and 3",
        what="the best way of each beside TRL, tiny",
        figure="beside/tiny/training/best_against_best/to_trl",
        at_least=3,
    ),
    *(_of_the_limit("tiny", dtype) for dtype in ("fp32", "bf16")),
    *(_of_the_limit("135m", dtype) for dtype in ("fp32", "bf16")),
    Aim(
        entry=3,
        words="the planned peak is within 15 % of the measured one",
        what="planned memory: largest error of a peak",
        figure="memory/largest_error",
        at_most=0.15,
    ),
    *(
        Aim(
            entry=7,
            words=_UNMEASURED,
            what=f"decoding where the logits are, {shape}: share of the bandwidth",
            figure=f"speed/{shape}/lora_graphs/decode_of_bandwidth",
        )
        for shape in ("0.5b", "1.5b", "3b", "7b")
    ),
    Aim(
        entry=8,
        words="Sampled and recomputed log-probs are equal",
        what="largest gap between sampled and recomputed log-probs, fp32",
        figure="numerics/fp32/plain/gap",
        at_most=1e-4,
    ),
    Aim(
        entry=9,
        words=_FOR_GPUS,
        what="compiled layers make an update faster, 0.5b with all weights",
        figure="speed/0.5b/compile_gain",
        at_least=1,
    ),
    Aim(
        entry=13,
        words=_GRAPHS,
        what="CUDA graphs make decoding faster, 0.5b with adapters",
        figure="speed/0.5b/graphs_gain",
        at_least=1,
    ),
    Aim(
        entry=13,
        words=_GRAPHS,
        what="CUDA graphs sample the same tokens, fp32",
        figure="numerics/fp32/graphs/equal_tokens",
        at_least=0.99,
    ),
    Aim(
        entry=17,
        words=_FLASH,
        what="flash attention runs in bf16, and differs from math attention by",
        figure="numerics/bf16/flash_against_math",
    ),
    Aim(
        entry=17,
        words="A token is waited for once",
        what="waits for the device per sampled token",
        figure="numerics/waits_per_token",
        at_most=1,
    ),
    Aim(
        entry=17,
        words="make the updates of one on the CPU up to rounding",
        what="largest gap between the device's log-probs and the CPU's, fp32",
        figure="numerics/fp32/cpu_gap",
        at_most=1e-4,
    ),
    Aim(
        entry=20,
        words="Two points short of 0.94",
        what="success of the whole default run at temperature 0.5",
        figure="sokoban/success/final/default/0.5",
        at_least=0.94,
    ),
    _with_adapters(22, "The aim was twice. Single runs. Beside TRL: not run", "bf16", 2),
    Aim(
        entry=24,
        words="The aim of 0.94 in the median",
        what="success of the whole default run, greedy",
        figure="sokoban/success/final/default/0.0",
        at_least=0.94,
    ),
    _with_adapters(28, "135M with adapters beside TRL 1.16", "fp32"),
    *(
        Aim(
            entry=28,
            words="Of the arithmetic limit 45 and 30 %",
            what=f"share of the arithmetic limit, 135m with adapters, {dtype}",
            figure=f"beside/135m_lora/training/{dtype}/of_limit",
        )
        for dtype in ("fp32", "bf16")
    ),
    Aim(
        entry=32,
        words="59.0 to 79.7 %",
        what="success of a whole run of 135M on Sokoban at temperature 0.5",
        figure="real_sokoban/success/final/default/0.5",
    ),
    Aim(
        entry=32,
        words="compiled layers need a longer lease",
        what="compiled layers make an update faster, 0.5b with adapters",
        figure="speed/0.5b/lora_compile_gain",
        at_least=1,
    ),
    Aim(
        entry=34,
        words="Neither has run on a GPU yet",
        what="failures among the tests for GPUs, decoding captured by default in them",
        figure="tests/unsuccessful",
        at_most=0,
    ),
    Aim(
        entry=34,
        words="a tenth of what the bandwidth allows",
        what="the sampler's own decoder with CUDA graphs, 0.5b: share of the bandwidth",
        figure="speed/0.5b/fused_graphs/decode_of_bandwidth",
    ),
    Aim(
        entry=34,
        words="adapters of 1.5B against their plan",
        what="planned peak of 1.5b with adapters, divided by the measured one",
        figure="memory/1.5b-lora/peak_ratio",
    ),
    *(
        Aim(
            entry=36,
            words="graphs at 1.5B and 3B",
            what=f"CUDA graphs make decoding faster, {shape} with adapters",
            figure=f"speed/{shape}/graphs_gain",
            at_least=1,
        )
        for shape in ("1.5b", "3b")
    ),
    *(
        Aim(
            entry=38,
            words="TRL beside the shapes above 135M on a GPU",
            what=f"rollout and update beside TRL, {model.replace('_lora', ' with adapters')}, bf16",
            figure=f"beside/{model}/training/bf16/to_trl",
        )
        for model in BESIDE_TRL
    ),
)
