"""An invented world: people, companies and towns, a document on each, and questions over them.

Nobody can know the answers without searching, which sets it apart from facts about the real world.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ragen_pl.envs.tools.questions import Question
from ragen_pl.envs.tools.search import Passage

# fmt: off
_FIRST = (
    "Ada", "Bela", "Cira", "Dora", "Edna", "Fria", "Gita", "Hale", "Ines", "Jora", "Kaia", "Lena",
    "Mira", "Nora", "Olga", "Pia", "Runa", "Sela", "Tara", "Una", "Vera", "Wanda", "Xenia",
    "Yara", "Zoe", "Amos", "Boris", "Cyrus", "Davin", "Emil",
)
_LAST = (
    "Abbot", "Bergen", "Calder", "Dunmore", "Eklund", "Falk", "Garrow", "Halden", "Iversen",
    "Jarvis", "Kessler", "Lindon", "Marlow", "Norris", "Oakes", "Pryce", "Quill", "Rowan",
    "Sutter", "Thorn", "Ulrich", "Vance", "Wexler", "Yates", "Zeller", "Ambler", "Bowen", "Crane",
    "Dalby", "Elwood",
)
_PLACES = (
    "Alder", "Birch", "Cedar", "Dune", "Elm", "Fern", "Grove", "Heath", "Iris", "Juniper", "Kelp",
    "Larch", "Moss", "Nettle",
)
# fmt: on
_FORMS = ("Port", "Mount", "Fort", "Lake", "New", "Old", "Upper", "Lower", "Saint", "North")
# fmt: off
_BRANDS = (
    "Amber", "Beacon", "Comet", "Delta", "Ember", "Flint", "Glacier", "Harbor", "Indigo",
    "Jasper", "Kite", "Lumen", "Meteor", "Nimbus",
)
# fmt: on
_TRADES = ("Works", "Mills", "Foods", "Tools", "Motors", "Paper", "Glass", "Steel")
# fmt: off
_COUNTRIES = (
    "Avaria", "Belmora", "Castria", "Dornland", "Estavia", "Farroway", "Galdonia", "Hestria",
    "Istland", "Jorvania", "Kelmark", "Lorvia",
)
# fmt: on
_RIVERS = ["Arne", "Brell", "Corve", "Dann", "Eske", "Fjord", "Garn", "Hule"]
_GOODS = ["apples", "bells", "carpets", "drums", "engines", "felt", "gloves", "honey"]
_YEARS = tuple(str(year) for year in range(1850, 1950, 5))

Chain = tuple[str, ...]
"""Names of relations, the first of a person or a company."""
CHAINS: Mapping[Chain, str] = {
    ("employer",): "Which company does {} work for?",
    ("birthplace",): "In which town was {} born?",
    ("founder",): "Who founded {}?",
    ("seat",): "In which town is the seat of {}?",
    ("birthplace", "country"): "In which country was {} born?",
    ("birthplace", "river"): "On which river lies the town where {} was born?",
    ("employer", "year"): "In which year was the company founded that {} works for?",
    ("employer", "founder"): "Who founded the company that {} works for?",
    ("employer", "seat"): "In which town is the seat of the company that {} works for?",
    ("seat", "country"): "In which country is the seat of {}?",
    ("seat", "good"): "What is made in the town where {} has its seat?",
    ("founder", "birthplace"): "In which town was the founder of {} born?",
    (
        "employer",
        "seat",
        "country",
    ): "In which country is the seat of the company that {} works for?",
    ("employer", "seat", "river"): (
        "On which river lies the town where the company that {} works for has its seat?"
    ),
    ("employer", "founder", "birthplace"): (
        "In which town was the founder of the company that {} works for born?"
    ),
    ("founder", "birthplace", "country"): "In which country was the founder of {} born?",
}
"""The questions by what leads to the answer: one to three steps."""
MOST_HOPS = max(map(len, CHAINS))


@dataclass(frozen=True, slots=True)
class World:
    """A generated world; equal ones are the same in every process.

    Args:
        seed: What decides its facts.
        people: Number of people, at most 900; there is a company for eight of them and a town
            for ten.
    """

    seed: int
    people: int

    def documents(self) -> tuple[Passage, ...]:
        """Return a document on each person, company and town."""
        return _documents(self)

    @property
    def facts(self) -> Mapping[str, Mapping[str, str]]:
        """The relations of each person, company and town."""
        return _facts(self)

    def subjects(self, chain: Chain) -> Sequence[str]:
        """Return whom a question may be about."""
        return [name for name, facts in self.facts.items() if chain[0] in facts]

    def question(self, chain: Chain, subject: str) -> Question:
        """Return the question about a subject, with the searches that lead to its answer."""
        place, searches = subject, list[tuple[str, str]]()
        for relation in chain:
            searches.append(("search", place))
            place = self.facts[place][relation]
        needed = tuple(dict.fromkeys(searches))  # a founder may work for the own company
        return Question(CHAINS[chain].format(subject), (place,), str(len(chain)), needed)


@lru_cache(maxsize=8)
def _facts(world: World) -> dict[str, dict[str, str]]:
    rng = random.Random(f"search world {world.seed}")
    people = rng.sample([f"{a} {b}" for a in _FIRST for b in _LAST], world.people)
    companies = rng.sample([f"{a} {b}" for a in _BRANDS for b in _TRADES], max(2, len(people) // 8))
    towns = rng.sample([f"{a} {b}" for a in _FORMS for b in _PLACES], max(2, len(people) // 10))
    facts: dict[str, dict[str, str]] = {}
    for name in people:
        facts[name] = {"birthplace": rng.choice(towns), "employer": rng.choice(companies)}
    for name in companies:
        facts[name] = {
            "founder": rng.choice(people),
            "seat": rng.choice(towns),
            "year": rng.choice(_YEARS),
        }
    for name in towns:
        facts[name] = {
            "country": rng.choice(_COUNTRIES),
            "river": rng.choice(_RIVERS),
            "good": rng.choice(_GOODS),
        }
    return facts


_TEXTS: Mapping[str, str] = {
    "employer": "born in {birthplace}, works for {employer}.",
    "founder": "founded by {founder} in {year}, seat in {seat}.",
    "river": "a town in {country} on the river {river}, makes {good}.",
}
"""What a document says, by a relation that only its kind has."""


@lru_cache(maxsize=8)
def _documents(world: World) -> tuple[Passage, ...]:
    found = []
    for name, facts in world.facts.items():
        (text,) = (text for key, text in _TEXTS.items() if key in facts)
        found.append(Passage(name, text.format(**facts)))
    return tuple(found)


def pieces() -> Iterator[str]:
    """Iterate over the words of the world, which are the same in all of them."""
    names = (_FIRST, _LAST, _FORMS, _PLACES, _BRANDS, _TRADES, _COUNTRIES, _RIVERS, _GOODS, _YEARS)
    for words in names:
        for word in words:
            yield from (word, f" {word}")
    for template in (*_TEXTS.values(), *CHAINS.values()):
        for text in _between_fields(template):
            yield from (text, f": {text}")


def _between_fields(template: str) -> Iterator[str]:
    for part in template.split("{"):
        text = part.rpartition("}")[2]
        if text:
            yield text
