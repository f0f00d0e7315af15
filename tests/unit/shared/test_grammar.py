"""Grammars in GBNF become parts of the same texts, as far as their rules are expanded."""

from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern
from shared.patterns.gbnf import Reference, read_grammar
from shared.patterns.grammar import grammar_part
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Alternatives, Characters, FormPart, JoinedParts, Literal, RepeatedPart, inner_parts

RULES = ("root", "a")
ATOMS = st.sampled_from(['"x"', '"y"', "[0-9]", *RULES])


def alternatives(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequences = st.lists(parts, min_size=1, max_size=3).map(" ".join)
    return st.lists(sequences, min_size=1, max_size=3).map(" | ".join)


PARTS = st.recursive(
    ATOMS,
    lambda inner: st.builds("({}){}".format, alternatives(inner), st.sampled_from(["", "?", "{2}", "{ 0, 2 }"])),
    max_leaves=4,
)
GRAMMARS = st.tuples(*(alternatives(PARTS) for _ in RULES)).map(
    lambda bodies: "\n".join(f"{rule} ::= {body}" for rule, body in zip(RULES, bodies, strict=True))
)


def derive(rules: dict[str, FormPart], part: FormPart, random: Random, depths: dict[str, int]) -> str | None:
    """A random text of the part, in which no rule is within itself more often than twice; None if none was found."""
    match part:
        case Literal(text):
            return text
        case Characters(codes):
            return chr(random.choice(codes)[0])
        case Reference(rule):
            depth = depths.get(rule, 0)
            return None if depth == 3 else derive(rules, rules[rule], random, {**depths, rule: depth + 1})
        case Alternatives(ways):
            return derive(rules, random.choice(ways), random, depths)
        case RepeatedPart(inner, least, most):
            times = random.randint(least, least + 2 if most is None else most)
            part = JoinedParts((inner,) * times)
    texts = [derive(rules, each, random, depths) for each in inner_parts(part)]
    return None if None in texts else "".join(map(str, texts))


@settings(max_examples=10)
@given(GRAMMARS, st.integers(0, 9))
def test_every_text_of_a_grammar_up_to_the_depth_matches_its_pattern(grammar: str, seed: int) -> None:
    rules = dict(read_grammar(grammar))
    text = derive(rules, Reference("root"), Random(seed), {})
    assume(text is not None and len(text) <= 12)
    try:
        automaton = automaton_of(grammar_part(grammar))
    except BadInput as error:
        assume("parts" not in error.message and "too large" not in error.message)
        raise
    assert automaton.accepts(str(text))


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
        ("root ::= [^]", ["a", "é", "\n"], ["", "ab"]),
        ('root ::= "a"\n  "b"\n  | "c.d"', ["ab", "c.d"], ["a", "cxd"]),
        *((f'root ::= "\\U{code:08X}"', [chr(code)], []) for code in (0xD7FF, 0xE000, 0x10FFFF)),
    ],
)
def test_a_part_has_the_texts_of_its_grammar(grammar: str, texts: list[str], others: list[str]) -> None:
    automaton = automaton_of(grammar_part(grammar))
    assert [text for text in (*texts, *others) if automaton.accepts(text)] == texts


@pytest.mark.parametrize("sign", ["", "^"])
def test_a_set_of_many_characters_takes_little_time(sign: str) -> None:
    many = "".join(chr(code) for code in range(0x4E00, 0x9FFF, 2))
    grammar, pattern = grammar_part(f"root ::= [{sign}{many}]"), compile_pattern(f"^[{sign}{many}]$|a$")
    for automaton in (automaton_of(grammar), pattern):
        assert [automaton.accepts(each) for each in (many[0], many[-1], "丁")] == [not sign, not sign, bool(sign)]


def test_lists_within_each_other_have_the_states_of_an_item_once() -> None:
    item = "[a-z]{1,100}"
    for _ in range(8):
        item = f'"[" {item} ("," {item})* "]"'
    assert len(automaton_of(grammar_part(f"root ::= {item}")).accepting) < 1000


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
        grammar_part(grammar)
    assert message in refused.value.message
