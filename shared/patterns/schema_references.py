"""Finds the schemas to which `$ref` refers, all within one schema.

A reference is the URI of a schema, an anchor, or a JSON pointer, such as `user`, `#user` and `#/$defs/user`; a URI may
also be before the other two. It is relative to the nearest `$id` around it, so each one is first joined to that.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from shared.errors import BadInput

IDS = ("$id", "id")  # `id` until draft 4
ANCHORS = ("$anchor", "$dynamicAnchor")
# Keywords whose value has a schema for each name, and keywords whose value is a schema or a list of schemas
BY_NAME = {"properties", "patternProperties", "dependencies", "dependentSchemas", "$defs", "definitions"}
SCHEMAS = {"items", "additionalItems", "prefixItems", "contains", "unevaluatedItems", "propertyNames"}
SCHEMAS |= {"additionalProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"}


class References:
    """Resolves the references within a schema. `root`: that schema, with each reference joined to its base."""

    def __init__(self, schema: Any) -> None:
        self._by_uri: dict[str, Any] = {}
        self._base = urldefrag(next(iter(_texts(schema, IDS)), ""))[0]
        self.root = self._joined_references(schema, self._base)
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
        return found

    def _joined_references(self, part: Any, base: str) -> Any:
        """A schema or a list of them, with joined references, without keywords that are null, as typed languages write
        them. Notes the URI of each schema that has one. `base`: the URI around the part."""
        if isinstance(part, list):
            return [self._joined_references(each, base) for each in part]
        if not isinstance(part, Mapping):
            return part
        uris = [_joined(base, own).removesuffix("#") for own in _texts(part, IDS)]
        base = urldefrag(_joined(base, next(iter(_texts(part, ("$id",))), "")))[0]
        uris += [f"{base}#{anchor}" for anchor in _texts(part, ANCHORS)]
        found = {name: value for name, value in part.items() if value is not None or name == "const"}
        for name, value in list(found.items()):
            if name in BY_NAME and isinstance(value, Mapping):
                found[name] = {key: self._joined_references(each, base) for key, each in value.items()}
            elif name in SCHEMAS:
                found[name] = self._joined_references(value, base)
        if isinstance(part.get("$ref"), str):
            found["$ref"] = _joined(base, part["$ref"])
        self._by_uri |= dict.fromkeys(uris, found)
        return found


def _joined(base: str, reference: str) -> str:
    """The URI of a reference. `urljoin` drops the base of a fragment for schemes that it does not know, such as urn."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)


def _texts(part: Any, keywords: tuple[str, ...]) -> list[str]:
    """The values of these keywords that are texts."""
    return [part[name] for name in keywords if isinstance(part.get(name), str)] if isinstance(part, Mapping) else []
