"""Steps of a calculation with small whole numbers: what a problem is made of and its worked answer shows."""

from dataclasses import dataclass
from random import Random

LARGEST = 99  # no result is larger


@dataclass(frozen=True, slots=True)
class Level:
    """How hard the problems are. Units: the numbers of the story themselves."""

    largest_start: int
    largest_operand: int  # of additions and subtractions
    largest_factor: int  # of multiplications and divisions


EASY = Level(largest_start=20, largest_operand=15, largest_factor=3)
FULL = Level(largest_start=60, largest_operand=40, largest_factor=5)


@dataclass(frozen=True, slots=True)
class CalculationStep:
    """One equation of the worked answer, with the words that lead to it ("Buying 33 more gives")."""

    left: int
    operator: str  # one of + - * /
    right: int
    lead: str = ""

    @property
    def result(self) -> int:
        """The right side; division is exact by construction."""
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
    """Which operators can follow a value so that the result stays whole and within 0 ... LARGEST."""
    possible = []
    if value < LARGEST:
        possible.append("+")
    if value > 1:
        possible.append("-")
    if 2 <= value <= LARGEST // 2:
        possible.append("*")
    if any(value % divisor == 0 for divisor in range(2, level.largest_factor + 1)) and value > 1:
        possible.append("/")
    return possible


def operand_for(value: int, operator: str, level: Level, rng: Random) -> int:
    """Draw an operand that keeps the result whole and within 0 ... LARGEST."""
    match operator:
        case "+":
            return rng.randint(1, min(level.largest_operand, LARGEST - value))
        case "-":
            return rng.randint(1, min(level.largest_operand, value))
        case "*":
            return rng.randint(2, min(level.largest_factor, LARGEST // value))
        case _:
            return rng.choice([d for d in range(2, level.largest_factor + 1) if value % d == 0])


def random_step(level: Level, rng: Random) -> CalculationStep:
    """Draw one equation on its own, for the drills; all four operators about as often."""
    operator = rng.choice("++--*/")
    if operator == "*":
        factor = rng.randint(2, level.largest_factor)
        return CalculationStep(rng.randint(1, LARGEST // factor), "*", factor)
    if operator == "/":
        divisor = rng.randint(2, level.largest_factor)
        return CalculationStep(divisor * rng.randint(1, LARGEST // divisor), "/", divisor)
    left = rng.randint(1, min(LARGEST - 1, level.largest_start + level.largest_operand))
    return CalculationStep(left, operator, operand_for(left, operator, level, rng))
