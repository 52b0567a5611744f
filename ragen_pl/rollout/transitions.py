"""What was seen of a world, as a graph of states, and the surest way to success in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ragen_pl.types import Trajectory

_DISCOUNT = 0.99
"""Per action: of two ways that are equally sure, the shorter one is better."""
_CONVERGED = 1e-9
_MAX_SWEEPS = 200
"""Value iteration ends after so many sweeps, or when no value grows by ``_CONVERGED``."""


@dataclass(frozen=True, slots=True)
class Transitions:
    """What several players from one state saw of a world, its states told apart by their anchor
    keys."""

    start: str
    goals: frozenset[str]
    """States in which a member succeeded."""
    outcomes: dict[str, dict[str, Counter[str]]]
    """The states that followed, by state and action, in the order in which they were first seen."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Transitions | None:
        """Collect the transitions of trajectories from one initial state; None without any."""
        outcomes: dict[str, dict[str, Counter[str]]] = {}
        goals, start = set(), None
        for trajectory in trajectories:
            if not trajectory.is_trainable:
                continue
            for turn in trajectory.turns:
                key = turn.anchor_key
                start = key if start is None else start
                for action, after in zip(turn.actions, turn.reached_keys, strict=True):
                    outcomes.setdefault(key, {}).setdefault(action, Counter())[after] += 1
                    key = after
            if trajectory.success:
                goals.add(key)
        return None if start is None else cls(start, frozenset(goals), outcomes)

    @property
    def noise(self) -> float:
        """The share of transitions that did not lead where their action mostly led."""
        seen = [found for actions in self.outcomes.values() for found in actions.values()]
        total = sum(found.total() for found in seen)
        return 1.0 - sum(max(found.values()) for found in seen) / total if total else 0.0

    def modes(self) -> dict[str, dict[str, str]]:
        """Return the most frequent outcomes, by state and action, as far as a goal can be reached
        by most frequent outcomes alone; the first ones seen among equals."""
        modes = {
            key: {action: found.most_common(1)[0][0] for action, found in actions.items()}
            for key, actions in self.outcomes.items()
        }
        reaching, before = set(self.goals), -1
        while len(reaching) > before:
            before = len(reaching)
            reaching |= {key for key, actions in modes.items() if reaching & {*actions.values()}}
        return {
            key: {action: after for action, after in actions.items() if after in reaching}
            for key, actions in modes.items()
        }

    def values(self) -> dict[str, dict[str, float]]:
        """Return how surely an action leads to a goal, by state and action: value iteration with
        slightly discounted success."""
        values = dict.fromkeys(self.goals, 1.0)
        noise = self.noise
        result: dict[str, dict[str, float]] = {}
        for _ in range(_MAX_SWEEPS):
            change, result = 0.0, {key: {} for key in self.outcomes}
            for key, actions in self.outcomes.items():
                for action, found in actions.items():
                    tries = found.total() + noise
                    sure = sum(n / tries * values.get(after, 0.0) for after, n in found.items())
                    result[key][action] = _DISCOUNT * sure
                if key not in self.goals:
                    value = max(result[key].values())
                    change = max(change, value - values.get(key, 0.0))
                    values[key] = value
            if change < _CONVERGED:
                break
        return result

    def surest_way(self) -> tuple[tuple[str, str], ...] | None:
        """Return the way that most surely leads from the start to a goal, as far as the transitions
        tell: its actions, each with the state that it mostly leads to; None if no goal was reached.

        The probability of an outcome is its share among the tries of its action, and what was never
        tried leads nowhere. Where actions had different outcomes, one lucky try proves little:
        every action then counts as tried once more in vain, with the weight of the observed noise.
        The way goes by most frequent outcomes, visits no state twice, and takes the best of the
        actions from whose outcome success can still be reached so.

        In a world without noise it is the shortest way.
        """
        values, modes = self.values(), self.modes()
        way: list[tuple[str, str]] = []
        key, passed = self.start, set[str]()
        while key not in self.goals:
            passed.add(key)
            ahead = [a for a, after in modes.get(key, {}).items() if after not in passed]
            if not ahead:
                return None
            action = max(ahead, key=values[key].__getitem__)
            key = modes[key][action]
            way.append((action, key))
        return tuple(way)
