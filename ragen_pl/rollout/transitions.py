"""What was seen of a world, as a graph of states, and the surest way to success in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ragen_pl.types import Trajectory

SUCCESS = "\0success"
"""What a transition to success leads to, in place of the state that it reached."""
_DISCOUNT = 0.99
"""Per action: of two ways that are equally sure, the shorter one is better."""
_CONVERGED = 1e-9


@dataclass(frozen=True, slots=True)
class SurestWays:
    """How to get to success from any state that was seen."""

    values: Mapping[str, Mapping[str, float]]
    """How surely an action leads to success, by state and action."""
    modes: Mapping[str, Mapping[str, str]]
    """The most frequent outcomes, by state and action, as far as success can be reached by most
    frequent outcomes alone."""

    def way_from(self, start: str) -> tuple[tuple[str, str], ...]:
        """Return a way's actions, each with the state that it mostly leads to, ``SUCCESS`` at the
        end; none if success cannot be reached from this state."""
        way: list[tuple[str, str]] = []
        key, passed = start, {start}
        while key != SUCCESS:
            ahead = [a for a, after in self.modes.get(key, {}).items() if after not in passed]
            if ahead:
                action = max(ahead, key=self.values[key].__getitem__)
                key = self.modes[key][action]
                passed.add(key)
                way.append((action, key))
            elif way:  # a dead end: go on from the state before
                way.pop()
                key = way[-1][1] if way else start
            else:
                return ()
        return tuple(way)


@dataclass(frozen=True, slots=True)
class Transitions:
    """What several players from one state saw of a world, its states told apart by their anchor
    keys.

    Success belongs to a transition, not to a state: an observation may look the same after the
    right answer as before it.
    """

    start: str
    outcomes: dict[str, dict[str, Counter[str]]]
    """What followed, a state or ``SUCCESS``, by state and action, in the order in which it was
    first seen."""

    @classmethod
    def of(cls, trajectories: Iterable[Trajectory]) -> Transitions | None:
        """Collect the transitions of trajectories from one initial state; None without any."""
        outcomes: dict[str, dict[str, Counter[str]]] = {}
        start = None
        for trajectory in trajectories:
            if not trajectory.is_trainable:
                continue
            steps = list[tuple[str, str, str]]()
            for turn in trajectory.turns:
                start = turn.anchor_key if start is None else start
                before = (turn.anchor_key, *turn.reached_keys[:-1])
                # A turn without actions has no transition.
                steps += zip(before, turn.actions, turn.reached_keys, strict=bool(turn.actions))
            if trajectory.success and steps:
                steps[-1] = (*steps[-1][:2], SUCCESS)
            for key, action, after in steps:
                outcomes.setdefault(key, {}).setdefault(action, Counter())[after] += 1
        return None if start is None else cls(start, outcomes)

    @property
    def has_success(self) -> bool:
        """Whether any transition led to success."""
        return any(
            SUCCESS in found for actions in self.outcomes.values() for found in actions.values()
        )

    @property
    def noise(self) -> float:
        """The share of transitions that did not lead where their action mostly led."""
        seen = [found for actions in self.outcomes.values() for found in actions.values()]
        total = sum(found.total() for found in seen)
        return 1.0 - sum(max(found.values()) for found in seen) / total if total else 0.0

    def _modes(self) -> dict[str, dict[str, str]]:
        """Return the most frequent outcomes from which success can be reached; the first ones seen
        among equals."""
        modes = {
            key: {action: found.most_common(1)[0][0] for action, found in actions.items()}
            for key, actions in self.outcomes.items()
        }
        reaching, before = {SUCCESS}, 0
        while len(reaching) > before:
            before = len(reaching)
            reaching |= {key for key, actions in modes.items() if reaching & {*actions.values()}}
        return {
            key: {action: after for action, after in actions.items() if after in reaching}
            for key, actions in modes.items()
        }

    def _values(self) -> dict[str, dict[str, float]]:
        """Return how surely an action leads to success: value iteration with slightly discounted
        success, which ends because values only grow, by ever less."""
        values = {SUCCESS: 1.0}
        noise, change = self.noise, 1.0
        result: dict[str, dict[str, float]] = {key: {} for key in self.outcomes}
        while change >= _CONVERGED:
            change = 0.0
            # Backwards, so that one sweep carries a value along a whole trajectory.
            for key in reversed(self.outcomes):
                for action, found in self.outcomes[key].items():
                    tries = found.total() + noise
                    sure = sum(n / tries * values.get(after, 0.0) for after, n in found.items())
                    result[key][action] = _DISCOUNT * sure
                value = max(result[key].values())
                change = max(change, value - values.get(key, 0.0))
                values[key] = value
        return result

    def surest_ways(self) -> SurestWays:
        """Return the ways that most surely lead to success, as far as the transitions tell.

        The probability of an outcome is its share among the tries of its action, and what was never
        tried leads nowhere. Where actions had different outcomes, one lucky try proves little:
        every action then counts as tried once more in vain, with the weight of the observed noise.
        A way goes by most frequent outcomes, visits no state twice, and takes the best of the
        actions from whose outcome success can still be reached so.

        In a world without noise it is the shortest way.
        """
        return SurestWays(self._values(), self._modes())

    def surest_way(self) -> tuple[tuple[str, str], ...]:
        """Return the surest way from the start; none if no success can be reached."""
        return self.surest_ways().way_from(self.start)
