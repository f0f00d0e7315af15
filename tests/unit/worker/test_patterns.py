"""Patterns: a token is allowed if and only if some completion of the whole output matches."""

import re
import time
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.worker.patterns import token_automaton
from services.worker.patterns.constraint import PatternConstraint
from services.worker.patterns.state_sets import StateSets
from services.worker.patterns.token_automaton import FORBIDDEN, UNREACHABLE, TokenTable, tokenize
from shared.arrays import Int32
from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import NOTHING, Characters, JoinedParts, Literal, Looped, RepeatedPart

MASK, END, SPECIAL = 0, 1, 2
TEXTS = (b"", b"", b"", b"a", b"b", b"ab", b"ba", b"c", "é".encode(), "é".encode()[:1], "é".encode()[1:])
TOKENS = range(END, len(TEXTS))
TABLE = TokenTable.of(TEXTS, [END], len(TEXTS))
LENGTH = 3
LETTER = Characters(((ord("a"), ord("b")), (ord("é"), ord("é"))))
COUNTED = {  # the same texts with a counter
    "[abé]{0,2}": automaton_of(Looped(NOTHING, LETTER, NOTHING, 2)),
    "[abé]{1,4}c": automaton_of(JoinedParts((LETTER, Looped(NOTHING, LETTER, NOTHING, 3), Literal("c")))),
    "([abé]{0,3}c)*": automaton_of(RepeatedPart(JoinedParts((Looped(NOTHING, LETTER, NOTHING, 3), Literal("c"))))),
    "bounded": automaton_of(RepeatedPart(JoinedParts((Looped(NOTHING, LETTER, NOTHING, 20), Literal("c"))))),
    "a(ba){0,2}c?": automaton_of(
        JoinedParts((Looped(Literal("a"), Literal("b"), NOTHING, 2), RepeatedPart(Literal("c"), 0, 1)))
    ),
}
patterns = st.sampled_from(
    [
        "a*",
        "(ab)*c",
        "[abc]{4}",
        "a{2,5}b?",
        "(ab|ba)+",
        "é+",
        "a?é?b?",
        "(a|bb)*",
        "[^a]*",
        "c(a|b){3}c",
        *(name for name in COUNTED if name != "bounded"),
    ]
)


@cache
def sets_of(pattern: str) -> StateSets:
    return StateSets(tokenize(COUNTED.get(pattern) or compile_pattern(pattern), TABLE))


def matches(pattern: str, tokens: tuple[int, ...], text_tokens: int) -> bool:
    """Whether the text up to the first end token, or cut at its limit, matches; only end tokens may follow one."""
    tokens = tokens[:text_tokens]
    end = tokens.index(END) if END in tokens else len(tokens)
    if any(token != END for token in tokens[end:]) or SPECIAL in tokens:
        return False
    try:
        text = b"".join(TEXTS[token] for token in tokens[:end]).decode()
    except UnicodeDecodeError:
        return False
    return re.fullmatch(pattern, text) is not None


@cache
def valid_outputs(pattern: str, text_tokens: int) -> list[tuple[int, ...]]:
    return [tokens for tokens in product(TOKENS, repeat=LENGTH) if matches(pattern, tokens, text_tokens)]


def allowed_tokens(pattern: str, output: Int32, text_tokens: int, block: int) -> list[set[int]]:
    bits = PatternConstraint(sets_of(pattern), text_tokens, MASK).allowed(output, 0, block)
    rows = np.unpackbits(bits, axis=1, count=len(TEXTS)).astype(bool)
    return [set(np.flatnonzero(row).tolist()) for row in rows]


@settings(max_examples=120)
@given(patterns, st.integers(1, LENGTH), st.data())
def test_a_token_is_allowed_if_and_only_if_some_completion_has_it(
    pattern: str, text_tokens: int, data: st.DataObject
) -> None:
    if not (valid := valid_outputs(pattern, text_tokens)):
        with pytest.raises(BadInput, match="matches the pattern; the shortest has"):
            PatternConstraint(sets_of(pattern), text_tokens, MASK)
        return
    whole = data.draw(st.sampled_from(valid))
    masked = data.draw(st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH).filter(any))
    output = np.array([MASK if is_mask else token for token, is_mask in zip(whole, masked, strict=True)], np.int32)
    fitting = [one for one in valid if all(m or a == b for a, b, m in zip(whole, one, masked, strict=True))]
    block = data.draw(st.integers(masked.index(True) + 1, LENGTH))  # tokens of the first block
    places = [at for at, is_mask in enumerate(masked) if is_mask and at < block]
    wanted = [{one[at] for one in fitting} if at < text_tokens else set(range(len(TEXTS))) for at in places]
    assert allowed_tokens(pattern, output, text_tokens, block) == wanted


@settings(max_examples=50)
@given(patterns, st.data())
def test_tokens_chosen_in_any_order_end_in_a_text_that_matches(pattern: str, data: st.DataObject) -> None:
    try:
        constraint = PatternConstraint(sets_of(pattern), LENGTH, MASK)
    except BadInput:
        return
    output = np.zeros(LENGTH, np.int32)
    while (masks := np.flatnonzero(output == MASK)).size:
        rows = np.unpackbits(constraint.allowed(output, 0, LENGTH), axis=1, count=len(TEXTS))
        tokens = np.array([data.draw(st.sampled_from(np.flatnonzero(row).tolist())) for row in rows], np.int64)
        order = np.array(data.draw(st.permutations(range(len(masks)))), np.int64)
        kept = constraint.choose(0, masks, tokens, order)
        assert kept[order[0]]
        output[masks[kept]] = tokens[kept]
    assert matches(pattern, tuple(output.tolist()), LENGTH)


def test_a_block_continues_the_tokens_before_it() -> None:
    constraint = PatternConstraint(sets_of("c(a|b){3}c"), 6, MASK)
    output = np.array([7, 3, MASK, MASK, MASK, MASK], np.int32)
    rows = np.unpackbits(constraint.allowed(output, 2, 4), axis=1, count=len(TEXTS)).astype(bool)
    assert [set(np.flatnonzero(row).tolist()) for row in rows] == [{3, 4, 5, 6}, {3, 4, 7}]


def test_an_output_that_no_text_of_the_pattern_begins_with_is_refused() -> None:
    for wrong in ([4, MASK, MASK], [MASK, END, MASK], [SPECIAL, MASK, MASK]):
        output = np.array(wrong, np.int32)
        with pytest.raises(BadInput, match="the output so far"):
            PatternConstraint(sets_of("ac?a"), 3, MASK).check(output, 0, 3)
    PatternConstraint(sets_of("ac?a"), 3, MASK).check(np.array([MASK, 3, MASK], np.int32), 0, 3)
    with pytest.raises(BadInput, match="the output so far"):
        PatternConstraint(sets_of("ac?a"), 3, MASK).check(np.array([4, 4, MASK], np.int32), 2, 3)


def test_tokens_that_lead_alike_are_one_class() -> None:
    automaton = tokenize(compile_pattern("[ab]*"), TABLE)
    a, b, ab, ba, c = automaton.class_of[3:8].tolist()
    assert a == b == ab == ba
    assert automaton.class_of[[MASK, SPECIAL]].tolist() == [FORBIDDEN, FORBIDDEN]
    assert c == FORBIDDEN


@given(patterns)
def test_the_tokens_left_are_those_of_the_shortest_way_to_an_end(pattern: str) -> None:
    automaton = sets_of(pattern).automaton
    is_final = np.append((COUNTED.get(pattern) or compile_pattern(pattern)).accepting, True)
    left = np.where(is_final, 0, UNREACHABLE).astype(np.int64)
    for _ in left:
        left = np.minimum(left, np.append(left, UNREACHABLE)[automaton.next_state].min(axis=1) + 1)
    assert (automaton.tokens_left == np.minimum(left, UNREACHABLE)).all()


def test_a_pattern_at_the_limit_of_states_takes_few_seconds() -> None:
    letters = [bytes([one, other]) for one in range(97, 123) for other in range(97, 123)]
    table = TokenTable.of([*letters, b""], [len(letters)], len(letters) + 1)
    words = "".join(Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=7_900))
    pattern, before = compile_pattern(words), time.process_time()
    assert tokenize(pattern, table).tokens_left[0] == len(words) // 2
    assert time.process_time() - before < 5


def test_a_pattern_with_too_many_kinds_of_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = compile_pattern("(ab)*c")
    columns = 2 + 5  # of no text, of those that no text has, and of a, b, ab, ba, c
    monkeypatch.setattr(token_automaton, "MAX_ENTRIES", (len(pattern.next_state) + 1) * columns)
    tokenize(pattern, TABLE)
    monkeypatch.setattr(token_automaton, "MAX_ENTRIES", (len(pattern.next_state) + 1) * (columns - 1))
    with pytest.raises(BadInput, match="the pattern is too large"):
        tokenize(pattern, TABLE)


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.sampled_from([8, 24, 64]))
def test_counts_matter_only_near_their_bound(seed: int, length: int) -> None:
    """A step mostly uses the sets without counts, and no bound is ever broken."""
    sets, random, block = sets_of("bounded"), Random(seed), 8
    constraint, output, used = PatternConstraint(sets, length, MASK), np.zeros(length, np.int32), set()
    for start in range(0, length, block):
        while (masks := start + np.flatnonzero(output[start : start + block] == MASK)).size:
            rows = np.unpackbits(constraint.allowed(output, start, start + block), axis=1, count=len(TEXTS))
            tokens = np.array([random.choice(np.flatnonzero(row).tolist()) for row in rows], np.int64)
            kept = constraint.choose(
                start, masks, tokens, np.array(random.sample(range(len(masks)), min(3, len(masks))))
            )
            output[masks[kept]] = tokens[kept]
            used.add(constraint._sets is not constraint._plain)
    text = b"".join(TEXTS[token] for token in output.tolist() if token != END).decode()
    assert re.fullmatch("([abé]{0,20}c)*", text)
    assert False in used
