"""``CoqLibrary``: theorems and proofs of the installed library of Coq, read where they are."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from ragen_pl.envs.proof.prover import Theorem
from ragen_pl.envs.proof.sentences import sentences
from ragen_pl.errors import ConfigError

_STATES = re.compile(
    r"(?:(?:Local|Global|#\[[^\]]*\])\s+)*(?:Lemma|Theorem|Corollary|Fact|Remark|Proposition)"
    r"\s+([A-Za-z_][\w']*)"
)
FILES = (
    "Arith/Between.v",
    "Arith/Compare.v",
    "Bool/Bool.v",
    "Bool/BoolOrder.v",
    "Bool/DecBool.v",
    "Bool/IfProp.v",
    "Bool/Sumbool.v",
    "Bool/Zerob.v",
    "Logic/Decidable.v",
    "Relations/Operators_Properties.v",
    "Relations/Relations.v",
    "Sets/Constructive_sets.v",
    "Sets/Relations_1_facts.v",
    "Sets/Relations_2_facts.v",
)
"""Files of the standard library with short proofs of plain logic, Booleans, numbers and relations,
none of which needs an axiom."""


class CoqLibrary:
    """Theorems of the standard library of Coq that is installed here, with their own proofs.

    Statements and proofs are read from the installed files (LGPL) when they are needed, and nothing
    of them is shipped. A theorem is posed where its file states it, so that what stands before it
    may be used, and what comes after may not.

    Args:
        files: Files below the library's folder ``theories``.
        longest_proof: Most tactics of the library's proof; theorems with longer ones are left out.
        coqtop: The command of the prover, which says where its library is.
    """

    def __init__(
        self, files: Sequence[str] = FILES, longest_proof: int = 6, coqtop: str = "coqtop"
    ) -> None:
        if longest_proof < 1:
            raise ValueError(f"longest_proof: {longest_proof} is not positive")
        self.files, self.longest_proof, self.coqtop = tuple(files), longest_proof, coqtop
        if not self.theorems():
            raise ValueError(
                f"files: none of {', '.join(self.files)} has a theorem with at most "
                f"{longest_proof} tactics"
            )

    def theorems(self) -> Sequence[Theorem]:
        """List the theorems of all files, in the order of the files."""
        return _theorems(self.files, self.longest_proof, self.coqtop)


@lru_cache(maxsize=16)
def _theorems(files: tuple[str, ...], longest: int, coqtop: str) -> tuple[Theorem, ...]:
    folder = library_folder(coqtop) / "theories"
    found: list[Theorem] = []
    for name in files:
        path = folder / name
        if not path.is_file():
            raise ConfigError(
                f"files: {name} is not in {folder}: name files below it; Debian has them in the "
                "package libcoq-stdlib"
            )
        each = theorems_of(name.removesuffix(".v"), path.read_text(encoding="utf-8"))
        found.extend(theorem for theorem in each if len(theorem.script) <= longest)
    return tuple(found)


@lru_cache(maxsize=4)
def library_folder(coqtop: str) -> Path:
    """Return the folder of Coq's library.

    Raises:
        ConfigError: if there is no Coq.
    """
    try:
        found = subprocess.run([coqtop, "-where"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            f"coqtop: {coqtop!r} cannot be run ({error}): install Coq (Debian: apt-get install "
            "--no-install-recommends coq libcoq-stdlib) or give the command's path"
        ) from error
    return Path(found.stdout.strip())


def theorems_of(file: str, text: str) -> Iterator[Theorem]:
    """Yield the theorems of a file that are proved by a plain script between Proof and Qed."""
    given = tuple(sentences(text))
    seen: set[str] = set()
    for place, sentence in enumerate(given):
        stated = _STATES.match(sentence)
        if stated is None or " := " in sentence or stated[1] in seen:
            continue
        seen.add(stated[1])
        first = place + 2 if given[place + 1 : place + 2] == ("Proof.",) else place + 1
        last = next(
            (i for i in range(first, len(given)) if given[i] in _ENDS or _STATES.match(given[i])),
            len(given),
        )
        script = given[first:last]
        plain = script and not any(each.startswith("Proof") for each in script)
        if plain and last < len(given) and given[last] == "Qed.":
            yield Theorem(f"{file}:{stated[1]}", sentence, script, given[:place])


_ENDS = ("Qed.", "Defined.", "Admitted.", "Abort.")
