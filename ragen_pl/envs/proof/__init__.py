"""``Proof``, theorems to prove against a proof assistant: Coq and its library, or Lean 4.

Coq is the system's (Debian's ``coq`` and ``libcoq-stdlib``), and so is Lean (``elan``), which may
be a Kimina server elsewhere; nothing is installed by ``pip``.
"""

from ragen_pl.envs.proof.coqtop import CoqTop
from ragen_pl.envs.proof.env import Proof
from ragen_pl.envs.proof.kimina import Kimina
from ragen_pl.envs.proof.lean import Lean
from ragen_pl.envs.proof.lean_statements import LeanStatements
from ragen_pl.envs.proof.library import CoqLibrary
from ragen_pl.envs.proof.prover import Check, Library, Prover, ProverError, Theorem

__all__ = [
    "Check",
    "CoqLibrary",
    "CoqTop",
    "Kimina",
    "Lean",
    "LeanStatements",
    "Library",
    "Proof",
    "Prover",
    "ProverError",
    "Theorem",
]
