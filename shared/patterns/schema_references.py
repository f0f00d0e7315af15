"""Finds the schemas to which `$ref` refers, all within one schema."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from shared.errors import BadInput

NAMES = ("$id", "id")  # `id` until draft 4
ANCHORS = ("$anchor", "$dynamicAnchor")


class References:
    """Those within `root`. A reference within an embedded schema that has a name counts from the root's name."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._base = next(_values(root, NAMES), "").rstrip("#")

    def find(self, reference: Any, field: str) -> Any:
        """The schema. Raises: BadInput if it is not within the root."""
        if not isinstance(reference, str):
            raise BadInput(f"$ref must be a text, got {reference!r}", field)
        name, pointer = urldefrag(urljoin(self._base, reference))
        if pointer and not pointer.startswith("/"):
            name, pointer = f"{name}#{pointer}", ""
        found = self._root
        if name != self._base:
            if name not in self._named:
                raise BadInput(f"$ref {reference!r} refers to no schema within this one; begin it with #/", field)
            found = self._named[name]
        for part in unquote(pointer).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise BadInput(f"$ref {reference!r} refers to nothing", field)
        return found

    @cached_property
    def _named(self) -> dict[str, Any]:
        """The schemas within the root by name and by anchor; most references need none."""
        return dict(_named(self._root, ""))


def _named(part: Any, base: str) -> Iterator[tuple[str, Any]]:
    """The schemas with names or anchors, by both; `base`: the name around the part."""
    for name in _values(part, NAMES):
        base = urljoin(base, name)
        yield base.rstrip("#"), part
    for anchor in _values(part, ANCHORS):
        yield f"{base}#{anchor}", part
    for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
        yield from _named(inner, base)


def _values(part: Any, keywords: tuple[str, ...]) -> Iterator[str]:
    """The values of these keywords that are texts."""
    if isinstance(part, Mapping):
        yield from (part[name] for name in keywords if isinstance(part.get(name), str))
