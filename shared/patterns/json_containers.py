"""Patterns of JSON's arrays and objects, from the patterns of their parts.

None is the pattern of a part that no value matches. A member is the pattern of a property, and whether it is required.
"""

from collections.abc import Iterable, Sequence

from shared.patterns.json_scalars import CHARACTER, number, times

ANY_DEPTH = 2  # of arrays and objects within a value of any kind
COMMA, COLON = ",[ ]?", ":[ ]?"
KEY = f'"{CHARACTER}*"'


Member = tuple[str, bool]


def counted(members: Sequence[Member], least: int, most: int | None) -> list[Member]:
    """Members with at least `least` required ones, and without the optional ones beyond `most` in all."""
    needed = sum(is_required for _, is_required in members)
    optional = len(members) - needed if most is None else max(most - needed, 0)
    found = []
    for member, is_required in members:
        if not is_required and not optional:
            continue
        makes_up = not is_required and needed < least
        optional, needed = optional - (not is_required), needed + makes_up
        found.append((member, is_required or makes_up))
    return found


def any_value(depth: int) -> str:
    """Any value with at most this many levels of arrays and objects."""
    scalars = [KEY, number({}, ""), "true", "false", "null"]
    if not depth:
        return f"(?:{'|'.join(scalars)})"
    inner = any_value(depth - 1)
    return f"(?:{'|'.join([*scalars, _bracketed(inner), object_of(inner, 0, None)])})"


def _bracketed(item: str) -> str:
    return rf"\[{listed(item, 0, None)}\]"


def object_of(value: str, least: int, most: int | None) -> str:
    """An object of any keys, with this number of members."""
    return rf"\{{{listed(f'{KEY}{COLON}{value}', least, most)}\}}"


def listed(item: str, least: int, most: int | None) -> str:
    """Items with commas between them. The last one is separate, so that the automaton has the item's states once."""
    if most == 0:
        return ""
    some = f"(?:{item}{COMMA}){times(max(least - 1, 0), None if most is None else most - 1)}{item}"
    return some if least else f"(?:{some})?"


def members_of(members: Sequence[Member]) -> str:
    """The members in their order, with commas between them."""
    anchor = next((at for at, (_, is_required) in enumerate(members) if is_required), None)
    if anchor is None:  # any one may be the first
        ways = [member + _following(members[at + 1 :]) for at, (member, _) in enumerate(members)]
        return f"(?:{'|'.join(ways)})?" if ways else ""
    before = "".join(f"(?:{member}{COMMA})?" for member, _ in members[:anchor])
    return before + members[anchor][0] + _following(members[anchor + 1 :])


def _following(members: Sequence[Member]) -> str:
    return "".join(f"(?:{COMMA}{member}){'' if is_required else '?'}" for member, is_required in members)


def either(ways: Iterable[str | None]) -> str | None:
    """The values of any of these."""
    possible = [way for way in ways if way is not None]
    return f"(?:{'|'.join(possible)})" if possible else None
