"""Finds the schemas to which `$ref` refers, all within one schema."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from shared.errors import BadInput

IDS = ("$id", "id")  # `id` until draft 4
ANCHORS = ("$anchor", "$dynamicAnchor")
VALUES = {"const", "default", "enum", "examples"}  # keywords whose values are no schemas
NAMED = {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}  # schemas by other names


class References:
    """Resolves the references within a schema. `root`: that schema, with an absolute URI in each reference whose
    nearest `$id` has one."""

    def __init__(self, schema: Any) -> None:
        self._base = urldefrag(next(_texts(schema, IDS), ""))[0]
        self.root = _with_absolute_references(schema, self._base)

    def find(self, reference: Any, field: str) -> Any:
        """The schema. Raises: BadInput if it is not within the root."""
        if not isinstance(reference, str):
            raise BadInput(f"$ref must be a string, got {reference!r}", field)
        uri, fragment = urldefrag(reference)
        is_anchor = fragment != "" and not fragment.startswith("/")
        found = self.root
        if is_anchor or uri != self._base:
            key = f"{uri}#{fragment}" if is_anchor else uri
            if key not in self._by_uri:
                raise BadInput(f"$ref {reference!r} refers to no schema within this one; begin it with #/", field)
            found = self._by_uri[key]
        for part in [] if is_anchor else unquote(fragment).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, Mapping) and name in found:
                found = found[name]
            else:
                raise BadInput(f"$ref {reference!r} refers to nothing", field)
        return found

    @cached_property
    def _by_uri(self) -> dict[str, Any]:
        """The schemas that have an `$id` or an anchor. Built at first use: most references are JSON pointers."""
        return dict(_identified(self.root, ""))


def _identified(part: Any, base: str) -> Iterator[tuple[str, Any]]:
    """Each schema that has an `$id` or an anchor, with its URI; `base`: the URI around the part."""
    for own in _texts(part, IDS):
        yield _joined(base, own).rstrip("#"), part
        base = urldefrag(_joined(base, own))[0]
    for anchor in _texts(part, ANCHORS):
        yield f"{base}#{anchor}", part
    inner: Iterable[Any] = part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ()
    for each in inner:
        yield from _identified(each, base)


def _with_absolute_references(part: Any, base: str, *, has_names: bool = False) -> Any:
    """`base`: the URI around the part; `has_names`: its keys are no keywords."""
    if isinstance(part, list):
        return [_with_absolute_references(each, base) for each in part]
    if not isinstance(part, Mapping):
        return part
    if has_names:
        return {name: _with_absolute_references(value, base) for name, value in part.items()}
    base = urldefrag(_joined(base, next(_texts(part, ("$id",)), "")))[0]
    inner = {name: value for name, value in part.items() if name not in VALUES}
    inner = {name: _with_absolute_references(value, base, has_names=name in NAMED) for name, value in inner.items()}
    reference = part.get("$ref")
    return {**part, **inner, **({"$ref": _joined(base, reference)} if isinstance(reference, str) else {})}


def _joined(base: str, reference: str) -> str:
    """The URI of a reference. `urljoin` drops the base of a fragment for schemes that it does not know, such as urn."""
    return base + reference if reference.startswith("#") else urljoin(base, reference)


def _texts(part: Any, keywords: tuple[str, ...]) -> Iterator[str]:
    """The values of these keywords that are texts."""
    if isinstance(part, Mapping):
        yield from (part[name] for name in keywords if isinstance(part.get(name), str))
