"""Which tokens may fill the masks of a request's block, so that its whole text can still match the pattern.

A token is allowed at a position if some state that the text before it can lead to goes with this token to a state from
which the text after it can end validly. Masks hold any token, so this is exact in whatever order they are filled, one
at a time. Shape letters: K positions of a block, M masks among them, V tokens.
"""

import numpy as np

from services.worker.patterns.state_sets import StateSets
from shared.arrays import Bool, Int32, Int64, UInt8
from shared.errors import BadInput

# Of the positions of a block within the text: the class of each token, -1 for masks; the forward set before each and
# after the last one; the backward set before each and after the last one.
Sweep = tuple[list[int], list[int], list[int]]


class PatternConstraint:
    """The pattern of one request, whose text has at most `text_tokens` tokens of its output."""

    def __init__(self, sets: StateSets, text_tokens: int, mask_token_id: int) -> None:
        """Raises: BadInput if no text of this length matches."""
        needed = int(sets.automaton.tokens_left[0])
        if needed > text_tokens:
            raise BadInput(
                f"no text of at most {text_tokens} tokens matches the pattern; the shortest has {needed}", "pattern"
            )
        self._sets = sets
        self._text_tokens = text_tokens
        self._mask_token_id = mask_token_id
        self._state, self._known = 0, 0  # of the automaton, after this many tokens of the output
        self._swept: Sweep = [], [], []

    def check(self, output: Int32, start: int, stop: int) -> None:
        """Raises: BadInput if no text of the pattern has the tokens of the output; it has masks from `start` on."""
        _, forward, backward = self._sweep(output, start, stop)
        if not np.isin(self._sets.members(forward[0]), self._sets.members(backward[0])).any():
            raise BadInput("the output so far does not match the pattern", "canvas")

    def begin_step(self) -> None:
        """Before `allowed` of any request of the step: limit the memory of the sets, which requests share."""
        if self._sets.is_full:
            self._sets.forget()

    def allowed(self, output: Int32, start: int, stop: int) -> UInt8:
        """The tokens allowed at the masks of output[start:stop], as bits: [M, ceil(V / 8)]. The output before it has no
        masks."""
        self._swept = self._sweep(output, start, stop)
        classes, forward, backward = self._swept
        rows = [self._sets.mask(forward[at], backward[at + 1]) for at, own in enumerate(classes) if own < 0]
        rows += [self._everything()] * int((output[start + len(classes) : stop] == self._mask_token_id).sum())
        return np.stack(rows)

    def choose(self, start: int, positions: Int64, tokens: Int64, order: Int64) -> Bool:
        """Of tokens that are allowed each, those that are so together, in this order. After `allowed` of the same
        output. Shapes: positions in the output and tokens [n], order [n], indices of them -> [n]."""
        kept = np.zeros(len(positions), dtype=np.bool_)
        classes, forward, backward = self._swept
        for index in order.tolist():
            at = int(positions[index]) - start
            if at >= len(classes):
                kept[index] = True
                continue
            own = int(self._sets.automaton.class_of[tokens[index]])
            if not self._sets.allows(forward[at], backward[at + 1], own):
                continue
            kept[index] = True
            classes[at] = own
            self._update(classes, forward, backward, at)
        return kept

    def _sweep(self, output: Int32, start: int, stop: int) -> Sweep:
        automaton = self._sets.automaton
        if self._known > start:
            self._state, self._known = 0, 0
        for token in output[self._known : min(start, self._text_tokens)].tolist():
            if self._state <= automaton.ended:
                self._state = int(automaton.next_state[self._state, automaton.class_of[token]])
        self._known = max(start, self._known)
        block = output[start : min(stop, self._text_tokens)]
        classes = np.where(block == self._mask_token_id, -1, automaton.class_of[block]).tolist()
        forward = [self._sets.of_states([self._state] if self._state <= automaton.ended else [])]
        for own in classes:
            forward.append(self._forward(forward[-1], own))
        backward = [self._backward_after(output[stop : self._text_tokens])]
        for own in reversed(classes):
            backward.append(self._backward(backward[-1], own))
        return classes, forward, backward[::-1]

    def _backward_after(self, rest: Int32) -> int:
        """The backward set before the text's last positions."""
        known = np.flatnonzero(rest != self._mask_token_id)
        last = int(known[-1]) + 1 if len(known) else 0
        number = self._sets.valid_ends(len(rest) - last)
        for token in rest[:last][::-1].tolist():
            own = -1 if token == self._mask_token_id else int(self._sets.automaton.class_of[token])
            number = self._backward(number, own)
        return number

    def _update(self, classes: list[int], forward: list[int], backward: list[int], at: int) -> None:
        """After a new token at one position."""
        for place in range(at, len(classes)):
            after = self._forward(forward[place], classes[place])
            if after == forward[place + 1] and place > at:
                break
            forward[place + 1] = after
        for place in range(at, -1, -1):
            before = self._backward(backward[place + 1], classes[place])
            if before == backward[place] and place < at:
                break
            backward[place] = before

    def _forward(self, number: int, token_class: int) -> int:
        return self._sets.after_any(number) if token_class < 0 else self._sets.after(number, token_class)

    def _backward(self, number: int, token_class: int) -> int:
        return self._sets.before_any(number) if token_class < 0 else self._sets.before(number, token_class)

    def _everything(self) -> UInt8:
        """Behind the text, which is cut there, any token."""
        return np.full(-(-len(self._sets.automaton.class_of) // 8), 255, dtype=np.uint8)
