"""Compares the parts of `oneOf` and `anyOf` by traits of their values, so that no value is in two parts of `oneOf`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, NamedTuple

from shared.errors import BadInput
from shared.patterns.compile_budget import current_budget
from shared.patterns.schema_keywords import as_key, assertions_of, listed_values
from shared.patterns.schema_merging import MAX_WAYS, TYPES, Schema, is_of, listed_types, without_properties

# The schema to which a reference refers. Raises: BadInput, which names the field, its last argument
Find = Callable[[str, str], Any]
MAX_TRAITS, MAX_TRAITS_DEPTH = 100, 4  # alternatives of a part that are compared, and levels of allOf, anyOf and $ref
WHOLE = None  # in place of a property's name: the value itself


def apart(parts: Sequence[Any], field: str, find: Find) -> list[Any]:
    """For each part of oneOf, a schema to combine with it, so that no value matches two parts: it accepts objects only,
    requires some properties and forbids others, and may exclude further values. True: the part needs none.

    Raises: BadInput if there are more than MAX_WAYS parts, or no difference of two is known.
    """
    if len(parts) > MAX_WAYS:
        raise BadInput(f"oneOf may have {MAX_WAYS} parts, got {len(parts)}", field)
    current_budget().spend(len(parts) ** 2 // 2)  # pairs are compared, at most twice
    traits = [_traits(part, field, find) for part in parts]
    needed = [set[str]() for _ in parts]
    similar = list[tuple[int, int]]()  # pairs that may have a value in common
    for (at, one), (beside, other) in combinations(enumerate(traits), 2):
        differences = _differences(one, other)
        if not differences <= {True}:
            similar.append((at, beside))
        if None in differences:  # properties that differ but may be left out become required
            tags = set[str].intersection(*(_tags(a, b) for a in one for b in other))
            needed[at] |= tags
            needed[beside] |= tags
    traits = [
        [way._replace(required=way.required | names) for way in ways]
        for ways, names in zip(traits, needed, strict=True)
    ]
    absent: dict[int, set[str]] = {}
    for at, beside in similar:
        one, other = traits[at], traits[beside]
        # Also an empty set: it restricts the part to objects
        own, others_own = absent.setdefault(at, set()), absent.setdefault(beside, set())
        if None not in _differences(one, other):
            continue
        ones, others = (frozenset.intersection(*(each.required for each in ways)) for ways in (one, other))
        if ones <= others or others <= ones:
            raise BadInput(
                "oneOf is supported if its parts differ in type or in a property with const or enum, or if each "
                "requires a property that the other does not; use anyOf",
                field,
            )
        own.add(min(others - ones))
        others_own.add(min(ones - others))
    return [
        {**without_properties(absent.get(at, ())), "required": sorted(names)} if names or at in absent else True
        for at, names in enumerate(needed)
    ]


def without_impossible_ways(schema: Any, field: str, find: Find) -> Any:
    """The schema without the parts of its anyOf that contradict its other keywords, as far as their traits show it;
    false if no part is left. So n conditions (`if`) on one property leave roughly n parts, not 2^n."""
    if not isinstance(schema, Mapping) or "anyOf" not in schema:
        return schema
    rest = {name: value for name, value in schema.items() if name != "anyOf"}

    def is_possible(way: Any) -> bool:
        with suppress(BadInput):  # the conversion reports it, if the way is needed
            return any(map(_may_have_values, _traits({"allOf": [rest, way]}, field, find)))
        return True

    ways = [way for way in schema["anyOf"] if is_possible(way)]
    return {**rest, "anyOf": ways} if ways else False


class _Traits(NamedTuple):
    """Common traits of the values of a schema: their possible types, the properties that all objects among them have,
    the possible values of properties, and the only properties that an object may have (None: any). In `values`, the key
    WHOLE is the value itself: "" may name a property."""

    types: frozenset[str]
    required: frozenset[str]
    values: Mapping[str | None, frozenset[str]]
    allowed: frozenset[str] | None = None


def _traits(part: Any, field: str, find: Find, depth: int = 0) -> list[_Traits]:
    """The traits of each alternative of a part; none: no value is valid.

    At MAX_TRAITS_DEPTH, the keywords `allOf`, `anyOf`, `oneOf`, `$ref` and `not` are ignored. So is one with more than
    MAX_TRAITS alternatives, alone or combined with earlier ones. The traits then hold for more values.
    """
    if not isinstance(part, Mapping):
        return [] if part is False else [_Traits(frozenset(TYPES), frozenset(), {})]
    current_budget().spend(1)
    part = assertions_of(part, field)
    inner = [[each] for each in part.get("allOf", [])] + [part[name] for name in ("anyOf", "oneOf") if name in part]
    if "$ref" in part:
        inner.append([find(part["$ref"], field)])
    if isinstance(refused := part.get("not"), Mapping):
        inner += [[_required_by_not(each)] for each in (refused["anyOf"] if [*refused] == ["anyOf"] else [refused])]
    found = [_own_traits(part)]
    for ways in inner if depth < MAX_TRAITS_DEPTH else ():
        more = [each for way in ways[:MAX_TRAITS] for each in _traits(way, field, find, depth + 1)]
        if len(ways) <= MAX_TRAITS and len(more) * len(found) <= MAX_TRAITS:
            found = [_joined_traits(one, other) for one in found for other in more]
    return found


def _required_by_not(negated: Any) -> Any:
    """A schema of every value that `negated` refuses, if this only limits or requires one property; true: unknown."""
    match negated:
        case {"properties": {**properties}, **rest} if len(properties) == 1 and not rest:
            return {"type": "object", "required": list(properties)}
        case {"required": [str(name)], **rest} if not rest:
            return without_properties([name])
    return True


def _own_traits(schema: Schema) -> _Traits:
    """The traits that follow from the schema's own keywords."""
    parts: dict[str | None, Any] = {WHOLE: schema, **schema.get("properties", {})}
    listed = {name: found for name, part in parts.items() if (found := listed_values(part)) is not None}
    kinds = [kind for kind in listed_types(schema) if kind in TYPES] if "type" in schema else TYPES
    kinds = [*kinds, *(["integer"] if "number" in kinds else [])]
    kinds = [kind for kind in kinds if WHOLE not in listed or any(is_of(each, kind) for each in listed[WHOLE])]
    values = {name: frozenset(map(as_key, each)) for name, each in listed.items()}
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    allowed = frozenset(schema.get("properties", {})) if is_closed else None
    return _Traits(frozenset(kinds), frozenset(schema.get("required", [])), values, allowed)


def _may_have_values(traits: _Traits) -> bool:
    """False if these traits leave no value. A schema with `required` and no `type` is converted as one of objects."""
    no_object = any(traits.values.get(name) == frozenset() for name in traits.required)
    kinds = traits.types - ({"object"} if no_object else set())
    return (
        bool(kinds) and (not no_object or traits.types != frozenset(TYPES)) and traits.values.get(WHOLE) != frozenset()
    )


def _joined_traits(one: _Traits, other: _Traits) -> _Traits:
    both = {name: one.values[name] & values for name, values in other.values.items() if name in one.values}
    limits = [each.allowed for each in (one, other) if each.allowed is not None]
    allowed = frozenset.intersection(*limits) if limits else None
    values = {**one.values, **other.values, **both}
    return _Traits(one.types & other.types, one.required | other.required, values, allowed)


def _differences(one: Sequence[_Traits], other: Sequence[_Traits]) -> set[bool | None]:
    """The results of `_differ` for all pairs of an alternative of one part and one of the other part."""
    return {_differ(a, b) for a in one for b in other}


def _tags(one: _Traits, other: _Traits) -> set[str]:
    """The properties by which the two differ: both list their values, at least one each, and none in common."""
    shared = [name for name in one.values.keys() & other.values.keys() if name is not WHOLE]
    values = {name: (one.values[name], other.values[name]) for name in shared}
    return {name for name, (own, others) in values.items() if own and others and own.isdisjoint(others)}


def _differ(one: _Traits, other: _Traits) -> bool | None:
    """True: the two have no value in common; False: no object in common; None: no difference is known."""
    common, compared = one.types & other.types, one.required & other.required | {WHOLE}
    shared = one.values.keys() & other.values.keys() & compared
    different = {name for name in shared if one.values[name].isdisjoint(other.values[name])}
    if not common or WHOLE in different:
        return True
    is_excluded = any(a.allowed is not None and not b.required <= a.allowed for a, b in ((one, other), (other, one)))
    return common == {"object"} if different or is_excluded else None
