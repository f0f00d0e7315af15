"""Writes docs/configuration.md from the settings types: names, types, defaults, and the comment beside each field."""

import inspect
import re

import msgspec

from dilaserve.stack.services import SETTINGS
from shared.settings import PREFIX, ServiceSettings, to_environ

FIELD = re.compile(r"^    (\w+): .*  # (.+)$", re.MULTILINE)
INTRODUCTION = """\
<!-- Written by `python -m dilaserve.reference`; do not edit. -->
# Configuration

A service reads its settings from environment variables when it starts. An invalid value stops it with one line that
names the variable, the value and the accepted values. Lists are comma-separated.
"""


def text() -> str:
    parts = [INTRODUCTION, _section("Every service", ServiceSettings, set())]
    common = {field.name for field in msgspec.structs.fields(ServiceSettings)}
    parts += [_section(service.capitalize(), kind, common) for service, kind in SETTINGS.items()]
    return "\n".join(parts)


def descriptions(kind: type[ServiceSettings]) -> dict[str, str]:
    """The comment beside each field, by the field's name."""
    return dict(FIELD.findall(inspect.getsource(kind)))


def _section(title: str, kind: type[ServiceSettings], leave_out: set[str]) -> str:
    described = descriptions(kind)
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in leave_out]
    rows = [_row(field, described[field.name]) for field in fields]
    return "\n".join(
        [f"## {title}", "", "| variable | accepts | default | meaning |", "| --- | --- | --- | --- |", *rows, ""]
    )


def _row(field: msgspec.structs.FieldInfo, description: str) -> str:
    variable = PREFIX + field.name.upper()
    if field.required:
        default = "required"
    else:
        value = to_environ({field.name: field.default}).get(variable, "")
        default = f"`{value}`" if value else "none"
    cells = [f"`{variable}`", _accepts(msgspec.json.schema(field.type)), default, description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _accepts(schema: dict[str, object]) -> str:
    """The accepted values of a JSON schema, in a few words."""
    match schema:
        case {"$ref": str(ref), "$defs": dict(defs)}:
            return _accepts(defs[ref.rpartition("/")[2]])
        case {"anyOf": list(choices), **rest}:
            known = {"$defs": rest.get("$defs", {})}
            return " or ".join(_accepts(choice | known) for choice in choices if choice.get("type") != "null")
        case {"enum": list(values)}:
            return ", ".join(f"`{value}`" for value in values)
        case {"type": "array", "items": dict(items)}:
            return f"list of {_accepts(items)}"
        case {"type": "string", "pattern": str(pattern)}:
            return str(schema.get("description") or f"text matching `{pattern}`")
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
    limits = ", ".join(f"{sign} {schema[name]}" for name, sign in bounds.items() if name in schema)
    return " ".join(part for part in (words.get(str(schema.get("type")), "text"), limits) if part)
