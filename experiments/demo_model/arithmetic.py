"""Calculation steps with small whole numbers, of which problems and worked answers are made."""

from dataclasses import dataclass
from random import Random

MAX_RESULT = 99


@dataclass(frozen=True, slots=True)
class Level:
    """The difficulty of problems: the largest numbers in them."""

    max_start: int
    max_operand: int  # of additions and subtractions
    max_factor: int  # of multiplications and divisions


EASY = Level(max_start=20, max_operand=15, max_factor=3)
FULL = Level(max_start=60, max_operand=40, max_factor=5)


@dataclass(frozen=True, slots=True)
class CalculationStep:
    """One equation of the worked answer, with the words that lead to it ("Buying 33 more gives")."""

    left: int
    operator: str  # one of + - * /
    right: int
    lead: str = ""

    @property
    def result(self) -> int:
        """The right side; divisions are exact by construction."""
        match self.operator:
            case "+":
                return self.left + self.right
            case "-":
                return self.left - self.right
            case "*":
                return self.left * self.right
            case _:
                return self.left // self.right

    @property
    def equation(self) -> str:
        """As the answer writes it, without a full stop: "25+33=58"."""
        return f"{self.left}{self.operator}{self.right}={self.result}"


def operators_for(value: int, level: Level) -> list[str]:
    """The operators that keep the result whole and within 0 ... MAX_RESULT."""
    possible = []
    if value < MAX_RESULT:
        possible.append("+")
    if value > 1:
        possible.append("-")
    if 2 <= value <= MAX_RESULT // 2:
        possible.append("*")
    if any(value % divisor == 0 for divisor in range(2, level.max_factor + 1)) and value > 1:
        possible.append("/")
    return possible


def operand_for(value: int, operator: str, level: Level, rng: Random) -> int:
    """Draw an operand that keeps the result whole and within 0 ... MAX_RESULT."""
    match operator:
        case "+":
            return rng.randint(1, min(level.max_operand, MAX_RESULT - value))
        case "-":
            return rng.randint(1, min(level.max_operand, value))
        case "*":
            return rng.randint(2, min(level.max_factor, MAX_RESULT // value))
        case _:
            return rng.choice([d for d in range(2, level.max_factor + 1) if value % d == 0])


def random_step(level: Level, rng: Random) -> CalculationStep:
    """Draw one equation on its own, for the drills; all four operators about as often."""
    operator = rng.choice("++--*/")
    if operator == "*":
        factor = rng.randint(2, level.max_factor)
        return CalculationStep(rng.randint(1, MAX_RESULT // factor), "*", factor)
    if operator == "/":
        divisor = rng.randint(2, level.max_factor)
        return CalculationStep(divisor * rng.randint(1, MAX_RESULT // divisor), "/", divisor)
    left = rng.randint(1, min(MAX_RESULT - 1, level.max_start + level.max_operand))
    return CalculationStep(left, operator, operand_for(left, operator, level, rng))
