"""A problem: the question, its calculation, and its side of the split."""

from dataclasses import dataclass
from hashlib import sha256

from experiments.demo_model.arithmetic import CalculationStep

HELD_OUT_EVERY = 50


@dataclass(frozen=True, slots=True)
class Problem:
    """A question, the steps of its answer, and the answer's optional first and last sentences."""

    prompt: str
    steps: tuple[CalculationStep, ...]
    opening: str  # "Tom starts with 25 pears."
    closing: str  # "Tom has 29 pears."

    @property
    def answer(self) -> int:
        """The last step's result."""
        return self.steps[-1].result

    @property
    def held_out(self) -> bool:
        """Whether the problem is for evaluation only: one in HELD_OUT_EVERY, by a digest of its text.

        Letter case and final marks do not matter, so that training has no variant of a held-out problem.
        """
        digest = sha256(self.prompt.lower().rstrip("?. ").encode()).digest()
        return int.from_bytes(digest[:4], "big") % HELD_OUT_EVERY == 0
