"""The other kinds of problems: containers, shopping, two people, sharing, and plain sums."""

from dataclasses import replace
from random import Random

from experiments.demo_model import words
from experiments.demo_model.arithmetic import MAX_RESULT, CalculationStep, Level, operand_for, operators_for
from experiments.demo_model.people import random_person
from experiments.demo_model.problem import Problem


def containers(level: Level, rng: Random) -> Problem:
    """ "There are 4 boxes with 12 pens in each. How many pens are there?", sometimes with a change."""
    factor = rng.randint(2, level.max_factor)
    each = rng.randint(2, min(20, MAX_RESULT // factor))
    person, item, box = random_person(rng), rng.choice(words.ITEMS), rng.choice(words.CONTAINERS)
    prompt = rng.choice(
        (
            f"There are {factor} {box} with {each} {item} in each.",
            f"{person.name} {person.has} {factor} {box} of {each} {item}.",
            f"{person.name} {person.has} {factor} {box} with {each} {item} each.",
            f"Each of {factor} {box} holds {each} {item}.",
        )
    )
    steps, left = [CalculationStep(factor, "*", each, f"{factor} {box} of {each} {item} hold")], ""
    if rng.random() < 0.55:
        sentence, step = change(steps[0].result, item, level, rng)
        prompt, left = f"{prompt} {sentence}", " left" if step.operator == "-" else ""
        steps.append(step)
    question = f"How many {item} are there{left}{rng.choice(('', ' in total'))}?"
    opening = f"There are {factor} {box} of {each} {item}."
    return Problem(f"{prompt} {question}", tuple(steps), opening, f"There are {steps[-1].result} {item}{left}.")


def change(value: int, item: str, level: Level, rng: Random) -> tuple[str, CalculationStep]:
    """Add to the containers' contents or take from them. Returns: the sentence and the step."""
    operator = "+" if value < MAX_RESULT and rng.random() < 0.4 else "-"
    operand = operand_for(value, operator, level, rng)
    if operator == "+":
        sentence = f"There are {operand} more {item} on the table."
        return sentence, CalculationStep(value, "+", operand, f"With {operand} more there are")
    sentence = f"{operand} {item} are {rng.choice(('taken', 'sold', 'lost', 'used'))}."
    return sentence, CalculationStep(value, "-", operand, f"Without {operand} there are")


def shopping(level: Level, rng: Random) -> Problem:
    """ "Anna has 50 dollars. She buys 4 books for 6 dollars each. How much money is left?" """
    factor = rng.randint(2, level.max_factor)
    price = rng.randint(2, min(15, MAX_RESULT // factor))
    person, item = random_person(rng), rng.choice(words.ITEMS)
    cost = CalculationStep(factor, "*", price, f"{factor} {item} cost")
    buys = f"{'buy' if person.plural else 'buys'} {factor} {item} {rng.choice(('for', 'at'))} {price} dollars each"
    opening = f"Each costs {price} dollars."
    if cost.result == MAX_RESULT or rng.random() < 0.4:
        prompt = f"{person.name} {buys}. How much {person.does} {person.pronoun} pay?"
        return Problem(prompt, (cost,), opening, f"The total is {cost.result} dollars.")
    money = min(MAX_RESULT, cost.result + rng.randint(1, level.max_operand))
    paid = CalculationStep(money, "-", cost.result, f"Paying {cost.result} leaves")
    question = rng.choice(
        (
            f"How much money {person.does} {person.pronoun} have left?",
            "How much money is left?",
            "How many dollars are left?",
        )
    )
    prompt = f"{person.name} {person.has} {money} dollars. {person.subject} {buys}. {question}"
    return Problem(prompt, (cost, paid), opening, f"There are {paid.result} dollars left.")


def pair(level: Level, rng: Random) -> Problem:
    """The things of two people: their sum, their difference, or both from a difference."""
    first, second = rng.sample(words.SHE + words.HE, 2)
    draw = rng.choices((in_all, difference, more_than), (40, 20, 40))[0]
    return draw(first, second, rng.choice(words.ITEMS), level, rng)


def in_all(first: str, second: str, item: str, level: Level, rng: Random) -> Problem:
    """ "Tom has 12 pens and Mia has 5. How many do they have together?" """
    have = rng.randint(2, level.max_start)
    total = CalculationStep(have, "+", operand_for(have, "+", level, rng), "Together they have")
    question = rng.choice(
        (f"How many {item} do they have together?", f"How many {item} do they have in total?", "How many in all?")
    )
    prompt = f"{first} has {have} {item} and {second} has {total.right}. {question}"
    return Problem(prompt, (total,), f"{first} has {have} {item}.", f"They have {total.result} {item}.")


def difference(first: str, second: str, item: str, level: Level, rng: Random) -> Problem:
    """ "Tom has 12 pens and Mia has 5. How many more pens does Tom have?" """
    more = rng.randint(3, level.max_start)
    gap = CalculationStep(more, "-", operand_for(more, "-", level, rng), "The difference is")
    question = f"How many more {item} does {first} have{rng.choice(('', f' than {second}'))}?"
    prompt = f"{first} has {more} {item} and {second} has {gap.right}. {question}"
    return Problem(prompt, (gap,), f"{first} has {more} {item}.", f"{first} has {gap.result} more.")


def more_than(first: str, second: str, item: str, level: Level, rng: Random) -> Problem:
    """ "Tom has 12 pens. Mia has 5 more than Tom. How many do they have together?" """
    have = rng.randint(2, min(level.max_start, 45))
    gap = rng.randint(1, min(level.max_operand, MAX_RESULT - 2 * have))
    other = CalculationStep(have, "+", gap, f"{second} has")
    total = CalculationStep(have, "+", other.result, "Together they have")
    text = f"{first} has {have} {item}. {second} has {gap} more{rng.choice(('', f' {item}'))} than {first}."
    opening = f"{first} has {have} {item}."
    if rng.random() < 0.4:
        prompt = f"{text} How many {item} does {second} have?"
        return Problem(prompt, (other,), opening, f"{second} has {other.result} {item}.")
    prompt = f"{text} How many{rng.choice(('', f' {item}'))} do they have together?"
    return Problem(prompt, (other, total), opening, f"They have {total.result} {item}.")


def sharing(level: Level, rng: Random) -> Problem:
    """ "Tom shares 24 sweets equally among 4 friends. How many does each friend get?" """
    parts = rng.randint(2, level.max_factor)
    value = parts * rng.randint(2, level.max_start // parts)
    person, item, group = random_person(rng), rng.choice(words.ITEMS), rng.choice(list(words.GROUPS))
    shares = person.form(rng.choice(words.SHARING))
    steps, text = [], f"{person.name} {shares} {value} {item} equally among {parts} {group}."
    if rng.random() < 0.4:
        extra = rng.randint(1, min(level.max_operand, value - 1))
        steps.append(CalculationStep(value - extra, "+", extra, f"With {extra} more there are"))
        gets = f"{person.form(words.GETTING)} {extra} more and {shares} them"
        text = f"{person.name} {person.has} {value - extra} {item}, {gets} equally among {parts} {group}."
    steps.append(CalculationStep(value, "/", parts, f"Sharing among {parts} gives"))
    one = words.GROUPS[group]
    question = f"How many{rng.choice(('', f' {item}'))} does each {one} get?"
    closing = f"Each {one} gets {steps[-1].result} {item}."
    return Problem(f"{text} {question}", tuple(steps), f"There are {parts} {group}.", closing)


def plain(level: Level, rng: Random) -> Problem:
    """ "What is 25 + 33?", "7 times 8", "25+33-8" """
    value = rng.randint(2, level.max_start)
    text, spaced, named = str(value), rng.random() < 0.7, rng.random() < 0.25
    steps: list[CalculationStep] = []
    for _ in range(rng.choices((1, 2), (70, 30))[0]):
        possible = [o for o in operators_for(value, level) if not steps or o in "+-"]
        if not possible:
            break
        step = CalculationStep(
            value, operator := rng.choice(possible), operand_for(value, operator, level, rng), "We get"
        )
        steps.append(replace(step, lead="The result is") if steps else step)
        sign = words.SIGN_NAMES[operator] if named else operator
        text += f" {sign} {step.right}" if spaced or named else f"{sign}{step.right}"
        value = step.result
    wording = ("What is {}?", "What is {}?", "Calculate {}.", "How much is {}?", "{} = ?", "{}")
    prompt = rng.choice(wording).format(text)
    return Problem(prompt, tuple(steps), f"We calculate {text}.", f"The result is {value}.")
