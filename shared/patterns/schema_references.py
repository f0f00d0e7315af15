"""Finds the schemas to which `$ref` refers, all within one schema.

A reference is the URI of a schema, an anchor, or a JSON pointer, such as `user`, `#user` and `#/$defs/user`; a URI may
also be before the other two. It is relative to the nearest `$id` around it, so each one is first joined to that.
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from shared.errors import BadInput
from shared.patterns.schema_merging import listed_types

IDS = ("$id", "id")
DRAFT = re.compile(r"draft-0?([0-9]+)")
LATER_DRAFT = 2019  # or later
LAST_DRAFT_OF_ID = 4  # without $
LAST_OLD_DRAFT = 7  # in which $ref replaces all keywords beside it
ANCHORS = ("$anchor", "$dynamicAnchor")
# Keywords whose value has a schema for each name, and keywords whose value is a schema or a list of schemas
BY_NAME = {"properties", "patternProperties", "dependencies", "dependentSchemas", "$defs", "definitions"}
SCHEMAS = {"items", "additionalItems", "prefixItems", "contains", "unevaluatedItems", "propertyNames"}
SCHEMAS |= {"additionalProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"}


class References:
    """Resolves the references within a schema. `root`: that schema, with each reference joined to its base."""

    def __init__(self, schema: Any) -> None:
        self._by_uri: dict[str, Any] = {}
        self._joined: dict[int, Any] = {}  # schemas with joined references, by their `id`
        self._draft = _draft(schema, None)
        self._base = urldefrag(next(iter(_texts(schema, IDS)), ""))[0]
        self.root = self._joined_references(schema, self._base, self._draft)
        self._by_uri[self._base] = self.root

    def find(self, reference: str, field: str) -> Any:
        """The schema. Raises: BadInput if it is not within the root."""
        absolute = self._base + reference if reference.startswith("#") else reference  # below an unknown keyword
        uri, fragment = urldefrag(absolute)
        key = absolute if fragment and not fragment.startswith("/") else uri
        if key not in self._by_uri:
            raise BadInput(f"$ref {reference!r} refers to no schema within this one; begin it with #/", field)
        found = self._by_uri[key]
        for part in unquote(fragment).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                raise BadInput(f"$ref {reference!r} refers to nothing", field)
        if id(found) not in self._joined:  # it is below an unknown keyword, such as `components`
            if absolute not in self._by_uri:
                self._by_uri[absolute] = self._joined_references(found, uri, self._draft)
            found = self._by_uri[absolute]
        return found

    def _joined_references(self, part: Any, base: str, draft: int | None) -> Any:
        """A schema or a list of them, with joined references, without keywords that are null, as typed languages write
        them, and with null as a type where OpenAPI 3.0 has `nullable`, if the schema names no draft of JSON Schema.
        Notes the URI of each schema that has one. `base`, `draft`: those around the part."""
        if isinstance(part, list):
            return [self._joined_references(each, base, draft) for each in part]
        if not isinstance(part, Mapping):
            return part
        draft, uris = _draft(part, draft), list[str]()
        if draft is None or draft > LAST_OLD_DRAFT or "$ref" not in part:
            uris = [_joined(base, own).removesuffix("#") for own in _texts(part, IDS)]
            names = ("id",) if draft is not None and draft <= LAST_DRAFT_OF_ID else ("$id",)
            base = urldefrag(_joined(base, next(iter(_texts(part, names)), "")))[0]
        uris += [f"{base}#{anchor}" for anchor in _texts(part, ANCHORS)]
        found = {name: value for name, value in part.items() if value is not None or name == "const"}
        for name, value in list(found.items()):
            if name in BY_NAME and isinstance(value, Mapping):
                found[name] = {key: self._joined_references(each, base, draft) for key, each in value.items()}
            elif name in SCHEMAS:
                found[name] = self._joined_references(value, base, draft)
        if isinstance(part.get("$ref"), str):
            found["$ref"] = _joined(base, part["$ref"])
        if draft is None and part.get("nullable") is True and "type" in found:
            found["type"] = [*listed_types(found), "null"]
        self._by_uri |= dict.fromkeys(uris, found)
        self._joined[id(found)] = found
        return found


def _draft(part: Any, around: int | None) -> int | None:
    """The draft of JSON Schema that a schema names, or that around it."""
    named = next(iter(_texts(part, ("$schema",))), "")
    found = DRAFT.search(named)
    return int(found[1]) if found is not None else LATER_DRAFT if "json-schema.org" in named else around


def _joined(base: str, reference: str) -> str:
    """The URI of a reference. `urljoin` drops the base of a fragment for schemes that it does not know, such as urn."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)


def _texts(part: Any, keywords: tuple[str, ...]) -> list[str]:
    """The values of these keywords that are texts."""
    return [part[name] for name in keywords if isinstance(part.get(name), str)] if isinstance(part, Mapping) else []
