"""``Proof``, theorems to prove against a proof assistant, with Coq and its library.

Coq is the system's (Debian's ``coq`` and ``libcoq-stdlib``); nothing is installed by ``pip``.
"""

from ragen_pl.envs.proof.coqtop import CoqTop
from ragen_pl.envs.proof.env import Proof
from ragen_pl.envs.proof.library import CoqLibrary
from ragen_pl.envs.proof.prover import Check, Library, Prover, ProverError, Theorem

__all__ = ["Check", "CoqLibrary", "CoqTop", "Library", "Proof", "Prover", "ProverError", "Theorem"]
