"""Writes the worked answer of a problem in one of several styles, drawn independently of the problem.

The tokens of an answer therefore depend on one another: unmasking many at low confidence mixes styles, so the
threshold matters. Each choice has a usual wording and rarer ones.
"""

from random import Random

from experiments.demo_model.problem import Problem


def worked_answer(problem: Problem, rng: Random) -> str:
    """Draw one worked answer; it ends "The answer is N."."""
    [style] = rng.choices((narrated, ordered, numbered, brief), weights=(58, 24, 10, 8))
    sentences = [*style(problem, rng), f"The answer is {problem.answer}."]
    return " ".join(sentence for sentence in sentences if sentence)


def narrated(problem: Problem, rng: Random) -> list[str]:
    """ "Tom starts with 25 pears. Buying 33 more gives 25+33=58." """
    sentences = [usually(rng, "", 0.7, "Let us see."), usually(rng, problem.opening, 0.8, "")]
    for index, step in enumerate(problem.steps):
        lead = usually(rng, step.lead, 0.68, "So we have" if index else "We have")
        sentences.append(f"{lead} {step.equation}.")
    return [*sentences, usually(rng, "", 0.6, problem.closing)]


def ordered(problem: Problem, rng: Random) -> list[str]:
    """ "First, 25+33=58. Then, 58/2=29." """
    openers = [usually(rng, "First,", 0.7, "To begin,")]
    openers += [usually(rng, "Then,", 0.65, "After that,") for _ in problem.steps[1:]]
    sentences = [f"{opener} {step.equation}." for opener, step in zip(openers, problem.steps, strict=True)]
    return [usually(rng, "", 0.7, "Let us see."), *sentences, usually(rng, problem.closing, 0.6, "")]


def numbered(problem: Problem, rng: Random) -> list[str]:
    """ "Step 1: 25+33=58. Step 2: 58/2=29." """
    word = usually(rng, "Step", 0.75, "Part")
    return [f"{word} {index}: {step.equation}." for index, step in enumerate(problem.steps, 1)]


def brief(problem: Problem, rng: Random) -> list[str]:
    """ "25+33=58. 58/2=29." """
    del rng
    return [f"{step.equation}." for step in problem.steps]


def usually(rng: Random, usual: str, share: float, rare: str) -> str:
    """The usual wording in `share` of the draws, else the rare one."""
    return usual if rng.random() < share else rare
