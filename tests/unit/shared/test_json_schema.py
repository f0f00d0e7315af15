"""JSON schemas as patterns: each text of the pattern is JSON that the schema accepts."""

import contextlib
import json
import re
from itertools import chain, combinations, product
from random import Random
from typing import Any

import jsonschema_rs
import pytest
import regex

from shared.errors import BadInput
from shared.patterns.automaton import compile_pattern
from shared.patterns.compile_budget import SMALL, Budget, BudgetExceeded, limited_to
from shared.patterns.json_schema import choice_part, object_part, schema_part, schema_parts
from shared.patterns.part_automaton import automaton_of
from shared.patterns.schema_keywords import ASSERTIONS, TYPE_OF
from shared.patterns.string_formats import FORMATS
from tests.support.pattern_texts import draw_text

NESTED = {  # each part has the next one twice
    "$defs": {
        f"n{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/n{i + 1}"} for name in "ab"}}
        for i in range(20)
    }
    | {"n20": {"type": "null"}},
    "$ref": "#/$defs/n0",
}
INFINITE = float("inf")  # as parsers of JSON read 1e999
REFUSED: list[tuple[Any, str]] = [
    ({"not": {"required": []}}, "schema has no instance"),
    ({"not": {"minLength": 3}}, "not is supported for const, enum, type"),
    ({"not": {"const": []}}, "not is supported for const, enum, type"),
    ({"not": {"properties": {"a": {"const": 1}}}}, "not is supported for const, enum, type"),
    ({"properties": {"a": {"$dynamicRef": "#a"}}, "required": ["a"]}, "$dynamicRef is not supported"),
    ({"contains": {"minLength": 2}, "maxContains": 2}, "not is supported for const, enum, type"),
    ({"contains": {}, "maxContains": 0}, "schema has no instance"),
    ({"items": [{}], "contains": {}}, "contains beside prefixItems is not supported"),
    ({"properties": {"a": True}, "patternProperties": {"(": True}}, "is not valid"),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "no text is written that has pattern '^a' and pattern '^b'"),
    ({"type": "strin"}, "type must be among object, array"),
    ({"type": "string", "pattern": "^[\x01]$"}, "no text matches the pattern"),
    ({"type": "string", "pattern": "b(?<=a)"}, "look-behind is not supported"),
    ({"type": "string", "pattern": "^((?!b)a)*$"}, "look-ahead within a repetition is not supported"),
    ({"type": "string", "pattern": "c(?=^a)"}, "no text matches the pattern"),
    ({"type": "string", "pattern": r"\uD83D"}, r"\uD83D is half of a character; accepted is a whole one"),
    ({"type": "string", "pattern": r"^\p{Emojis}$"}, "the property Emojis of characters is not known"),
    ({"anyOf": [{"pattern": "a(?<!a)"}, {"pattern": "a(?<=a)"}]}, "pattern 'a(?<!a)': the pattern is not valid"),
    ({"type": "string", "pattern": "("}, "is not valid"),
    (
        {"type": "string", "pattern": "^abc", "maxLength": 2},
        "no text is written that has pattern '^abc' and maxLength 2",
    ),
    ({"type": "string", "format": "date", "maxLength": 9}, "no text is written that has format 'date' and maxLength 9"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "minLength 5 is above the maximum 2"),
    ({"type": "array", "minItems": 5, "maxItems": 1}, "is above the maximum"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2, "maxProperties": 1}, "is above the max"),
    ({"type": "string", "maxLength": -1}, "maxLength must be a whole number from 0 on"),
    ({"type": "string", "maxLength": INFINITE}, "maxLength must be a whole number from 0 on"),
    ({"type": "array", "minItems": INFINITE}, "minItems must be a whole number from 0 on"),
    ({"type": "object", "minProperties": INFINITE}, "minProperties must be a whole number from 0 on"),
    ({"type": "integer", "multipleOf": INFINITE}, "multipleOf must be a number, got inf"),
    ({"type": "integer", "maximum": float("nan")}, "maximum must be a number, got nan"),
    ({"type": "number", "multipleOf": -0.1}, "multipleOf must be above 0, got -0.1"),
    ({"type": "integer", "multipleOf": 7, "minimum": 8, "maximum": 13}, "no multiple of 7 is within the bounds"),
    ({"type": "integer", "minimum": 3, "exclusiveMaximum": 3}, "digits has minimum 3 and exclusiveMaximum 3"),
    ({"type": "number", "minimum": 0.7, "maximum": 0.5}, "digits has minimum 0.7 and maximum 0.5"),
    ({"type": "array", "uniqueItems": True, "minItems": 2}, "uniqueItems is supported for items with enum"),
    ({"type": "object", "minProperties": 10**9}, "minProperties is supported up to 50"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf is supported if"),
    ({"oneOf": [{"const": 1}, {"const": 1.0}]}, "oneOf is supported if"),
    ({"oneOf": [{"type": "null"}, {"anyOf": [{"type": "string"}, {}]}]}, "oneOf is supported if"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "no instance"),
    ({"enum": 3}, "enum must be a list, got 3"),
    ({"patternProperties": []}, "patternProperties must be an object of schemas, got []"),
    ({"required": ["a", 5]}, "required must be a list of strings, got ['a', 5]"),
    ({"anyOf": []}, "anyOf must be a list of schemas, got []"),
    ({"oneOf": [{"uniqueItems": 1}]}, "uniqueItems must be true or false, got 1"),
    ({"allOf": [{"pattern": 1}, {"maxLength": 2}]}, "pattern must be a string, got 1"),
    ({"$ref": 1}, "$ref must be a string, got 1"),
    ({"not": 5}, "not must be a schema, got 5"),
    ({"required": ["a"], "properties": {"a": False}}, "no instance: schema.a is required, but has no allowed value"),
    (  # as kotlinx-schema writes a sealed class
        {
            "additionalProperties": False,
            "oneOf": [{"type": "object", "required": ["k"], "properties": {"k": {"const": 1}}}],
        },
        "no instance: schema.oneOf[0].k is required, but has no allowed value",
    ),
    (
        {"x": {"$id": "/a"}, "enum": [{"$id": "/a"}], "default": {"$id": "/a"}, "$ref": "/a"},
        "refers to no schema within",
    ),
    ({"contains": {}, "minContains": 10**9}, "minContains is supported up to 50"),
    ({"contains": {}, "minContains": "two"}, "minContains must be a whole number"),
    ({"patternProperties": {f"a{i}": True for i in range(101)}, "properties": {"b": True}}, "more than 100 patterns"),
    ({"oneOf": [{"const": i} for i in range(1001)]}, "oneOf may have 1000 parts"),
    ({"allOf": [{"anyOf": [{"const": i} for i in range(n, n + 40)]} for n in range(2)]}, "two different anyOf at once"),
    (NESTED, "more than 5000 parts"),
    ({"anyOf": [{"type": "string", "pattern": f"a{i}"} for i in range(101)]}, "more than 100 patterns"),
    ({"$ref": "other.json"}, "refers to no schema within this one"),
    ({"$ref": "#other"}, "refers to no schema within this one"),
    ({"$ref": "#/$defs/none"}, "refers to nothing"),
    ({"$ref": "#"}, "no instance of at most 3 levels"),
    (False, "no instance"),
    (5, "a schema must be an object"),
]


@pytest.mark.parametrize("required", [[], ["kind"]])
@pytest.mark.parametrize("required_by_if", [{}, {"required": ["kind"]}])
def test_many_conditions_on_one_property_are_served(required: list[str], required_by_if: dict[str, Any]) -> None:
    conditions = [{"properties": {"kind": {"const": i}}, **required_by_if} for i in range(10)]
    thens = [{"properties": {f"p{i}": {"type": "boolean"}}, "required": [f"p{i}"]} for i in range(10)]
    kinds = {"kind": {"enum": [*range(11)]}}
    ways = [{"if": condition, "then": then} for condition, then in zip(conditions, thens, strict=True)]
    schema = {"type": "object", "properties": kinds, "required": required, "allOf": ways}
    automaton, validator = automaton_of(schema_part(schema)), jsonschema_rs.validator_for(schema)
    of_kinds = [{"kind": i, **({f"p{j}": True} if j < 10 else {})} for i in range(11) for j in (i, i + 1)]
    for value in ({}, *of_kinds):
        assert automaton.accepts(json.dumps(value)) == validator.is_valid(value), value


@pytest.mark.parametrize(("schema", "reason"), REFUSED)
def test_a_schema_that_no_pattern_can_express_is_refused_by_name(schema: Any, reason: str) -> None:
    with pytest.raises(BadInput) as refused:
        schema_part(schema)
    assert reason in refused.value.message


@pytest.mark.parametrize("value", [5, -0.5, 1e300, 10**400, INFINITE, "a", [], [5], {"a": 5}, None, True])
@pytest.mark.parametrize(
    "name", sorted({*TYPE_OF, "allOf", "anyOf", "const", "enum", "if", "not", "then", "type", "$ref"})
)
def test_a_keyword_with_any_value_is_served_or_refused(name: str, value: Any) -> None:
    for schema in ({name: value}, {"allOf": [{name: value}, {"type": "object", "properties": {"a": {}}}]}):
        with contextlib.suppress(BadInput):
            assert automaton_of(schema_part(schema)).accepting.any()


@pytest.mark.parametrize("name", sorted(ASSERTIONS - {"const"}))
def test_a_keyword_that_is_null_has_no_effect(name: str) -> None:
    for schema in ({}, {"type": "string", "minLength": 2}, {"type": "array", "items": {"type": "integer"}}):
        without, null = {key: value for key, value in schema.items() if key != name}, {name: None}
        for around in (lambda part: part, lambda part: {"properties": {"a": part}, "required": ["a"]}):
            found = [automaton_of(schema_part(around(part))) for part in (without, without | null)]
            assert found[0].written() == found[1].written()
        assert schema_part({"anyOf": [without | null, {"type": "null"}]}) == schema_part(
            {"anyOf": [without, {"type": "null"}]}
        )
        for parts in ([without, null], [null, without]):
            assert schema_part({"allOf": parts}) == schema_part({"allOf": [without, {}]})


@pytest.mark.parametrize(
    "pattern",
    [
        *("b(?=a)", "^a(?!.*bb)[abc]*$", "^(a(?=b)|c)[abc]*$", "^(?:(?=ab)a|b)?c*(?!b)", "^(?!^a|b$)(?=.)[abc]*$"),
        *("a(?!a)", "^(?=a(?!b))[abc]+$", "(a(?=c)c?){1}b", r"^(?![\s\S]*(?:^a|b$))", "^(?=.*a)(?!b)[abc]{2}$"),
        *("(?=a)^a", "(?:a|(?!b))^c", r"a(?=.b)\Bb", r"a(?!b)\b", r"(?!ab\b)(?:a|(?=b)^b).", r"(?=b\B(?!c\b))b"),
    ],
)
def test_look_ahead_sees_the_rest_of_the_text(pattern: str) -> None:
    automaton = automaton_of(schema_part({"type": "string", "pattern": pattern}))
    whole = compile_pattern(f"{pattern}[abc]*")
    for text in map("".join, chain.from_iterable(product("abc", repeat=size) for size in range(5))):
        assert automaton.accepts(json.dumps(text)) == bool(re.search(pattern, text)), text
        assert whole.accepts(text) == bool(re.fullmatch(f"{pattern}[abc]*", text)), text


@pytest.mark.parametrize(
    "pattern", [r"\w", r"\s", ".", r"[^\W_]", "(?i)k", r"\p{L}", r"(?!\W).", r"a\b", r"\Ba", "(?m)^a", "(?m)a$"]
)
def test_negative_look_ahead_refuses_what_one_language_finds(pattern: str) -> None:
    automaton = automaton_of(schema_part({"type": "string", "pattern": rf"^(?![\s\S]*{pattern})"}))
    texts = [*map(chr, (*range(0x20, 0x7F), *range(0xA0, 0x300), 0x2028, 0x212A, 0xFEFF)), "\na", "a\nb", "éa", "aé"]
    accepted = [text for text in texts if automaton.accepts(json.dumps(text, ensure_ascii=False))]
    for flags in (regex.ASCII, regex.UNICODE):
        assert not [text for text in accepted if regex.search(pattern, text, flags)]


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"^\p{Lu}[\p{L}\s]{0,99}$", ["Ω", "Дом " * 25], ["a", "Дом " * 25 + "a"]),
        (r"^[\p{L}'-]{1,40} [\p{L}'-]{1,40}$", ["Zoë O'Neil"], ["Zoë", "Zoë " + "a" * 41]),
        ("4[0-9]{14}", ["4" + "0" * 14 + "a"], ["4" + "0" * 13]),
        (r"(?i)^\p{Lu}{2}$", ["äb"], ["a1"]),
        (r"^(?!x).{0,3000}\bend$", ["a" * 2999 + " end"], ["x end", "a" * 3001 + " end"]),
        (r"foo.{0,3000}bar", ["é foo" + "я" * 2000 + "bar"], ["foo" + "я" * 3001 + "bar"]),
        (r"\w{0,3000}\bThe\b.{0,3000}", ["a" * 4000 + " The " + "b" * 4000], ["a" * 4000 + "The"]),
    ],
)
def test_a_pattern_with_many_states_is_written(pattern: str, accepted: list[str], refused: list[str]) -> None:
    automaton = automaton_of(schema_part({"type": "string", "pattern": pattern}))
    assert [automaton.accepts(json.dumps(text, ensure_ascii=False)) for text in accepted] == [True] * len(accepted)
    assert not any(automaton.accepts(json.dumps(text, ensure_ascii=False)) for text in refused)


def test_a_pattern_is_written_that_exceeded_a_smaller_budget() -> None:
    schema = {"type": "string", "pattern": r"^\p{Lt}[\p{L}\p{Sc}]{0,600}$"}
    with limited_to(Budget(10)), pytest.raises(BudgetExceeded):
        schema_part(schema)
    assert automaton_of(schema_part(schema)).accepts('"ǅ' + "я" * 600 + '"')


def test_a_pattern_of_names_takes_linear_time() -> None:
    names = {"patternProperties": {"(a+)+$": True}, "properties": {"a" * 200 + "b": {"type": "null"}}}
    assert automaton_of(schema_part(names)).accepts("{}")


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"const": i} for i in range(1000)]},
        {"prefixItems": [{"type": "number", "maximum": 1e9 + i} for i in range(300)]},
    ],
)
def test_a_schema_that_takes_seconds_exceeds_the_budget_of_small_ones(schema: Any) -> None:
    with limited_to(SMALL), pytest.raises(BudgetExceeded):
        schema_part(schema)


URIS = (  # of configurations, from the documents of their services
    "https://example.com?x=1 http://redis:6379 file:///etc/hosts s3://bucket/key postgresql://user:p%40w@db-1:54321/a "
    "mailto:a@b.de urn:isbn:123 git+ssh://git@github.com/o/r.git data:text/plain;base64,SGk= http://[::1]:80/ "
    "jdbc:mysql://db:3306/a https://a-b-c.org/x/%C3%A9?q=a+b&n=1#top magnet:?xt=urn:btih:c12f tel:+49-30 "
    "unix:///var/run/docker.sock mongodb+srv://u:p@a.b.mongodb.net/?w=1 https://xn--mnchen-3ya.de/"
)
PATHS = "/ /users/1?all ./output2 output/x.json ../a #top ?page=2 //cdn.example.com/a.js a.b.c:d"
IPS = "::1 :: 2001:db8::8a2e:370:7334 FE80:: 1:2:3:4:5:6:7:8 ::ffff:192.0.2.1"
EMAILS = "Ann.O'Neil+a@Example.org user@localhost _x@a.b.c.d.co.uk"
HOSTS = "localhost my-host a.b.c.d.e.f.com db-1.prod.eu-west-1.compute.internal.example.com Web01 10.0.0.1"
REGEXES = (
    r"^[a-z]+$ \d{4} ^\S+@\S+\.\w{2,}$ ^(?:true|false)$ ^[A-Z][A-Za-z0-9_.-]*$ ^v?\d+\.\d+(\.\d+)?$ .*\.log\.\d{1,3} "
    r"^#([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$ ^[^/\\]+/[^\]]+$ ^[!-~]{8,64}$ a|\bb\b|c*? ^[a-z0-9]+(?:-[a-z0-9]+)*$"
)


@pytest.mark.parametrize(
    ("name", "texts", "others"),
    [
        ("uri", URIS, "https:///a https:/a http://:80 note: /a a_b:c http://a:123456 http://[1 a:%4"),
        ("uri-reference", f"{URIS} {PATHS}", "1:b %4 http:a"),
        ("uri-template", "/users/{id} {+path}/here {?q,lang*} /a{/var:3}/%20x https://api.x.org/{v}/a", "{ /{a-b} {}"),
        ("hostname", HOSTS, "a_b -a a- a..b xn--a " + "a" * 64),
        ("email", EMAILS, "a @b a@b- .a@b a@b@c"),
        ("regex", REGEXES, r"( [ * a** \ a{3,2} [z-a] (?i)a (a \p [a-\d] ^* [[a]]"),
        ("uuid", "2EB8AA08-AA98-11EA-B4AA-73B441D16380 2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2eb8aa08"),
        ("duration", "P3D PT30M P1Y2M3DT4H5M6S P2W PT0S PT86400S", "P PT 3D P1D2Y"),
        ("date-time", "2024-02-29T12:00:00.123456789Z 1999-12-31T23:59:59+01:00", "2024-02-30T12:00:00Z 2024-01-01"),
        ("json-pointer", '/a/b~1c /ü"\\/0 /~0/-', "a /~2"),
        ("relative-json-pointer", "0 1/a 12#", "01 /a -1"),
        ("ipv6", IPS, "1::2::3 ::ffff:192.0.2.256 12345::"),
    ],
)
def test_a_format_has_its_common_spellings(name: str, texts: str, others: str) -> None:
    automaton = automaton_of(schema_part({"type": "string", "format": name}))
    assert [text for text in texts.split() if not automaton.accepts(json.dumps(text, ensure_ascii=False))] == []
    assert [text for text in others.split() if automaton.accepts(json.dumps(text))] == []


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_breaks_its_format(name: str) -> None:
    automaton, random = automaton_of(schema_part({"format": name})), Random(0)
    drafts = [f"{head}/schema" for head in ("https://json-schema.org/draft/2020-12", "http://json-schema.org/draft-07")]
    validators = [
        jsonschema_rs.validator_for({"$schema": draft, "format": name}, validate_formats=True) for draft in drafts
    ]
    values = [json.loads(draw_text(automaton, random)) for _ in range(100)]
    assert [value for value in values if not all(each.is_valid(value) for each in validators)] == []
    for value in values if name == "regex" else ():
        re.compile(value)


def test_no_space_of_python_or_ecmascript_is_another_character() -> None:
    others = automaton_of(schema_part({"type": "string", "pattern": r"^\S$"}))
    characters = [chr(code) for code in (0x20, 0x21, *range(0xA0, 0x3100), *range(0xFE00, 0x10000))]
    refused = {each for each in characters if not others.accepts(f'"{each}"')}
    assert refused == {each for each in characters if each.isspace() or each == "\ufeff"}


def test_any_json_object_is_an_object_of_few_levels() -> None:
    automaton, random = automaton_of(object_part()), Random(1)
    for _ in range(50):
        assert isinstance(json.loads(draw_text(automaton, random)), dict)


def test_a_choice_is_one_of_the_texts_in_their_own_characters() -> None:
    choices = ["a.b", "(c|d)*", "\\n", "é$^", "a"]
    automaton, random = automaton_of(choice_part(choices)), Random(2)
    assert {draw_text(automaton, random) for _ in range(100)} == set(choices)


def test_schemas_of_several_fields_share_the_limits() -> None:
    texts, others = (
        {
            "type": "object",
            "required": ["p50"],
            "properties": {f"p{i}": {"type": "string", "pattern": f"{c}{i}"} for i in range(51)},
        }
        for c in "ab"
    )
    assert len(schema_parts({"one": texts, "two": {"$defs": {"a": {"type": "null"}}, "$ref": "#/$defs/a"}}, [])) == 2
    with pytest.raises(BadInput, match="more than 100 patterns") as refused:
        schema_parts({"one": texts, "two": others}, [])
    assert refused.value.field == "two.p49"


@pytest.mark.parametrize(("low", "high"), [(0, 9), (7, 123), (-105, 98), (19, 21), (89, 111), (-9, -3), (100, 305)])
def test_a_range_has_all_its_integers_and_no_others(low: int, high: int) -> None:
    automaton = automaton_of(schema_part({"type": "integer", "minimum": low, "maximum": high}))
    assert [i for i in range(-400, 400) if automaton.accepts(str(i))] == list(range(low, high + 1))


@pytest.mark.parametrize(("least", "most"), [(0, None), (1, None), (2, None), (3, None), (0, 1), (1, 2), (2, 2)])
def test_an_object_has_any_of_its_optional_properties_within_its_limits(least: int, most: int | None) -> None:
    properties = {name: {"type": "null"} for name in "abc"}
    bounds = {"minProperties": least} | ({} if most is None else {"maxProperties": most})
    automaton = automaton_of(schema_part({"type": "object", "properties": properties, "required": ["b"], **bounds}))
    texts = {names: json.dumps(dict.fromkeys(names)) for size in range(4) for names in combinations("abc", size)}
    accepted = {names for names, text in texts.items() if automaton.accepts(text)}
    allowed = {names for names in texts if "b" in names and least <= len(names) <= (3 if most is None else most)}
    assert accepted == allowed
