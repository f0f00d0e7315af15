"""Stories: a person has a number of things, and one to three events change it."""

from random import Random

from experiments.demo_model import words
from experiments.demo_model.arithmetic import CalculationStep, Level, operand_for, operators_for
from experiments.demo_model.people import Person, random_person, spoken_later
from experiments.demo_model.problem import Problem
from experiments.demo_model.words import Verb

OPERATOR_WEIGHTS = {"+": 38, "-": 38, "*": 12, "/": 12}
EVENT_COUNTS, EVENT_SHARES = (1, 2, 3), (35, 50, 15)


def story(level: Level, rng: Random) -> Problem:
    """ "A shop has 25 pears and buys 33 more, then sells half of them. How many are left?" """
    person, item, past = random_person(rng), rng.choice(words.ITEMS), rng.random() < 0.3
    value = start = rng.randint(2, level.max_start)
    clauses, steps = [], []
    for _ in range(rng.choices(EVENT_COUNTS, EVENT_SHARES)[0]):
        clause, step = event(value, person, item, past=past, level=level, rng=rng)
        clauses.append(clause)
        steps.append(step)
        value = step.result
    first = f"{person.name} {'had' if past else person.has} {start} {item}"
    question = ask(person, item, "left" if steps[-1].operator in "-/" else "now", rng)
    prompt = f"{join_clauses(first, clauses, person, rng)} {question}"
    if rng.random() < 0.06 and person.name != "We":
        prompt = as_condition(first, clauses, question)
    starts = "start" if person.answer_name == "You" else "starts"
    return Problem(
        prompt,
        tuple(steps),
        f"{person.answer_name} {starts} with {start} {item}.",
        f"{person.answer_name} {person.has} {value} {item}.",
    )


def event(
    value: int, person: Person, item: str, *, past: bool, level: Level, rng: Random
) -> tuple[str, CalculationStep]:
    """Draw the next event for `value` things: its clause ("buys 33 more") and its step."""
    possible = operators_for(value, level)
    [operator] = rng.choices(possible, [OPERATOR_WEIGHTS[o] for o in possible])
    operand = operand_for(value, operator, level, rng)
    match operator:
        case "+":
            verb, words_after, lead = adding(operand, item, rng)
        case "-":
            verb, words_after, lead = taking(operand, item, rng)
        case "*":
            verb, words_after, lead = multiplying(operand, rng)
        case _:
            verb, words_after, lead = dividing(operand, item, rng)
    return f"{person.form(verb, past=past)} {words_after}", CalculationStep(value, operator, operand, lead)


def adding(operand: int, item: str, rng: Random) -> tuple[Verb, str, str]:
    """Returns: the verb, the words after it, and the lead of the step."""
    verb = rng.choice(words.ADDING)
    objects = [f"{operand} more", f"another {operand}"]
    if operand > 1:
        objects += [f"{operand} more", f"{operand} more {item}"]
    return verb, rng.choice(objects), f"{verb.gerund} {operand} more gives"


def taking(operand: int, item: str, rng: Random) -> tuple[Verb, str, str]:
    """Returns: as `adding`."""
    if rng.random() < 0.1:
        return words.GIVING, f"{operand} to {rng.choice(words.SHE + words.HE)}", f"Giving {operand} leaves"
    verb = taking_verb(item, rng)
    objects = [f"{operand}", f"{operand} of them"]
    if operand > 1:
        objects += [f"{operand}", f"{operand} {item}"]
    return verb, rng.choice(objects), f"{verb.gerund} {operand} leaves"


def taking_verb(item: str, rng: Random) -> Verb:
    """Food may be eaten."""
    return words.EATING if item in words.FOODS and rng.random() < 0.4 else rng.choice(words.TAKING)


def multiplying(factor: int, rng: Random) -> tuple[Verb, str, str]:
    """Returns: as `adding`."""
    named = {2: words.DOUBLING, 3: words.TRIPLING}.get(factor)
    if named and rng.random() < 0.6:
        return named, rng.choice(("them", "that")), f"{named.gerund} gives"
    return words.GETTING, f"{factor} times as many", f"Having {factor} times as many makes"


def dividing(divisor: int, item: str, rng: Random) -> tuple[Verb, str, str]:
    """Returns: as `adding`."""
    share = words.SHARE_NAMES.get(divisor)
    if divisor == 2 and rng.random() < 0.7:
        verb = taking_verb(item, rng)
        return verb, "half of them", f"{verb.gerund} half leaves"
    if share and rng.random() < 0.6:
        return words.KEEPING, f"only {share} of them", f"Keeping {share} leaves"
    return words.SPLITTING, f"them into {divisor} equal parts, keeping one", "One part is"


def join_clauses(first: str, clauses: list[str], person: Person, rng: Random) -> str:
    """Join the clauses in one sentence, or write one sentence per event."""
    if rng.random() < 0.55:
        if len(clauses) == 1:
            return first + rng.choice((" and ", ", and ", ", then ", " and then ", " but ")) + clauses[0] + "."
        *middle, last = clauses
        joined = rng.choice((", ", " and ")) + ", ".join(middle)
        return first + joined + rng.choice((", then ", " and then ", ", and ", ", and then ")) + last + "."
    sentences = [first]
    for index, clause in enumerate(clauses):
        later = f"Later {person.pronoun}" if index else person.subject
        opener = rng.choice((person.subject, f"Then {person.pronoun}", later))
        sentences.append(f"{opener} {clause}")
    return ". ".join(sentences) + "."


def as_condition(first: str, clauses: list[str], question: str) -> str:
    """ "If Tom has 12 apples and eats 5, how many are left?" """
    if first.split(maxsplit=1)[0] in ("A", "The", "My"):
        first = first[0].lower() + first[1:]
    return f"If {first} and {' and '.join(clauses)}, {question[0].lower()}{question[1:]}"


def ask(person: Person, item: str, state: str, rng: Random) -> str:
    """The question; `state` is "left" or "now"."""
    who = f"{person.does} {rng.choice((spoken_later(person), person.pronoun))} have"
    there = "left" if state == "left" else "there now"
    [question] = rng.choices(
        (
            f"How many {item} {who} {state}?",
            f"How many {item} {who}?",
            f"How many {item} are {there}?",
            "How many are left?" if state == "left" else f"How many {who}?",
            f"How many {item} {who} in the end?",
        ),
        (40, 15, 20, 15, 10),
    )
    return question
