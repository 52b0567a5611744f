"""The check of an environment against ``TextEnv``'s contract, before a run depends on it.

It takes seconds; ``contract_kit`` examines an environment thoroughly.
"""

from ragen_pl.envs.contract.declared import check_declared
from ragen_pl.envs.contract.trial_episode import check_contract

__all__ = ["check_contract", "check_declared"]
