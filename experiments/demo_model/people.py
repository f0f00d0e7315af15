"""The persons of problems, and the words for them in sentences and answers."""

from dataclasses import dataclass
from random import Random

from experiments.demo_model import words
from experiments.demo_model.words import Verb


@dataclass(frozen=True, slots=True)
class Person:
    """A name, "I", "We" or a place; "I" in a prompt is "You" in its answer."""

    name: str
    pronoun: str
    answer_name: str
    plural: bool = False  # "have" rather than "has"

    @property
    def subject(self) -> str:
        """The pronoun at the start of a sentence."""
        return self.pronoun[0].upper() + self.pronoun[1:]

    @property
    def does(self) -> str:
        """As in "How many does she have?"."""
        return "do" if self.plural else "does"

    @property
    def has(self) -> str:
        """As in "She has"."""
        return "have" if self.plural else "has"

    def form(self, verb: Verb, *, past: bool = False) -> str:
        """The form of the verb after this subject."""
        return verb.past if past else verb.base if self.plural else verb.third


def random_person(rng: Random) -> Person:
    """Draw a name, a place, "I" or "We"; rarely an invented name, so that training has unknown names."""
    kind = rng.random()
    if kind < 0.12:
        return Person("I", "I", "You", plural=True)
    if kind < 0.15:
        return Person("We", "we", "You", plural=True)
    if kind < 0.20:
        shop = rng.choice(words.SHOPS)
        return Person(shop, "it", shop.replace("A ", "The "))
    pronoun, names = rng.choice((("she", words.SHE), ("he", words.HE)))
    if kind < 0.25:
        worker = rng.choice(words.WORKERS)
        return Person(worker, pronoun, worker.replace("A ", "The ").replace("My ", "Your "))
    name = invented_name(rng) if kind > 0.95 else rng.choice(names)
    return Person(name, pronoun, name)


def invented_name(rng: Random) -> str:
    """A name of two or three syllables that is unknown to the tokenizer."""
    syllables = [rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(2, 3))]
    return "".join(syllables).capitalize() + rng.choice(("", "n", "s", "r"))


def spoken_later(person: Person) -> str:
    """The name inside a question: "the shop", "Tom", "I"."""
    first, _, rest = person.name.partition(" ")
    if first == "A":
        return f"the {rest}"
    return person.name.lower() if first in ("The", "We") else person.name.replace("My ", "my ")
