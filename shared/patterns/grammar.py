"""Grammars as patterns.

A rule that refers to itself only at its end, or only at its beginning, becomes a repetition and stays exact. Other
recursive rules, direct or indirect, are expanded to MAX_DEPTH levels, so the text cannot nest deeper.
"""

from collections.abc import Mapping, Sequence

from shared.errors import BadInput
from shared.patterns.gbnf import ROOT, Expression, Joined, OneOf, Reference, Repeated, Terminal, read_grammar

MAX_DEPTH = 3  # of a rule within itself
MAX_PARTS = 20_000
EMPTY = Joined(())

# Alternatives after which the rule follows again, and alternatives that end.
Split = tuple[list[Expression], list[Expression]]


def grammar_pattern(text: str) -> str:
    """The pattern of a grammar in GBNF. Raises: BadInput with the reason."""
    rules = {name: recursion_as_repetition(name, body) for name, body in read_grammar(text).items()}
    pattern = _Expansion(rules).expand(Reference(ROOT), {})
    if pattern is None:
        raise BadInput(f"no text of the grammar fits in {MAX_DEPTH} levels of recursion", "grammar")
    return pattern


def recursion_as_repetition(rule: str, body: Expression) -> Expression:
    """The same texts without references to the rule itself, if those are all at its end or all at its beginning."""
    if not _uses(body, rule):
        return body
    for at_end in (True, False):
        split = _split(body, rule, at_end=at_end)
        if split is not None:
            loops, ends = split
            looped = Repeated(OneOf(tuple(loops)), 0, None)
            return Joined((looped, OneOf(tuple(ends))) if at_end else (OneOf(tuple(ends)), looped))
    return body


def _factored_lists(parts: Sequence[Expression]) -> list[Expression]:
    """Rewrite each `item (separator item)*` as `(item separator)* item`, whose automaton contains the item's states
    once instead of twice."""
    found: list[Expression] = []
    for part in parts:
        if isinstance(part, Repeated) and (part.least, part.most) == (0, None) and isinstance(part.part, Joined):
            inner = part.part.parts
            size = next((n for n in range(len(inner), 0, -1) if found[-n:] == list(inner[-n:])), 0)
            if size:
                item = found[-size:]
                found[-size:] = [Repeated(Joined((*item, *inner[:-size])), 0, None), *item]
                continue
        found.append(part)
    return found


def _uses(part: Expression, rule: str) -> bool:
    match part:
        case Terminal():
            return False
        case Reference():
            return part.rule == rule
        case Repeated():
            return _uses(part.part, rule)
        case Joined():
            return any(_uses(each, rule) for each in part.parts)
        case OneOf():
            return any(_uses(each, rule) for each in part.ways)


def _split(part: Expression, rule: str, *, at_end: bool) -> Split | None:
    """Returns: None if the rule is also used elsewhere than at this side."""
    if not _uses(part, rule):
        return [], [part]
    match part:
        case Reference():
            return [EMPTY], []
        case Repeated(part=inner, least=0, most=1):
            return _split(OneOf((inner, EMPTY)), rule, at_end=at_end)
        case Joined():
            *rest, side = part.parts if at_end else reversed(part.parts)
            split = None if any(_uses(each, rule) for each in rest) else _split(side, rule, at_end=at_end)
            return split and (_joined(rest, split[0], at_end=at_end), _joined(rest, split[1], at_end=at_end))
        case OneOf():
            splits = [_split(way, rule, at_end=at_end) for way in part.ways]
            found = [each for each in splits if each is not None]
            whole = [loop for loops, _ in found for loop in loops], [end for _, ends in found for end in ends]
            return whole if len(found) == len(splits) else None
    return None


def _joined(rest: Sequence[Expression], sides: Sequence[Expression], *, at_end: bool) -> list[Expression]:
    return [Joined((*rest, side) if at_end else (side, *reversed(rest))) for side in sides]


class _Expansion:
    """Expands the rules. None is the pattern of a part that no text matches."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self._rules = rules
        self._parts = 0  # expanded so far

    def expand(self, part: Expression, depths: Mapping[str, int]) -> str | None:
        """`depths`: the levels of each rule around this part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadInput(f"the grammar has more than {MAX_PARTS} parts, with those of each use of a rule", "grammar")
        match part:
            case Terminal():
                return part.pattern
            case Reference():
                depth = depths.get(part.rule, 0)
                deeper = {**depths, part.rule: depth + 1}
                return self.expand(self._rules[part.rule], deeper) if depth < MAX_DEPTH else None
            case Joined():
                parts = [self.expand(each, depths) for each in _factored_lists(part.parts)]
                return None if None in parts else "".join(each for each in parts if each)
            case OneOf():
                ways = [way for each in part.ways if (way := self.expand(each, depths)) is not None]
                return f"(?:{'|'.join(ways)})" if ways else None
            case Repeated():
                return _repeated(self.expand(part.part, depths), part)


def _repeated(inner: str | None, part: Repeated) -> str | None:
    if not inner:
        return "" if inner == "" or not part.least else None
    most = "" if part.most is None else part.most
    return f"(?:{inner}){{{part.least},{most}}}" if part.least or most != "" else f"(?:{inner})*"
