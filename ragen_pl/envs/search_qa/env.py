"""``SearchQA``: questions over several documents, to be found in an index."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from ragen_pl.envs.search_qa import world as invented
from ragen_pl.envs.search_qa.files import Contexts, questions_of
from ragen_pl.envs.splits import Split
from ragen_pl.envs.tools.calls import CallForm
from ragen_pl.envs.tools.index import Corpus, Engine
from ragen_pl.envs.tools.questions import Question, QuestionEnv, Reward
from ragen_pl.envs.tools.search import CorpusFile, SearchTool
from ragen_pl.envs.tools.toolbox import Toolbox

_MOST_PEOPLE = 900


class SearchQA(QuestionEnv):
    """Questions whose answers lie one to three documents away (RAGEN-2's SearchQA).

    ``search`` finds documents, ``finish`` answers. An exact match earns 1, otherwise an F1 of 0.3
    or more earns itself (RAGEN-2); only the exact match is a success. The shipped documents are of
    an invented world, in which nobody knows an answer without searching; files in HotpotQA's form
    take its place.

    Args:
        questions: File of questions in HotpotQA's form, as JSON lines or one list: ``question``,
            ``answer``, and if you like ``level``, ``supporting_facts`` (the expert's searches) and
            ``context``. null for the invented world.
        corpus: File of documents, JSON lines with ``title`` and ``text``; null for the ``context``
            of the questions, or the invented world.
        people: People of the invented world, 20 to 900.
        fewest_hops: Fewest documents that an answer needs, 1 to 3, in the invented world.
        most_hops: Most of them.
        engine: What ranks the documents: SQLite, or the package bm25s (extra ``search``).
        top_k: Documents that a search finds.
        tools: Tools beside ``search`` and ``finish``.
        reward: Reward of an answer that is only partly right: its F1 from 0.3 on, or none.
        split: ``train`` or ``eval`` for disjoint questions, in the invented world about disjoint
            people and companies; ``all`` for every one.
        calls: Form of a call in the prompt: JSON, or ``name[text]`` as in RAGEN-2. Both are read.
        repeat_question: Whether every observation has the question.
        max_actions: Maximum calls of an episode, the answer included.
    """

    name = "search_qa"

    def __init__(  # noqa: PLR0913 (one argument per key)
        self,
        questions: str | None = None,
        corpus: str | None = None,
        people: int = 400,
        fewest_hops: int = 2,
        most_hops: int = 2,
        engine: Engine = "sqlite",
        top_k: int = 5,
        tools: Sequence[Toolbox] = (),
        reward: Reward = "f1",
        split: Split = "train",
        calls: CallForm = "json",
        repeat_question: bool = True,
        max_actions: int = 10,
    ) -> None:
        if not 20 <= people <= _MOST_PEOPLE:
            raise ValueError(f"people: {people} is not between 20 and {_MOST_PEOPLE}")
        if not 1 <= fewest_hops <= most_hops <= invented.MOST_HOPS:
            raise ValueError(
                f"fewest_hops: {fewest_hops} and most_hops: {most_hops} must be 1 to "
                f"{invented.MOST_HOPS}, in this order"
            )
        if corpus is not None and questions is None:
            raise ValueError(f"corpus: {corpus} needs questions about it: name their file")
        self._world = invented.World(0, people)
        self._path = questions
        documents: Corpus = self._world
        if questions is not None:
            questions_of(questions)  # a file that cannot be read is told at once
            documents = Contexts(questions) if corpus is None else CorpusFile(corpus)
            documents.documents()
        self._chains = [
            chain for chain in invented.CHAINS if fewest_hops <= len(chain) <= most_hops
        ]
        search = SearchTool(documents, engine, top_k)
        super().__init__((search, *tools), reward, split, calls, repeat_question, max_actions)

    @property
    def instruction(self) -> str:
        """The task in words."""
        return "Answer the question. Search for what it names, then finish with a short answer."

    def _question_of(self, seed: int) -> Question:
        rng = random.Random(f"search question {seed}")
        if self._path is not None:
            known = questions_of(self._path)
            return known[rng.randrange(len(known))]
        hops = rng.choice(sorted({len(chain) for chain in self._chains}))
        chain = rng.choice([each for each in self._chains if len(each) == hops])
        return self._world.question(chain, rng.choice(self._world.subjects(chain)))

    def _split_key(self, question: Question) -> str:
        """Return the question or, in the invented world, whom it is about."""
        return question.text if self._path is not None else question.calls[0][1]

    def vocabulary(self) -> Iterator[str]:
        """List what is around questions and calls, and the words of the invented world."""
        yield from super().vocabulary()
        if self._path is None:
            yield from invented.pieces()
