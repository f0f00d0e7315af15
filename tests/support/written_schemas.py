"""Schemas in the forms in which agents, zod, pydantic, protobuf, OpenAPI and Kubernetes write them."""

from typing import Any

S: dict[str, Any] = {"type": "string"}
INT53 = {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}
NULL = {"type": "null"}
# ruff: noqa: E501  (patterns as they are written)
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"
ZOD_EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
ZOD_UUID = (
    "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
    "|00000000-0000-0000-0000-000000000000|ffffffff-ffff-ffff-ffff-ffffffffffff)$"
)
K8S_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
SEMVER = r"^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?$"


def of(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """An object with these properties."""
    return {"type": "object", "properties": properties, "required": list(required), **more}


def optional(schema: Any) -> Any:
    """As pydantic writes `X | None = None`."""
    return {"anyOf": [schema, NULL], "default": None}


WRITTEN: dict[str, Any] = {
    # agents' and MCP servers' tools
    "read file": of(
        {
            "file_path": S,
            "offset": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
            "limit": INT53,
        },
        "file_path",
        additionalProperties=False,
    ),
    "bash": of(
        {"command": S, "timeout": {"type": "number", "maximum": 600000}, "run_in_background": {"type": "boolean"}},
        "command",
    ),
    "todo": of(
        {
            "todos": {
                "type": "array",
                "items": of(
                    {
                        "content": {"type": "string", "minLength": 1},
                        "status": {"enum": ["pending", "in_progress", "completed"]},
                    },
                    "content",
                    "status",
                ),
                "minItems": 1,
                "maxItems": 1000,
            }
        },
        "todos",
    ),
    "fetch": of(
        {
            "url": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083},
            "max_length": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1000000, "default": 5000},
        },
        "url",
    ),
    "edit": of(
        {
            "edits": {
                "type": "array",
                "items": of({"oldText": S, "newText": S}, "oldText", "newText", additionalProperties=False),
            },
            "dryRun": {"type": "boolean", "default": False},
        },
        "edits",
        **{"$schema": DRAFT_7},
    ),
    "graph": of(
        {
            "entities": {
                "type": "array",
                "items": of({"name": S, "observations": {"type": "array", "items": S}}, "name"),
            }
        },
        "entities",
    ),
    "no arguments": of({}, additionalProperties=False),
    "thinking": of(
        {"thought": S, "thoughtNumber": {"type": "integer", "minimum": 1}, "nextThoughtNeeded": {"type": "boolean"}},
        "thought",
        "thoughtNumber",
    ),
    "browser": of(
        {
            "element": S,
            "values": {"type": "array", "items": S},
            "modifiers": {"type": "array", "items": {"type": "string", "enum": ["Alt", "Control"]}},
        },
        "element",
    ),
    "issue": of(
        {
            "labels": {"items": S, "type": "array", "maxItems": 100},
            "title": {"type": "string", "maxLength": 256},
            "body": {"type": "string", "maxLength": 65536},
            "milestone": {"type": ["integer", "null"]},
        },
        "title",
    ),
    "slack": of(
        {
            "channel_id": {"type": "string", "pattern": "^[CGD][A-Z0-9]{8,}$"},
            "text": {"type": "string", "maxLength": 40000},
            "thread_ts": {"type": "string", "pattern": r"^\d{10}\.\d{6}$"},
        },
        "channel_id",
        "text",
    ),
    "weather": of(
        {"location": S, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
        "location",
        "unit",
        additionalProperties=False,
    ),
    # zod
    "zod numbers": of(
        {
            "i": INT53,
            "f": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
            "p": {"type": "number", "exclusiveMinimum": 0},
            "s": {"type": "number", "multipleOf": 0.01},
        },
        "i",
        "f",
        "p",
        "s",
    ),
    "zod e-mail": of({"name": S, "email": {"type": "string", "format": "email", "pattern": ZOD_EMAIL}}, "name"),
    "zod uuid": of({"id": {"type": "string", "format": "uuid", "pattern": ZOD_UUID}}, "id"),
    "zod record": {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
    "zod enum record": {
        "type": "object",
        "propertyNames": {"type": "string", "enum": ["a", "b"]},
        "additionalProperties": {"type": "number"},
        "required": ["a", "b"],
    },
    "zod union": {
        "anyOf": [
            of({"type": {"type": "string", "const": "a"}, "n": INT53}, "type", "n"),
            of({"type": {"type": "string", "const": "b"}}, "type"),
        ]
    },
    "zod tuple": {"type": "array", "prefixItems": [S, {"type": "number"}], "items": {"type": "boolean"}},
    "zod trimmed": {"type": "string", "pattern": r"^\S(?:.*\S)?$", "minLength": 3, "maxLength": 80},
    "zod starts": {"allOf": [{"type": "string", "pattern": "^session:.*"}, {"type": "string", "pattern": ".*z$"}]},
    "zod date": {
        "type": "string",
        "format": "date-time",
        "pattern": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:\.\d+)?Z$",
    },
    "zod intersection": {"allOf": [of({"a": S}, "a"), of({"b": {"type": "number"}}, "b")]},
    "zod nullable": of(
        {"a": {"anyOf": [{"type": "string", "format": "uri"}, NULL]}, "b": {"type": ["number", "null"]}}, "a", "b"
    ),
    "zod not": of({"a": {"not": {}}, "b": S}, "b"),
    "zod lazy": {
        "$ref": "#/definitions/c",
        "definitions": {
            "c": of({"name": S, "sub": {"type": "array", "items": {"$ref": "#/definitions/c"}}}, "name", "sub")
        },
    },
    "zod ip": {"anyOf": [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]},
    "zod base64": {
        "type": "string",
        "contentEncoding": "base64",
        "pattern": r"^$|^(?:[0-9a-zA-Z+/]{4})*(?:(?:[0-9a-zA-Z+/]{2}==)|(?:[0-9a-zA-Z+/]{3}=))?$",
    },
    # pydantic
    "pydantic decimal": of({"price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DECIMAL}]}}, "price"),
    "pydantic optional": of({f"field_{i}": optional(S) for i in range(30)}),
    "pydantic bounds": of(
        {
            "a": {"type": "string", "minLength": 1, "maxLength": 255},
            "b": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807},
            "r": {"type": "number", "minimum": 0.2, "maximum": 0.4},
        },
        "a",
        "b",
        "r",
    ),
    "pydantic union": of(
        {
            "pet": {
                "discriminator": {"propertyName": "kind"},
                "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            }
        },
        "pet",
        **{
            "$defs": {
                "Cat": of({"kind": {"const": "cat", "type": "string"}, "lives": {"type": "integer"}}, "kind", "lives"),
                "Dog": of({"kind": {"const": "dog", "type": "string"}, "barks": {"type": "boolean"}}, "kind", "barks"),
            }
        },
    ),
    "pydantic url": of({"u": {"type": "string", "format": "uri", "minLength": 1, "maxLength": 2083}}, "u"),
    "pydantic set": of({"tags": {"type": "array", "items": S, "uniqueItems": True}}, "tags"),
    "pydantic dict": of(
        {"scores": {"type": "object", "additionalProperties": {"type": "number", "minimum": 0, "maximum": 1}}}, "scores"
    ),
    "pydantic pattern dict": {
        "type": "object",
        "patternProperties": {"^[a-z]{2}$": {"type": "integer"}},
        "additionalProperties": False,
        "minProperties": 1,
    },
    "pydantic tuple": {"type": "array", "prefixItems": [{"type": "integer"}, S], "minItems": 2, "maxItems": 2},
    "pydantic timedelta": of(
        {
            "d": {"type": "string", "format": "duration"},
            "t": {"type": "string", "format": "time"},
            "p": {"type": "string", "format": "path"},
        },
        "d",
        "t",
        "p",
    ),
    "pydantic bytes": of(
        {
            "b": {"type": "string", "format": "binary"},
            "secret": {"type": "string", "format": "password", "writeOnly": True, "minLength": 8},
        },
        "b",
        "secret",
    ),
    "pydantic enum": of(
        {"color": {"$ref": "#/$defs/Color"}, "n": {"$ref": "#/$defs/N"}},
        "color",
        **{"$defs": {"Color": {"enum": ["red", "green"], "type": "string"}, "N": {"enum": [1, 2], "type": "integer"}}},
    ),
    "pydantic tree": {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": of(
                {
                    "value": {"type": "integer"},
                    "left": optional({"$ref": "#/$defs/Node"}),
                    "right": optional({"$ref": "#/$defs/Node"}),
                },
                "value",
            )
        },
    },
    "pydantic list": of({"xs": {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 1000}}, "xs"),
    # protobuf and OpenAPI
    "proto int64": of(
        {
            "id": {"type": "string", "pattern": "^-?[0-9]{1,19}$", "format": "int64"},
            "n": {
                "anyOf": [
                    {"type": "integer", "minimum": -2147483648, "maximum": 2147483647},
                    {"type": "string", "pattern": "^-?[0-9]+$"},
                ]
            },
        },
        "id",
    ),
    "proto double": of(
        {"x": {"anyOf": [{"type": "number"}, {"type": "string"}, {"enum": ["Infinity", "-Infinity", "NaN"]}]}},
        additionalProperties=False,
    ),
    "proto oneof": {
        "type": "object",
        "oneOf": [of({"bar": of({"foo": {"type": "integer"}})}, "bar"), of({"baz": of({"foo": S})}, "baz")],
    },
    "proto map": of(
        {"labels": {"type": "object", "additionalProperties": S, "propertyNames": {"pattern": "^[a-z_]+$"}}}, "labels"
    ),
    "proto aliases": of(
        {
            "createTime": {"type": "string", "format": "date-time"},
            "state": {"oneOf": [{"type": "string", "enum": ["A", "B"]}, {"type": "integer"}]},
        },
        patternProperties={"^(create_time)$": S},
        additionalProperties=False,
    ),
    "proto bytes": of({"data": {"type": "string", "format": "binary", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}}),
    "openapi pet": of(
        {
            "id": {"type": "integer", "format": "int64", "minimum": 1},
            "name": {"type": "string", "maxLength": 900},
            "photoUrls": {"type": "array", "items": S},
            "status": {"type": "string", "enum": ["available", "sold"]},
        },
        "name",
        "photoUrls",
    ),
    "openapi allOf": {
        "allOf": [{"$ref": "#/components/schemas/Base"}, of({"extra": {"type": "string", "nullable": True}})],
        "components": {"schemas": {"Base": of({"id": {"type": "string", "format": "uuid"}}, "id")}},
    },
    "openapi phone": {"type": "string", "pattern": r"^\+?[1-9]\d{1,14}$", "maxLength": 16},
    "openapi semver": {"type": "string", "pattern": SEMVER, "maxLength": 64},
    "openapi price": of(
        {
            "amount": {"type": "number", "minimum": 0, "multipleOf": 0.05},
            "currency": {"type": "string", "minLength": 3, "maxLength": 3, "pattern": "^[A-Z]+$"},
        },
        "amount",
        "currency",
    ),
    "openapi color": {"type": "string", "pattern": "^#(?:[0-9a-f]{3}){1,2}$|^(?i)red$"},
    "openapi text": {"type": "string", "maxLength": 524288},
    # Kubernetes
    "k8s metadata": of(
        {
            "name": {"type": "string", "maxLength": 253, "minLength": 1, "pattern": K8S_NAME},
            "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 63}},
        },
        "name",
    ),
    "k8s quantity": of(
        {
            "cpu": {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": True,
            }
        },
        "cpu",
    ),
    "k8s condition": of(
        {
            "type": {
                "type": "string",
                "maxLength": 316,
                "pattern": r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
            },
            "message": {"type": "string", "maxLength": 32768},
            "reason": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1024,
                "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
            },
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
        "type",
        "reason",
        "lastTransitionTime",
    ),
    "k8s ports": of(
        {
            "ports": {
                "type": "array",
                "maxItems": 64,
                "items": of(
                    {
                        "port": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535},
                        "name": {"type": "string", "maxLength": 63, "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$"},
                    },
                    "port",
                ),
            }
        },
        "ports",
    ),
    "k8s selector": of(
        {
            "matchLabels": {"type": "object", "additionalProperties": S},
            "matchExpressions": {
                "type": "array",
                "items": of({"key": S, "operator": S, "values": {"type": "array", "items": S}}, "key", "operator"),
            },
        }
    ),
}
