"""Keywords beside each other: each text of a schema is valid by an independent validator, or the schema is refused."""

import json
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import BadInput
from shared.patterns.compile_budget import LARGE, limited_to
from shared.patterns.json_schema import schema_part
from shared.patterns.part_automaton import automaton_of
from shared.patterns.string_formats import FORMATS
from tests.support.pattern_texts import draw_text

# In the forms in which agents, zod, pydantic, protobuf, OpenAPI and Kubernetes write them.
WRITTEN = [json.loads(line) for line in Path(__file__).with_name("written_schemas.jsonl").read_text().splitlines()]
PATTERNS: tuple[str, ...] = (
    r"\S",
    ".+",
    "^session:.+$",
    "[^@]+@[^@]+",
    "^cat$|^dog$",
    "(^a$)|(^b$)",
    "(?i)^abc",
    "(?m)^x$",
    "^[a-z]{2,40}$",
)
PATTERNS += (r"^\w+\.\d$", '["\\\\]', r"^(?!.*--)[a-z-]+$", "^$|^a", "[é-ü]", "^[^a]*$", r"\d{4}$")
BOUNDS = st.sampled_from(
    (-1.7e308, -(2.0**70), -9007199254740991, -17, -0.5, 0, 0.2, 0.25, 0.4, 1, 3.75, 99, 1e20, 2**63 - 1, 1.7e308)
)
STRINGS = {
    "minLength": st.sampled_from((0, 1, 3, 12, 60)),
    "maxLength": st.sampled_from((0, 2, 10, 36, 255, 2083, 524288)),
    "pattern": st.sampled_from(PATTERNS),
    "format": st.sampled_from(sorted(FORMATS)),
}
NUMBERS = {
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), BOUNDS),
    "multipleOf": st.sampled_from((1, 3, 0.01, 0.05, 0.5, 2.5, 7, 86400)),
}
ITEMS = st.sampled_from(
    ({"type": "integer"}, {"type": "string", "maxLength": 300}, {"enum": [1, "a", "bc"], "maxLength": 1}, {})
)
ARRAYS = {
    "items": ITEMS,
    "prefixItems": st.lists(ITEMS, min_size=1, max_size=2),
    "minItems": st.sampled_from((0, 1, 2, 5)),
    "maxItems": st.sampled_from((1, 3, 40, 1000)),
    "contains": st.just({"const": 1}),
    "maxContains": st.sampled_from((0, 1, 2)),
    "uniqueItems": st.booleans(),
}
CONDITIONS = ({"properties": {"ab": {"type": "null"}}}, {"required": ["x1"]}, {"properties": {"x1": {"const": "a"}}})
OBJECTS = {
    **dict.fromkeys(("if", "then", "else", "not"), st.sampled_from(CONDITIONS)),
    "properties": st.sampled_from(
        ({"ab": {"type": "null"}}, {"ab": {"type": "integer"}, "x1": {"type": "string"}}, {})
    ),
    "required": st.sampled_from((["ab"], ["x1"], [])),
    "additionalProperties": st.sampled_from((False, True, {"type": "integer"})),
    "patternProperties": st.sampled_from(({"^[a-z]{2}$": {"type": "integer"}}, {"^x": {"type": "string"}, "b$": {}})),
    "propertyNames": st.sampled_from(({"maxLength": 3}, {"pattern": "^[a-z]+$"}, {"enum": ["ab", "x1"]})),
    "minProperties": st.sampled_from((0, 1, 2)),
    "maxProperties": st.sampled_from((0, 1, 300)),
}
OTHERS = "additionalProperties"
TWO = {"minProperties": 2, OTHERS: False}
MAYBE = {"type": "object", "properties": {"a": {"type": "string", "nullable": True}}, OTHERS: False}
SIBLINGS = {  # `$id` beside `$ref`
    "$id": "http://example.com/base/",
    "$defs": {"a": {"$id": "http://example.com/a.json", "type": "string"}, "b": {"$id": "a.json", "type": "integer"}},
    "allOf": [{"$id": "http://example.com/", "$ref": "a.json"}],
}
PETS = [  # as pydantic writes a union by a tag that has a default
    {"type": "object", "properties": {"kind": {"const": kind, "default": kind}, "name": {"type": "string"}}}
    for kind in ("cat", "dog")
]
ANY_OF_TWO = [  # ways that break one rule of several
    {"anyOf": [{"not": {"anyOf": [{"required": ["a"]}], "required": ["b"]}}, {"required": ["c"]}]},
    {"anyOf": [{"required": ["a"]}, False]},
]
CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], OTHERS: False}
AND_B = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
LIMITS = {name: {"type": "integer"} for name in ("swap", "memory")}  # as Docker Compose has them
CARD = {  # as React forms and PHP builders of schemas have it
    "properties": {"card": {"type": "number"}},
    "dependencies": {"card": {"properties": {"name": {"type": "string"}}, "required": ["name"]}},
}
HAS_PETS = {
    "properties": {"pets": {"enum": ["No", "Yes"]}},
    "dependencies": {
        "pets": {
            "oneOf": [
                {"properties": {"pets": {"enum": ["No"]}}},
                {"properties": {"pets": {"enum": ["Yes"]}, "age": {"type": "number"}}, "required": ["age"]},
            ]
        }
    },
}
NEEDS = [{"dependentRequired": {"a": [name]}} for name in "bc"]
NAMES = st.sampled_from("abcde")
KINDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "string": STRINGS,
    "number": NUMBERS,
    "integer": NUMBERS,
    "array": ARRAYS,
    "object": OBJECTS,
}


def texts_of(schema: Any) -> set[str]:
    """Texts of the schema. Raises: BadInput."""
    automaton, random, found = automaton_of(schema_part(schema)), Random(0), set()
    for _ in range(20):
        try:
            found.add(draw_text(automaton, random))
        except IndexError:  # the walk has used the whole bound, and needs more
            continue
    return found


def without_nullable(part: Any) -> Any:
    """The schema with null as a type where OpenAPI has `nullable`."""
    if isinstance(part, list):
        return [*map(without_nullable, part)]
    if not isinstance(part, dict):
        return part
    own = {"type": [part["type"], "null"]} if part.get("nullable") is True else {}
    return {name: without_nullable(each) for name, each in {**part, **own}.items()}


def check(schema: Any, validate_formats: bool = True) -> None:
    validator = jsonschema_rs.validator_for(without_nullable(schema), validate_formats=validate_formats)
    for text in texts_of(schema):
        assert validator.is_valid(json.loads(text)), text


@settings(max_examples=30)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.booleans())
def test_no_text_breaks_a_rule_of_its_schema(data: st.DataObject, kind: str, apart: bool) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(KINDS[kind])), min_size=1, max_size=3, unique=True))
    parts = [{"type": kind, name: data.draw(KINDS[kind][name])} for name in names]
    schema: Any = {"allOf": parts} if apart else {name: value for part in parts for name, value in part.items()}
    with suppress(BadInput):  # refused
        check(schema, validate_formats=not {"pattern", "format"} <= {*names})  # a pattern may exclude the format


@settings(max_examples=30)
@given(
    needs=st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=4),
    keyword=st.sampled_from(("dependentRequired", "dependencies", "dependentSchemas")),
    required=st.lists(NAMES, max_size=1),
    bounds=st.sampled_from(({}, {"minProperties": 2}, {"maxProperties": 3})),
)
def test_an_object_has_the_properties_on_which_others_depend(
    needs: dict[str, list[str]], keyword: str, required: list[str], bounds: dict[str, int]
) -> None:
    excluded = {name: {"properties": dict.fromkeys(each, False)} for name, each in needs.items()}
    rules = {keyword: excluded if keyword == "dependentSchemas" else needs, "required": required, **bounds}
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in "abcde"}, **rules}
    validator = jsonschema_rs.validator_for(schema)
    values = [dict.fromkeys(names) for size in range(6) for names in combinations("abcde", size)]
    accepted: list[dict[str, None]] = []
    with suppress(BadInput):  # no object is valid
        automaton = automaton_of(schema_part(schema))
        accepted = [value for value in values if automaton.accepts(json.dumps(value))]
    assert accepted == [value for value in values if validator.is_valid(value)]


@pytest.mark.parametrize("written", WRITTEN, ids=lambda written: written.get("name"))
def test_schemas_that_tools_and_libraries_write_are_served(written: dict[str, Any]) -> None:
    check(written["schema"])


@pytest.mark.parametrize(
    ("schema", "accepted", "refused"),
    [
        ({"type": "number", "minimum": 0.2, "maximum": 0.4}, ["0.2", "0.31", "0.40"], ["0", "0.19", "0.41", "1"]),
        ({"type": "number", "exclusiveMinimum": -1.5, "maximum": 2}, ["-1.49", "-0.5", "2", "2.0"], ["-1.5", "2.01"]),
        ({"type": "integer", "minimum": -9223372036854775808, "maximum": 5}, ["-999999999999999", "5"], ["6"]),
        (
            {"type": "number", "multipleOf": 0.05},
            ["0.05", "-1.25", "0.50", "2", "1234567890123.95"],
            ["0.01", "0.051", "12345678901234.95"],
        ),
        ({"type": "number", "minimum": 0, "multipleOf": 0.01}, ["19.99", "0.07", "9999999.9"], ["-0.01", "0.001"]),
        ({"type": "number", "multipleOf": 0.25, "minimum": 1e13}, ["10000000000000", "10000000000249.75"], ["0"]),
        ({"type": "integer", "multipleOf": 5}, ["-5", "0", "5000", "123456789012340"], ["1", "5001", "5.0"]),
        ({"type": "integer", "multipleOf": 7, "minimum": 100, "maximum": 7100}, ["105", "7098"], ["98", "106", "7105"]),
        ({"type": "integer", "multipleOf": 86400}, ["0", "86400", "86313600"], ["3600", "-86400"]),
        (  # as Kubernetes writes it
            {"type": "string", "format": "duration", "pattern": "^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$"},
            ['"1h30m"', '"500ms"'],
            ['"PT1H"', '""'],
        ),
        ({"pattern": r"^\uD83D\uDE00[^\uD800-\uDFFF]$"}, ['"😀a"', '"😀😀"'], ['"😀"', '"ab"']),
        ({"type": "string", "pattern": '^"\\w\\\\$'}, [r'"\"a\\"'], ['""a"']),
        ({"type": "string", "maxLength": 900}, [f'"{"é" * 900}"', '""'], [f'"{"é" * 901}"']),
        ({"type": "array", "items": {"type": "integer"}, "maxItems": 1000}, [str([7] * 1000)], [str([7] * 1001)]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 300, "maxItems": 301}, [str([7] * 301)], ["[7]"]),
        ({"patternProperties": {"^[a-z]{2}$": {"type": "null"}}, "minProperties": 1}, ['{"ab":null}'], ["{}"]),
        ({"patternProperties": {"^x-": {"type": "null"}, ".*": False}}, ["{}"], ['{"x-a":null}', '{"a":1}']),
        ({"patternProperties": {"f": {"type": "null"}, "b": False}}, ['{"f":null}'], ['{"fb":null}', '{"b":null}']),
        ({"propertyNames": {"type": ["string", "number"]}, "maxProperties": 1}, ['{"1":2}', "{}"], ["{1:2}"]),
        ({"propertyNames": {"type": "number"}}, ["{}"], ["{1:2}", '{"1":2}']),
        ({"propertyNames": {"pattern": "^k"}, "additionalProperties": {"type": "null"}}, ['{"k1":null}'], ['{"a":1}']),
        ({"properties": {"a": {"required": True}, "b": {}}}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"b":2}']),
        ({"format": "date", "type": "string"}, ['"2024-02-29"', '"2000-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
        ({"type": "integer", "enum": [1.0, 1.5]}, ["1.0"], ["1.5"]),
        ({"items": {"enum": [1, 2, 1.0]}, "uniqueItems": True, "minItems": 2}, ["[1.0,2]"], ["[1]", "[1,1]"]),
        (
            {"items": {"enum": ["a", "bc", 1, 2], "maxLength": 1, "not": {"const": 1}}, "uniqueItems": True},
            ['["a"]', '["a",2]'],
            ['["bc"]', "[1]"],
        ),
        ({"items": {"type": "integer"}, "contains": {"const": 5}, "maxContains": 1}, ["[5,4]", "[5]"], ["[]", "[5,5]"]),
        ({"type": "integer", "not": {"enum": [0, 2]}}, ["-1", "1", "30"], ["0", "2"]),
        (
            {
                "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
                "required": ["a"],
                "if": {"properties": {"a": {"const": True}}},
                "then": {"required": ["b"]},
            },
            ['{"a":true,"b":null}', '{"a":false}', '{"a":false,"b":null}'],
            ['{"a":true}', "{}"],
        ),
        ({"allOf": [{"contains": {"const": 1}, "minContains": 0}, {"contains": {"const": 1}}]}, ["[1]"], ["[]"]),
        (
            {
                "type": ["object", "null"],
                "required": ["k"],
                "oneOf": [{"properties": {"k": {"const": kind}}} for kind in "ab"],
            },
            ['{"k":"a"}', '{"k":"b"}'],
            ["null", '{"k":"c"}'],
        ),
        ({"pattern": "^(?=.{2,300}\\.?$)[a-z]+$"}, ['"ab"', f'"{"a" * 300}"'], ['"a"', f'"{"a" * 301}"']),
        ({"prefixItems": [{"const": 1}, {"const": 2}, False], "maxItems": 1}, ["[1]"], ["[1,2]"]),
        ({"enum": ["https://x.org/?a=b", "ab"], "format": "uri", "minLength": 3}, ['"https://x.org/?a=b"'], ['"ab"']),
        ({"properties": {"a": {}, "b": {}}, "propertyNames": {"not": {"const": "a"}}}, ['{"b":1}'], ['{"a":1}']),
        (
            {"properties": {"a": {"const": 0}}, "allOf": [{"properties": {"a": {"const": False}}}]},
            ["{}"],
            ['{"a":0}', '{"a":false}'],
        ),
        ({"oneOf": [{"type": "null"}, {"anyOf": [{"enum": [1]}, {"type": "string"}]}]}, ["null", "1", '"a"'], ["2"]),
        ({"type": ["string", "null"], "not": {"enum": ["a/b", None]}}, ['"a"', '"a/bc"'], ["null", '"a/b"', '"a\\/b"']),
        ({"type": "string", "allOf": [{"maxLength": 3}, {"maxLength": 5}]}, ['""', '"abc"'], ['"abcd"', '"abcdef"']),
        ({"type": "string", "allOf": [{"minLength": 2}, {"minLength": 1}]}, ['"ab"'], ['""', '"a"']),
        ({"type": "integer", "allOf": [{"maximum": 9}, {"maximum": 40}]}, ["9", "-1"], ["10", "40"]),
        ({"type": "integer", "allOf": [{"minimum": 9}, {"minimum": 4}]}, ["9", "100"], ["8", "4"]),
        ({"type": "integer", "allOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, ["0", "6", "12"], ["2", "3", "4", "9"]),
        ({"type": "array", "allOf": [{"maxItems": 1}, {"maxItems": 2}]}, ["[]", "[1]"], ["[1,2]"]),
        ({"type": "object", "allOf": [{"maxProperties": n} for n in (1, 2)]}, ["{}", '{"a":1}'], ['{"a":1,"b":1}']),
        ({"allOf": [{"enum": [1, 2]}, {"enum": [2, 3]}]}, ["2"], ["1", "3"]),
        ({"allOf": [{"type": "integer"}, {"type": "number"}]}, ["3"], ["1.5", '"a"']),
        ({"allOf": [{"type": ["number", "null"]}, {"type": "number"}]}, ["3", "1.5"], ["null"]),
        (
            {
                "type": "object",
                "propertyNames": {"pattern": "^a"},
                "additionalProperties": False,
                "patternProperties": {"^a": {"type": "integer"}, "^b": {"type": "null"}},
            },
            ['{"a":1}'],
            ['{"b":null}'],
        ),
        ({"pattern": "^(?!(?m:$)(?!a))"}, ['"b"'], [r'"\na"']),
        ({"type": "string", "nullable": True}, ['"a"', "null"], ["1"]),
        ({"type": "string", "nullable": True, "enum": ["a", None]}, ['"a"', "null"], ['"b"']),
        ({"type": "string", "nullable": True, "enum": ["a"]}, ['"a"'], ["null"]),
        ({"allOf": [{"type": ["integer", "null"]}, {"type": "number", "nullable": True}]}, ["null", "1"], ["1.5"]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", **MAYBE}, ['{"a":"b"}'], ['{"a":null}']),
        ({"$ref": "#/components/schemas/A", "components": {"schemas": {"A": MAYBE}}}, ['{"a":null}', "{}"], ["null"]),
        ({"properties": {"a": {}}, "minProperties": 2, OTHERS: {"const": 1}}, ['{"a":2,"key1":1}'], ['{"a":1}', "{}"]),
        ({"required": ["a"], "minProperties": 3}, ['{"a":1,"key1":2,"key2":3}'], ['{"a":1,"key1":2}']),
        ({"properties": {"key1": {"const": 1}}, "minProperties": 2}, ['{"key1":1,"key2":1}'], ['{"key1":1}']),
        (
            {"properties": {"x": {"minimum": 5}}, "patternProperties": {"^x$|^y.$": {"type": "integer"}}, **TWO},
            ['{"x":5,"y ":2}'],
            ['{"x":4,"y ":2}', '{"x":5}', '{"y ":2}', '{"x":5,"key1":1}'],
        ),
        ({"required": ["a"], "propertyNames": {"enum": ["a", "b"]}, **TWO, OTHERS: {}}, ['{"a":1,"b":2}'], ["{}"]),
        ({"patternProperties": {"^/": {"const": 1}}, **TWO}, ['{"/":1,"/ ":1}'], [r'{"/":1,"\/":1}', '{"/":1}']),
        ({"patternProperties": {"^x": False}, "minProperties": 1}, ['{"key1":1}'], ["{}", '{"x":1}']),
        ({"dependentRequired": {"key1": ["b"]}, **TWO, OTHERS: {}}, ['{"key2":1,"key3":1}'], ['{"key1":1,"key2":1}']),
        ({"properties": LIMITS, "dependencies": {"swap": ["memory"]}}, ['{"swap":2,"memory":1}', "{}"], ['{"swap":2}']),
        ({"oneOf": [CLOSED, CLOSED | AND_B]}, ['{"a":1}', '{"a":1,"b":2}'], ["{}", '{"a":1,"c":1}']),
        (CARD, ['{"card":1,"name":"a"}', "{}"], ['{"card":1}']),
        (HAS_PETS, ['{"pets":"No"}', '{"pets":"Yes","age":2}', "{}"], ['{"pets":"Yes"}']),
        ({"properties": {"a": True}, "allOf": NEEDS}, ['{"a":1,"b":1,"c":1}', "{}"], ['{"a":1,"b":1}']),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#", **SIBLINGS, "definitions": SIBLINGS["$defs"]},
            ["1"],
            ['"a"'],
        ),
        ({"$schema": "https://json-schema.org/draft/2019-09/schema", **SIBLINGS}, ['"a"'], ["1"]),
        (SIBLINGS, ['"a"'], ["1"]),
        (
            {
                "$schema": "http://json-schema.org/draft-04/schema#",
                "definitions": {"a": {"id": "http://x.org/a", "const": 1}, "b": {"id": "http://y.org/a", "minimum": 5}},
                "id": "http://x.org/",
                "allOf": [{"id": "http://y.org/", "allOf": [{"$ref": "a"}]}],
            },
            ["5"],
            ["4", "1"],
        ),
        ({"properties": {"a": {"pattern": "a(?<=b)"}, "b": {"type": "null"}}}, ['{"b":null}', "{}"], ['{"a":"ab"}']),
        (
            {"oneOf": PETS, "discriminator": {"propertyName": "kind"}},
            ['{"kind":"cat"}', '{"kind":"dog","name":"Rex"}'],
            ["{}", '{"name":"Rex"}'],
        ),
        ({"type": "string", "pattern": r"^\P{L}$"}, ['"~"', '"\x80"'], ['"\x7f"', '"é"']),
        ({"properties": {key: {"type": "boolean"} for key in "abc"}, "allOf": ANY_OF_TWO}, ['{"a":true}'], ["{}"]),
    ],
)  # fmt: skip
def test_the_right_texts_are_accepted(schema: Any, accepted: list[str], refused: list[str]) -> None:
    automaton = automaton_of(schema_part(schema))
    assert [text for text in accepted if not automaton.accepts(text)] == []
    assert [text for text in refused if automaton.accepts(text)] == []


def list_of(item: Any, most: int, **rules: Any) -> dict[str, Any]:
    return {"type": "array", "items": item, "maxItems": most, **rules}


TEXT, WHOLE = {"type": "string", "maxLength": 500}, {"type": "integer"}
ROW: dict[str, Any] = {"email": {"type": "string", "format": "email"}, "url": {"type": "string", "format": "uri"}}
ROW |= {"name": {"type": "string", "maxLength": 100}}
LINE: dict[str, Any] = {"sku": {"type": "string", "maxLength": 64}, "description": TEXT, "price": {"type": "number"}}
LINE |= {"currency": {"type": "string", "pattern": "^[A-Z]{3}$"}, "date": {"type": "string", "format": "date"}}
ROWS, LINES = ({"type": "object", "properties": each, "required": [*each]} for each in (ROW, LINE))
ROWS_VALUE = {"email": "ab@example.com", "url": "https://example.com/", "name": "é" * 100}
SHORT_VALUE = {"sku": "a" * 40, "description": "b" * 40, "price": 1.5, "currency": "EUR", "date": "2024-02-29"}
LINES_VALUE = SHORT_VALUE | {"sku": "a" * 64, "description": "b" * 300}


@pytest.mark.parametrize(
    ("schema", "item", "left_out"),
    [
        (list_of(ROWS, 5), ROWS_VALUE, []),
        (list_of(ROWS, 64, minItems=2), ROWS_VALUE, []),
        (list_of(LINES, 10), LINES_VALUE, []),
        (list_of(LINES, 100), LINES_VALUE, ["schema.items.maxLength"]),
        (list_of(TEXT, 300), "a" * 500, []),
        (list_of(TEXT, 2000), "a" * 500, ["schema.maxItems"]),
        (list_of({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3000}, 50), "a" * 3000, []),
        (list_of(list_of(WHOLE, 1000), 64), [1] * 1000, []),
        (list_of(list_of(LINES, 100), 5), [SHORT_VALUE] * 100, ["schema.items.items.maxLength", "schema.maxItems"]),
    ],
)
def test_a_list_of_strings_with_a_length_has_many_items(schema: Any, item: Any, left_out: list[str]) -> None:
    named: list[str] = []
    with limited_to(LARGE):
        automaton = automaton_of(schema_part(schema, left_out=named))
    lowered = [int(each.rpartition("=")[2]) for each in named if each.startswith("schema.maxItems=")]
    most = min([schema["maxItems"], *lowered])
    assert [each.partition("=")[0] for each in named] == left_out
    assert automaton.accepts(json.dumps([item] * most, ensure_ascii=False))
    assert not automaton.accepts(json.dumps([item] * (most + 1), ensure_ascii=False))
    validator, random = jsonschema_rs.validator_for(schema, validate_formats=True), Random(3)
    for _ in range(3):
        assert validator.is_valid(json.loads(draw_text(automaton, random)))


def test_a_part_that_is_left_out_is_named() -> None:
    left_out: list[str] = []
    without_value = {"type": "string", "minLength": 2, "maxLength": 1}
    parts = {"a": {"anyOf": [{"type": "null"}, {"pattern": "a(?<=b)"}]}, "b": without_value}
    schema_part({"properties": parts}, "tool", left_out)
    assert left_out == ["tool.a.anyOf[1]"], "a part without a value is not missed"


@pytest.mark.parametrize("keyword", ["dependentRequired", "dependentSchemas"])
def test_a_property_is_named_whose_dependencies_take_too_many_states(keyword: str) -> None:
    names = [f"{letter}{i}" for letter in "ab" for i in range(20)]
    needs: dict[str, Any] = {f"a{i}": [f"b{i}"] for i in range(20)}
    if keyword == "dependentSchemas":
        needs = {name: {"required": need, "minProperties": 2} for name, need in needs.items()}
    left_out: list[str] = []
    schema = {"properties": {name: {"type": "null"} for name in names}, keyword: needs}
    automaton = automaton_of(schema_part(schema, left_out=left_out))
    assert automaton.accepts('{"a0":null,"b0":null}')
    assert "schema.a10" in left_out
    assert not automaton.accepts('{"a10":null,"b10":null}')


@pytest.mark.parametrize("count", [60, 120])
def test_optional_properties_cost_linearly(count: int) -> None:
    schema = {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(count)}}
    assert len(automaton_of(schema_part(schema)).accepting) < 40 * count
