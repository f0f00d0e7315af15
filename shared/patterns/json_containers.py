"""JSON's arrays and objects as parts of texts, from their own parts."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

from shared.patterns.json_numbers import ANY_NUMBER
from shared.patterns.json_strings import CHARACTER, QUOTE, constant
from shared.patterns.parts import FormPart, JoinedParts, Listed, Literal, RepeatedPart, either, listed
from shared.patterns.regex import read_regex

ANY_DEPTH = 2  # of arrays and objects within a value of any kind
SPACE = RepeatedPart(Literal(" "), 0, 1)
COMMA, COLON = JoinedParts((Literal(","), SPACE)), JoinedParts((Literal(":"), SPACE))
KEY = JoinedParts((QUOTE, RepeatedPart(CHARACTER), QUOTE))
BOOLEAN, NULL = either([Literal("true"), Literal("false")]), Literal("null")

Member = tuple[FormPart, bool]  # a property, and whether it is required


@lru_cache(ANY_DEPTH + 1)
def any_value(depth: int) -> FormPart:
    """Any value with at most this many levels of arrays and objects."""
    scalars = [KEY, read_regex(ANY_NUMBER), BOOLEAN, NULL]
    if not depth:
        return either(scalars)
    inner = any_value(depth - 1)
    return either([*scalars, array_of([], inner, 0, None), object_of(JoinedParts((KEY, COLON, inner)), 0, None)])


def object_of(member: FormPart, least: int, most: int | None) -> FormPart:
    """An object of these members."""
    return JoinedParts((Literal("{"), _listed(member, least, most), Literal("}")))


def array_of(first: Sequence[FormPart], item: FormPart | None, least: int, most: int | None) -> FormPart:
    """An array of the first items and then `least` to `most` more."""
    head: list[FormPart] = [part for each in first for part in (COMMA, each)][1:]
    if item is not None and most != 0:
        more = _listed(item, max(least, bool(first)), most)
        more = JoinedParts((COMMA, more)) if first else more
        head.append(more if least or not first else RepeatedPart(more, 0, 1))
    return JoinedParts((Literal("["), *head, Literal("]")))


def _listed(item: FormPart, least: int, most: int | None) -> FormPart:
    return listed(item, Literal(","), SPACE, least, most)


def members_of(
    members: Sequence[Member], least: int = 0, most: int | None = None, pairs: Iterable[tuple[int, int]] = ()
) -> FormPart:
    """`least` to `most` of the members in their order, with commas between them. `pairs`: as `Listed` has them."""
    needed = frozenset(at for at, (_, is_required) in enumerate(members) if is_required)
    return Listed(tuple(member for member, _ in members), COMMA, needed, least, most, tuple(pairs))


def object_with(
    members: Sequence[Member], least: int = 0, most: int | None = None, pairs: Iterable[tuple[int, int]] = ()
) -> FormPart:
    """An object of `least` to `most` of these members. `pairs`: as `Listed` has them."""
    return JoinedParts((Literal("{"), members_of(members, least, most, pairs), Literal("}")))


def member(name: str, value: FormPart) -> FormPart:
    """A property."""
    return JoinedParts((constant(name), COLON, value))
