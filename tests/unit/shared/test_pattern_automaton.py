"""Patterns as automata over bytes."""

import re
import time
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.errors import BadInput, RetryLater
from shared.patterns import automaton, counted_regex
from shared.patterns.automaton import compile_pattern, without_anchors
from shared.patterns.byte_automaton import MAX_STATES, longest_text, read_automaton
from shared.patterns.compile import END, reached
from shared.patterns.compile_budget import LARGE, Budget, BudgetExceeded, limited_to
from shared.patterns.counted_regex import without_limit
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Compiled
from shared.patterns.regex import read_regex
from tests.support.pattern_texts import draw_text

PATTERNS = ("(ab|ba)+", "a*b?", "[^a]{2}", "(a|b)*aab", "é+|b", "[0-9]{1,3}", "a{2,}", "", "x(y|)z", "(?i)aB")
texts = st.text(alphabet="abBAé9xyz", max_size=6)


@settings(max_examples=80)
@given(st.sampled_from(PATTERNS), texts)
def test_a_text_is_accepted_if_and_only_if_the_whole_text_matches(pattern: str, text: str) -> None:
    assert compile_pattern(pattern).accepts(text) == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_text_that_the_automaton_gives_matches(pattern: str) -> None:
    automaton, random = compile_pattern(pattern), Random(0)
    for _ in range(30):
        text = draw_text(automaton, random)
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("pattern", ["a{2,}b", "a{3,70}b", "(^a|b{5,300})c", "é+|b"])
def test_an_automaton_is_read_as_it_was_written(pattern: str) -> None:
    automaton = compile_pattern(pattern)
    found = read_automaton(automaton.written())
    for name in ("next_state", "accepting", "loop", "counts"):
        assert getattr(found, name).tolist() == getattr(automaton, name).tolist()
    assert found.bounds == automaton.bounds


def test_every_state_is_reached_and_leads_to_an_end() -> None:
    automaton = compile_pattern("a(b|cd)*e")
    reached = {0, *automaton.next_state[automaton.next_state >= 0].tolist()}
    assert reached == set(range(len(automaton.next_state)))
    assert ((automaton.next_state >= 0).any(axis=1) | automaton.accepting).all()


CLASSES = [
    *(rf"\{letter}" for letter in "dwsDWS"),
    r"\pL",
    r"\PN",
    *(rf"\p{{{name}}}" for name in ("Lu", "Nd", "Zs", "P")),
]


@settings(max_examples=200)
@given(st.sampled_from(CLASSES), st.characters(exclude_categories=["Cs", "Cn"]))
def test_a_class_has_the_characters_that_it_has_in_rust(written: str, character: str) -> None:
    for pattern in (written, f"[{written}]", f"[^{written}]"):
        of_rust = compile_pattern(f"(?x){pattern}")  # flags are left to outlines-core
        assert compile_pattern(f"^{pattern}$|aa").accepts(character) == of_rust.accepts(character)


@pytest.mark.parametrize(
    "pattern", [r"(?:[\p{L}-]{1,40} ?){3}", r"(?:[\da-f]{1,4}:){7}[\da-f]{1,4}|(?:[\da-f]{1,4}:){400}"]
)
def test_a_class_of_which_unicode_has_too_many_characters_has_those_of_latin(pattern: str) -> None:
    automaton = compile_pattern(pattern)
    is_name = "L" in pattern
    assert [automaton.accepts(text) for text in ("Zoë Müller-Šimić", "Ольга")] == [is_name, False]
    assert [automaton.accepts(text) for text in ("1:2:3:4:5:6:7:f", "1a:" * 400)] == [not is_name] * 2


characters = st.sampled_from(["a", "[ab]", "[^a]", "é"])
fixed = st.builds("{}{}".format, characters, st.sampled_from(["", "{2}", "{0}"]))
ranges = st.builds("{}{{{},{}}}".format, characters, st.integers(0, 2), st.integers(2, 4))
within = st.one_of(
    fixed, ranges, st.builds("({}|{})".format, fixed, fixed), st.builds("(?:{}{})".format, fixed, ranges)
)


@settings(max_examples=200)
@given(st.sampled_from(["", "^"]), st.lists(within, max_size=3).map("".join), st.sampled_from(["", "$"]), st.data())
def test_a_counter_takes_the_place_of_the_limit_of_a_single_repetition(
    begin: str, inner: str, end: str, data: st.DataObject
) -> None:
    whole = read_regex(f"{begin}{inner}{end}")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(counted_regex, "COUNTED", 1)
        found = without_limit(whole)
    assume(found is not None)
    part, longest = found or (whole, 0)
    counted, text = automaton_of(Compiled(automaton_of(part), longest)), data.draw(st.text("aabé", max_size=8))
    assert counted.accepts(text) == bool(re.fullmatch(inner, text)), (counted.bounds, text)


def follow(first: set[int], transitions: dict[int, dict[int, int]]) -> set[int]:
    """The states and all after them."""
    while not (more := {target for state in first for target in transitions[state].values()}) <= first:
        first = first | more
    return first


states = st.integers(0, 6)


@settings(max_examples=120)
@given(st.lists(st.dictionaries(st.integers(0, 3), states, max_size=3), min_size=7, max_size=7), states)
def test_the_compiled_states_are_those_after_the_start(rows: list[dict[int, int]], start: int) -> None:
    transitions = dict(enumerate(rows))
    found = reached(start, {state: {**row, END: 0} for state, row in transitions.items()})
    assert found[0] == start
    assert sorted(found) == sorted(follow({start}, transitions))


@pytest.mark.parametrize(
    "pattern",
    ["(?:a|b){4000}", "[a-z]{0,7900}", ".{1,900}", r"[^@\s]{1,64}@[^@]{1,255}", r"\S+( \S+){0,20}", r"\w{1,25}"],
)
def test_a_pattern_at_the_limit_of_states_takes_few_seconds(pattern: str) -> None:
    before = time.process_time()
    longest_text(compile_pattern(pattern))
    assert time.process_time() - before < LARGE.seconds


def test_anchors_around_the_pattern_change_nothing() -> None:
    assert [without_anchors(p) for p in ("^a$", "a", r"^a\$", r"a\\$", "$")] == ["a", "a", r"a\$", r"a\\", ""]
    assert compile_pattern("^a|b$").accepts("b")


@pytest.mark.parametrize("pattern", ["(a", r"(a)\1", "a(?<=b)", r"\bfoo", "a{9,1}", "^a{,3}$|b", '{"a": 1}$|b'])
def test_an_invalid_pattern_is_refused_with_the_accepted_syntax(pattern: str) -> None:
    with pytest.raises(BadInput, match="accepted: the syntax of Rust's regex") as refused:
        compile_pattern(pattern)
    assert refused.value.field == "pattern"


@pytest.mark.parametrize(("valid", "invalid"), [("[[a]]x", "[[a]]("), ("(?x)a", "(?x)a(")])
def test_syntax_that_outlines_core_knows_is_not_named_as_the_error(valid: str, invalid: str) -> None:
    compile_pattern(valid)
    with pytest.raises(BadInput, match=r"not valid \(a syntax error in a pattern with"):
        compile_pattern(invalid)


def test_a_pattern_that_no_text_matches_is_refused() -> None:
    with pytest.raises(BadInput, match="no text matches"):
        compile_pattern("[a&&b]")


def test_a_pattern_of_too_many_states_is_refused() -> None:
    with pytest.raises(BadInput, match=f"states; it may have {MAX_STATES}"):
        compile_pattern("(a|b)*a(a|b){13}")


def test_a_machine_too_busy_to_compile_refuses_a_pattern_only_for_now(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as changed:
        changed.setattr(automaton, "MAX_RUN_S", 0.0)
        with pytest.raises(RetryLater, match="too busy"):
            compile_pattern(r"busy\p{Greek}")
    assert compile_pattern(r"busy\p{Greek}").accepts("busyω")


def test_reading_a_long_pattern_takes_of_the_budget() -> None:
    with limited_to(Budget(10_000, seconds=1)), pytest.raises(BudgetExceeded):
        compile_pattern("a" * 100_000)


@pytest.mark.parametrize("pattern", ["^(a|b)*a(a|b){11}$", "(?m)^(a|b)*a(a|b){11}$"])
def test_a_pattern_that_exceeds_its_budget_compiles_with_a_larger_one(pattern: str) -> None:
    with limited_to(Budget(10_000, seconds=1)), pytest.raises(BudgetExceeded, match="may take 600,000 steps"):
        compile_pattern(f"^x?{pattern}")
    assert compile_pattern(f"^x?{pattern}").accepts("a" * 12)


@pytest.mark.slow
def test_a_pattern_that_takes_too_long_to_compile_is_refused() -> None:
    with pytest.raises(BadInput, match="the pattern is too large"):
        compile_pattern("(?x)(a|b)*a(a|b){30}")


@pytest.mark.parametrize(
    ("pattern", "longest"), [("a", 1), ("ab|abcde?", 5), ("[a-z]{3,7}", 7), ("é{2}", 4), ("a*", None), ("b(ab)*", None)]
)
def test_the_longest_text_is_counted_in_bytes(pattern: str, longest: int | None) -> None:
    assert longest_text(compile_pattern(pattern)) == longest
