"""Hindsight imitation: the policy's own solutions, with thoughts that hold in hindsight.

If any member of a group succeeded, the shortest way from its initial state to success within the
transitions of *all* members is known, whatever they thought on the way; in a noisy environment, the
surest one. It becomes the thought and the actions of a response to imitate. The way is the policy's
own discovery: no expert and no search of the environment is consulted, and rewards stay as they
are.

It is self-imitation (Oh et al., arXiv 1806.05635) whose thoughts are relabeled in hindsight
(Andrychowicz et al., 1707.01495; near the rationalization of STaR, 2203.14465).

``writer`` writes down what an iteration found, ``memory`` keeps the latest of it and draws batches,
``solutions`` does both in every environment of a run.
"""

from ragen_pl.rollout.hindsight.config import HindsightImitation
from ragen_pl.rollout.hindsight.solutions import Solutions

__all__ = ["HindsightImitation", "Solutions"]
