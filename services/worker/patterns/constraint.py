"""Computes the tokens that may fill the masks of a request's block, so that the whole text can still match its pattern.

A token is allowed at a position if two states of the automaton exist: the text before the position can lead to the
first one, the token leads from the first to the second one, and the text after the position can end validly from there.
A mask may become any token. So the result is exact for every order in which masks are filled, one at a time.
Shape letters: K positions of a block, M masks among them, V tokens.
"""

from typing import NamedTuple

import numpy as np

from services.worker.patterns.state_sets import ANY, StateSets
from services.worker.patterns.token_automaton import UNREACHABLE
from shared.arrays import Bool, Int32, Int64, UInt8
from shared.errors import BadInput


class Sweep(NamedTuple):
    """The state sets at the positions of a block within the text. The sets are ids of `StateSets`."""

    classes: list[int]  # [K], of the tokens; ANY: a mask
    forward: list[int]  # [K + 1], before each position and after the last one
    backward: list[int]  # [K + 1], likewise


class PatternConstraint:
    """The constraint on one request, whose text is the first `text_tokens` tokens of its output."""

    def __init__(self, sets: StateSets, text_tokens: int, mask_token_id: int) -> None:
        """Raises: BadInput if no text of this length matches."""
        needed = int(sets.automaton.tokens_left[0])
        if needed > text_tokens:
            raise BadInput(
                f"no text of at most {text_tokens} tokens matches the pattern; the shortest has {needed}", "pattern"
            )
        self._plain, self._counted = sets, sets.counted
        self._sets = sets  # those of the last sweep: plain ones as long as no counter can matter
        self._budget = UNREACHABLE  # counts that a step's tokens may add beyond those of masks
        self._text_tokens = text_tokens
        self._mask_token_id = mask_token_id
        # The automaton's state and count after the first `_known` tokens of the output
        self._state, self._count, self._known = 0, 0, 0
        self._swept = Sweep([], [], [])

    def check(self, output: Int32, start: int, stop: int) -> None:
        """Raises: BadInput if no text with the output's tokens matches the pattern. No mask is before `start`."""
        _, forward, backward = self._sweep(output, start, stop)
        if not self._sets.has_common(forward[0], backward[0]):
            raise BadInput("the output so far does not match the pattern", "pattern")

    def begin_step(self) -> None:
        """Limit the memory of the state sets, which requests share. Call it before any `allowed` of a step."""
        for sets in filter(None, (self._plain, self._counted)):
            if sets.is_full:
                sets.forget()

    def allowed(self, output: Int32, start: int, stop: int) -> UInt8:
        """The tokens allowed at the masks of output[start:stop], as bits: [M, ceil(V / 8)].

        The output before `start` has no masks.
        """
        self._swept = self._sweep(output, start, stop)
        classes, forward, backward = self._swept
        masks = [at for at, token_class in enumerate(classes) if token_class == ANY]
        rows = [self._sets.mask(forward[at], backward[at + 1]) for at in masks]
        rows += [self._everything()] * int((output[start + len(classes) : stop] == self._mask_token_id).sum())
        return np.stack(rows)

    def choose(self, start: int, positions: Int64, tokens: Int64, order: Int64) -> Bool:
        """Choose tokens one after the other; one is left out if it is not allowed beside those chosen before.

        Call it after `allowed` of the same output. Shapes: positions in the output, tokens, and order of their indices:
        [n]. Returns: the chosen ones: [n].
        """
        kept = np.zeros(len(positions), dtype=np.bool_)
        classes, forward, backward = self._swept
        for index in order.tolist():
            at = int(positions[index]) - start
            if at >= len(classes):
                kept[index] = True
                continue
            token_class = int(self._sets.automaton.class_of[tokens[index]])
            if not self._sets.allows(forward[at], backward[at + 1], token_class):
                continue
            if self._counted is not None and self._sets is self._plain:
                added = int(self._counted.most_added[token_class]) - self._counted.per_mask
                if added > self._budget:
                    continue
                self._budget -= added
            kept[index] = True
            classes[at] = token_class
            self._update(classes, forward, backward, at)
        return kept

    def _sweep(self, output: Int32, start: int, stop: int) -> Sweep:
        self._advance(output[: min(start, self._text_tokens)], start)
        block, rest = output[start : min(stop, self._text_tokens)], output[stop : self._text_tokens]
        classes = np.where(block == self._mask_token_id, ANY, self._plain.automaton.class_of[block]).tolist()
        rest_known = int(np.flatnonzero(rest != self._mask_token_id).max(initial=-1)) + 1
        self._choose_sets(np.concatenate([block, rest[:rest_known]]))
        automaton = self._sets.automaton
        forward = [self._sets.of_states([self._state] if self._state <= automaton.ended else [], self._count)]
        for token_class in classes:
            forward.append(self._sets.after(forward[-1], token_class))
        backward = [self._backward_after(rest, rest_known)]
        for token_class in reversed(classes):
            backward.append(self._sets.before(backward[-1], token_class))
        return Sweep(classes, forward, backward[::-1])

    def _advance(self, known: Int32, start: int) -> None:
        """Read the tokens before `start` that are not read yet."""
        automaton = self._plain.automaton
        if self._known > start:
            self._state, self._count, self._known = 0, 0, 0
        for token in known[self._known :].tolist():
            if self._state > automaton.ended:
                break
            token_class = automaton.class_of[token]
            if automaton.added is not None:
                kept = self._count if automaton.stays[self._state, token_class] else 0
                self._count = kept + int(automaton.added[self._state, token_class])
            self._state = int(automaton.next_state[self._state, token_class])
            if self._state <= automaton.ended and automaton.bound[self._state] == UNREACHABLE:
                self._count = 0
        self._known = start

    def _choose_sets(self, tokens: Int32) -> None:
        """Use counts only where they can matter, as sets without them recur more often."""
        if self._counted is None:
            return
        is_known = tokens != self._mask_token_id
        masks = len(tokens) - int(is_known.sum())
        added = int(self._counted.most_added[self._plain.automaton.class_of[tokens[is_known]]].sum())
        left = self._counted.safe_total - self._count - added - masks * self._counted.per_mask
        self._budget = left + int(self._counted.most_added.max())
        self._sets = self._plain if left >= 0 else self._counted

    def _backward_after(self, rest: Int32, last: int) -> int:
        """The backward set before `rest`, the last positions of the text, where only masks follow the first `last`."""
        set_id = self._sets.valid_ends(len(rest) - last)
        for token in rest[:last][::-1].tolist():
            token_class = ANY if token == self._mask_token_id else int(self._sets.automaton.class_of[token])
            set_id = self._sets.before(set_id, token_class)
        return set_id

    def _update(self, classes: list[int], forward: list[int], backward: list[int], at: int) -> None:
        """Compute the sets again that a new token at position `at` changes."""
        for place in range(at, len(classes)):
            after = self._sets.after(forward[place], classes[place])
            if after == forward[place + 1] and place > at:
                break
            forward[place + 1] = after
        for place in range(at, -1, -1):
            before = self._sets.before(backward[place + 1], classes[place])
            if before == backward[place] and place < at:
                break
            backward[place] = before

    def _everything(self) -> UInt8:
        """All tokens: the output is cut after the text, so any token may follow it."""
        return np.full(-(-len(self._sets.automaton.class_of) // 8), 255, dtype=np.uint8)
