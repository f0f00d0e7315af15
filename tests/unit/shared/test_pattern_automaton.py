"""Patterns as automata over bytes."""

import json
import re
import time
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.patterns import counted_regex
from shared.patterns.automaton import compile_pattern, of_counted
from shared.patterns.byte_automaton import MAX_STATES, longest_text, read_automaton
from shared.patterns.compile_budget import Budget, BudgetExceeded, limited_to
from shared.patterns.counted_regex import Counted, without_limits
from shared.patterns.json_strings import searched
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


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"\w", "aé_9中\u200dⒶ", "- ²"),
        (r"\W", "- ²", "aé_9"),
        (r"\d", "5٣", "a²"),
        (r"[^\D]", "5٣", "a²"),
        (r"\s", " \u00a0\u3000\n", "a\ufeff"),
        (r"\pL", "aé中", "1_"),
        (r"\PN", "a-", "5½Ⅷ\u0378"),
        (r"[^\PN]", "5½Ⅷ", "a-"),
        (r"\p{Lu}", "AÉ", "aé"),
        (r"\p{^Lu}", "aé1", "AÉ"),
        (r"\p{Letter}", "aé", "1"),
        (r"[\p{Script=Greek}1]", "Ωλ1", "aД"),
        (r"\p{Greek}", "Ωλ", "aД"),
        (r"(?i)\p{Lu}", "aÉ", "1"),
        (r"(?i)[^k]", "a", "kK\u212a"),
        (r"[[:alpha:]_]", "aZ_", "1é"),
        (r"[[:^digit:][:punct:]]", "aé;", "5"),
        (r"[a-z&&[^aeiou]]", "bz", "ae1"),
        (r"[\p{L}--[a-y]--é]", "zñ", "aé1"),
        (r"[a-c~~b-d]", "ad", "bce"),
        (r"[]a]", "]a", "b"),
        (r"[^]a]", "b[", "]a"),
        (r"[a-]", "a-", "b"),
        ("(?x) [a b] {1} # c\n | \\ | d", "abd ", "#c\n"),
        (r"(?U)a??", "a", "b"),
        (r"\Aa\Z", "a", "b"),
        (r"[\x41\x{42}\u0043\U00000044]", "ABCD", "E"),
    ],
)
def test_a_class_has_the_characters_that_it_has_in_rust(pattern: str, accepted: str, refused: str) -> None:
    automaton = compile_pattern(pattern)
    assert [character for character in accepted if not automaton.accepts(character)] == []
    assert [character for character in refused if automaton.accepts(character)] == []


@pytest.mark.parametrize(
    "pattern", [r"(?:[\p{L}-]{1,40} ?){3}", r"(?:[\da-f]{1,4}:){7}[\da-f]{1,4}|(?:[\da-f]{1,4}:){400}"]
)
def test_a_class_of_which_unicode_has_too_many_characters_has_those_of_latin(pattern: str) -> None:
    automaton = compile_pattern(pattern)
    is_name = "L" in pattern
    assert [automaton.accepts(text) for text in ("Zoë Müller-Šimić", "Ольга")] == [is_name, False]
    assert [automaton.accepts(text) for text in ("1:2:3:4:5:6:7:f", "1a:" * 400)] == [not is_name] * 2


characters = st.sampled_from(["a", "[ab]", "[^a]", "é", "(?:ab|b)"])
repeated = st.builds("{}{}".format, characters, st.sampled_from(["", "{2}", "{0}", "?", "*", "{0,2}", "{1,3}"]))
zero_wide = st.sampled_from([r"\b", "(?!b)", "(?=.*a)", "(?!.*bb)"])
grouped = st.builds("({}|{})".format, repeated, repeated) | st.builds("(?:{}{})?".format, repeated, repeated)


@settings(max_examples=200)
@given(st.sampled_from(["", "^"]), st.lists(repeated | grouped | zero_wide, max_size=3).map("".join), st.data())
def test_a_counter_takes_the_place_of_the_limits_of_repetitions(begin: str, inner: str, data: st.DataObject) -> None:
    part = read_regex(f"{begin}{inner}")
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(counted_regex, "COUNTED", 1)
        found = without_limits(part)
    assume(found is not None)
    counted, text = found or Counted(part, 0, False), data.draw(st.text("aabé", max_size=8))
    try:
        accepts = of_counted(counted).accepts(text)
    except BadInput:  # no text matches
        accepts = False
    matches = bool(re.fullmatch(inner, text, re.ASCII)) and bool(re.fullmatch(inner, text))
    assert accepts <= matches, counted
    assert accepts == matches or not counted.is_exact or "é" in text, counted


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bThe\b.{0,3000}",
        "(?:The|An) .{0,3000}",
        "(?:a|b){4000}",
        "[a-z]{0,7900}",
        ".{1,900}",
        r"[^@\s]{1,64}@[^@]{1,255}",
        r"\S+( \S+){0,20}",
        r"\w{1,25}",
    ],
)
def test_a_pattern_at_the_limit_of_states_takes_few_seconds(pattern: str) -> None:
    before = time.process_time()
    longest_text(compile_pattern(pattern))
    assert time.process_time() - before < 5


def test_anchors_around_the_pattern_change_nothing() -> None:
    assert [compile_pattern(p).accepts("a") for p in ("^a$", "a", "^a", "a$")] == [True] * 4
    assert compile_pattern("^a|b$").accepts("b")


@pytest.mark.parametrize(
    "pattern",
    [
        "(a",
        r"(a)\1",
        "a(?<=b)",
        "a{9,1}",
        "^a{,3}$|b",
        '{"a": 1}$|b',
        "[[a]](",
        "(?x)a(",
        r"\p{Lx}",
        "[[:a:]]",
        "[z-a]",
        "(?<a",
    ],
)
def test_an_invalid_pattern_is_refused_with_the_accepted_syntax(pattern: str) -> None:
    with pytest.raises(BadInput, match="accepted: the syntax of Rust's regex") as refused:
        compile_pattern(pattern)
    assert refused.value.field == "pattern"


def test_a_pattern_that_no_text_matches_is_refused() -> None:
    with pytest.raises(BadInput, match="no text matches"):
        compile_pattern("[a&&b]")


edges = st.sampled_from([r"\b", r"\B", r"\b\B", r"(?:\b|-)", "^", "$", ""])
pieces = st.lists(st.one_of(edges, st.sampled_from(["a", "[a-]", r"\W", "(?s:.)", "é?", "(?:a|-)*"])), max_size=6)


@settings(max_examples=300)
@given(pieces.map("".join), st.text("a-\n\té", min_size=1, max_size=5))
def test_an_edge_of_a_word_is_where_all_languages_have_one(pattern: str, text: str) -> None:
    for flags in (re.ASCII, re.UNICODE):
        own = re.compile(pattern.replace("$", r"\Z"), flags)
        found, inside = own.fullmatch(text), own.search(text)
        is_alike = text.isascii() and "é" not in pattern
        for is_read, is_found in ((reads(pattern, text), found), (writes(pattern, text), inside)):
            assert is_read <= bool(is_found)
            assert is_read == bool(is_found) or not is_alike


def reads(pattern: str, text: str) -> bool:
    try:
        return compile_pattern(pattern).accepts(text)
    except BadInput:  # no text matches
        return False


def writes(pattern: str, text: str) -> bool:
    """Whether a JSON schema with the pattern has the text."""
    try:
        return searched(pattern, "pattern").accepts(json.dumps(text, ensure_ascii=False)[1:-1])
    except BadInput:
        return False


@pytest.mark.parametrize("times", [13, 30])
def test_a_pattern_of_too_many_states_is_refused(times: int) -> None:
    with pytest.raises(BadInput, match=f"it may have {MAX_STATES}"):
        compile_pattern(f"(a|b)*a(a|b){{{times}}}")


@pytest.mark.parametrize(
    "pattern",
    [
        "a" * 100_000,
        "[" + r"\w" * 1_000 + "]",
        "".join(rf"\p{{L{'_' * length}u}}" for length in range(1, 9)),
        r"(?i)[\x00-\U00080000]",
    ],
)
def test_reading_a_long_pattern_takes_of_the_budget(pattern: str) -> None:
    compile_pattern(r"\w")  # its characters are known
    with limited_to(Budget(30_000)), pytest.raises(BudgetExceeded):
        compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["^(a|b)*a(a|b){11}$", "(?m)^(a|b)*a(a|b){11}$"])
def test_a_pattern_that_exceeds_its_budget_compiles_with_a_larger_one(pattern: str) -> None:
    with limited_to(Budget(10_000)), pytest.raises(BudgetExceeded, match="may take 600,000 steps"):
        compile_pattern(f"^x?{pattern}")
    assert compile_pattern(f"^x?{pattern}").accepts("a" * 12)


@pytest.mark.parametrize(
    ("pattern", "longest"), [("a", 1), ("ab|abcde?", 5), ("[a-z]{3,7}", 7), ("é{2}", 4), ("a*", None), ("b(ab)*", None)]
)
def test_the_longest_text_is_counted_in_bytes(pattern: str, longest: int | None) -> None:
    assert longest_text(compile_pattern(pattern)) == longest
