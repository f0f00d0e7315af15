"""Grammars in GBNF become patterns of the same texts, as far as their rules are expanded."""

import re
from random import Random

import pytest
import regex
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.patterns.gbnf import Expression, Joined, OneOf, Reference, Repeated, Terminal, read_grammar
from shared.patterns.grammar import grammar_pattern

RULES = ("root", "a", "b")
ATOMS = st.sampled_from(['"x"', '"y"', "[0-9]", *RULES])


def alternatives(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(parts, min_size=1, max_size=3).map(" ".join)
    return st.lists(sequences, min_size=1, max_size=3).map(" | ".join)


PARTS = st.recursive(
    ATOMS,
    lambda inner: st.builds("({}){}".format, alternatives(inner), st.sampled_from(["", "?", "{2}", "{ 0, 2 }"])),
    max_leaves=6,
)
GRAMMARS = st.tuples(*(alternatives(PARTS) for _ in RULES)).map(
    lambda bodies: "\n".join(f"{rule} ::= {body}" for rule, body in zip(RULES, bodies, strict=True))
)


def derive(rules: dict[str, Expression], part: Expression, random: Random, depths: dict[str, int]) -> str | None:
    """A random text of the part, in which no rule is within itself more often than twice; None if none was found."""
    match part:
        case Terminal(pattern):
            return random.choice("059") if pattern.startswith("[") else pattern
        case Reference(rule):
            depth = depths.get(rule, 0)
            return None if depth == 3 else derive(rules, rules[rule], random, {**depths, rule: depth + 1})
        case Joined(parts):
            texts = [derive(rules, each, random, depths) for each in parts]
            return None if None in texts else "".join(map(str, texts))
        case OneOf(ways):
            return derive(rules, random.choice(ways), random, depths)
        case Repeated(inner, least, most):
            times = random.randint(least, least + 2 if most is None else most)
            return derive(rules, Joined((inner,) * times), random, depths)


def matches_in_time(pattern: str, text: str) -> bool | None:
    """None if the match needs more than 0.2 s: it may take exponential time. `re` cannot be stopped."""
    try:
        return regex.fullmatch(pattern, text, timeout=0.2) is not None
    except TimeoutError:
        return None


@settings(max_examples=10)
@given(GRAMMARS, st.integers(0, 9))
def test_every_text_of_a_grammar_up_to_the_depth_matches_its_pattern(grammar: str, seed: int) -> None:
    rules = dict(read_grammar(grammar))
    text = derive(rules, Reference("root"), Random(seed), {})
    assume(text is not None and len(text) <= 12)
    try:
        pattern = grammar_pattern(grammar)
    except BadInput as error:
        assume("parts" not in error.message)
        raise
    matches = matches_in_time(pattern, str(text))
    assume(matches is not None)
    assert matches


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('root ::= "a" root | "b"', ["b", "aaaaaaab"], ["", "a", "ba"]),
        ('root ::= root "+" n | n  # sums\nn ::= [0-9]+', ["1", "1+22+3+4+5+6"], ["+1", "1+"]),
        ('root ::= item ("," root)?\nitem ::= "x" | "y"', ["x", "x,y,x,y,x,y"], ["x,", ",x"]),
        ('root ::= "(" root ")" | "1"', ["1", "((1))"], ["(1", "(((1)))"]),
        ('root ::= a\na ::= "<" b ">" |\nb ::= a "." ', ["", "<.>", "<<.>.>"], ["<>"]),
        (r'root ::= "\"\n\x41é" [^a-y\]-] .', ['"\nAéz!', '"\nAé\n\n'], ['"\nAé]!', '"\nAé-!']),
        (r"""root ::= "\/\'\?\0\a\b\f\v\e" """, ["/'?\0\a\b\f\v\x1b"], ["/"]),  # escapes of xgrammar
        ('root ::= ([a-c_]{ 2 } "-"){1 , }', ["ab-", "__-cb-"], ["ab", "a-"]),
        ('root ::= "a"\n  "b"\n  | "c.d"', ["ab", "c.d"], ["a", "cxd"]),
        *((f'root ::= "\\U{code:08X}"', [chr(code)], []) for code in (0xD7FF, 0xE000, 0x10FFFF)),
    ],
)
def test_a_pattern_has_the_texts_of_its_grammar(grammar: str, texts: list[str], others: list[str]) -> None:
    pattern = grammar_pattern(grammar)
    for text in (*texts, *others):
        assert bool(re.fullmatch(pattern, text)) == (text in texts), (pattern, text)


def test_a_list_ends_with_its_item_so_that_the_automaton_has_its_states_once() -> None:
    assert grammar_pattern('root ::= "[" "ab" [0-9] ("," "ab" [0-9])* "]"').count("ab[") == 2
    assert grammar_pattern('root ::= "ab" "cd" ("," "ab" "cd")*') == "(?:abcd,)*abcd"


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "no rule root"),
        ('start ::= "a"', "no rule root"),
        ('root ::= "a" other', "line 1 of the grammar: no rule other"),
        ('root ::= "a"\nroot ::= "b"', "line 2 of the grammar: a second rule root"),
        ("root ::= 'a'", 'unexpected "\'"'),
        ('root ::= ("a"', "a ( without its )"),
        ('root ::= "a")', "unexpected )"),
        ('root ::= * "a"', "unexpected *"),
        ('"a" root', "expected a rule"),
        (r'root ::= "\q"', "an invalid escape"),
        (r'root ::= "\ud800"', "an invalid escape"),
        *((f'root ::= "\\U{code:08X}"', "an invalid escape") for code in (0xD800, 0xDFFF, 0x110000)),
        ("root ::= [z-a]", "the range z-a is empty"),
        ("root ::= []", "an empty set"),
        ('root ::= "a"{3,2}', "{3,2} must be a range"),
        ('root ::= "a"{0,10001}', "up to 10000"),
        ("root ::= " + "(" * 60 + '"a"' + ")" * 60, "more than 50 groups"),
        ('root ::= "a" root "b"', "no text of the grammar fits in 3 levels"),
        ("\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(20)) + '\nroot ::= r0\nr20 ::= "a"', "20000 parts"),
    ],
)
def test_a_grammar_that_cannot_be_read_is_refused_with_the_reason(grammar: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        grammar_pattern(grammar)
    assert message in refused.value.message
