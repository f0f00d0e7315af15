"""Grammars as parts of texts.

A rule that refers to itself only at its end, or only at its beginning, becomes a repetition and stays exact. Other
recursive rules, direct or indirect, are expanded to MAX_DEPTH levels, so the text cannot nest deeper.
"""

from collections.abc import Mapping, Sequence

from shared.errors import BadInput
from shared.patterns.byte_automaton import merged
from shared.patterns.gbnf import ROOT, Reference, read_grammar
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import (
    NOTHING,
    Alternatives,
    Compiled,
    FormPart,
    JoinedParts,
    RepeatedPart,
    any_of,
    either,
    inner_parts,
)

MAX_DEPTH = 3  # of a rule within itself
MAX_PARTS = 20_000

# Alternatives after which the rule follows again, and alternatives that end.
Split = tuple[list[FormPart], list[FormPart]]


def grammar_part(text: str) -> FormPart:
    """The texts of a grammar in GBNF. Raises: BadInput with the reason."""
    rules = {name: recursion_as_repetition(name, body) for name, body in read_grammar(text).items()}
    part = _Expansion(rules).expand(Reference(ROOT), {})
    if part is None:
        raise BadInput(f"no text of the grammar fits in {MAX_DEPTH} levels of recursion", "grammar")
    return Compiled(merged(automaton_of(part)))


def recursion_as_repetition(rule: str, body: FormPart) -> FormPart:
    """The same texts without references to the rule itself, if those are all at its end or all at its beginning."""
    if not _uses(body, rule):
        return body
    for at_end in (True, False):
        split = _split(body, rule, at_end=at_end)
        if split is not None:
            loops, ends = split
            looped, ending = RepeatedPart(either(loops)), either(ends)
            return JoinedParts((looped, ending) if at_end else (ending, looped))
    return body


def _factored_lists(parts: Sequence[FormPart]) -> list[FormPart]:
    """Rewrite each `item (separator item)*` as `(item separator)* item`, whose automaton contains the item's states
    once instead of twice."""
    found: list[FormPart] = []
    for part in parts:
        inner = inner_parts(part.part) if isinstance(part, RepeatedPart) and part == RepeatedPart(part.part) else ()
        size = next((n for n in range(len(inner), 0, -1) if found[-n:] == list(inner[-n:])), 0)
        if size:
            item = found[-size:]
            found[-size:] = [RepeatedPart(JoinedParts((*item, *inner[:-size]))), *item]
        else:
            found.append(part)
    return found


def _uses(part: FormPart, rule: str) -> bool:
    return part == Reference(rule) or any(_uses(each, rule) for each in inner_parts(part))


def _split(part: FormPart, rule: str, *, at_end: bool) -> Split | None:
    """Returns: None if the rule is also used elsewhere than at this side."""
    if not _uses(part, rule):
        return [], [part]
    match part:
        case Reference():
            return [NOTHING], []
        case RepeatedPart(part=inner, least=0, most=1):
            return _split(Alternatives((inner, NOTHING)), rule, at_end=at_end)
        case JoinedParts():
            *rest, side = part.parts if at_end else reversed(part.parts)
            split = None if any(_uses(each, rule) for each in rest) else _split(side, rule, at_end=at_end)
            return split and (_joined(rest, split[0], at_end=at_end), _joined(rest, split[1], at_end=at_end))
        case Alternatives():
            splits = [_split(way, rule, at_end=at_end) for way in part.parts]
            found = [each for each in splits if each is not None]
            whole = [loop for loops, _ in found for loop in loops], [end for _, ends in found for end in ends]
            return whole if len(found) == len(splits) else None
    return None


def _joined(rest: Sequence[FormPart], sides: Sequence[FormPart], *, at_end: bool) -> list[FormPart]:
    return [JoinedParts((*rest, side) if at_end else (side, *reversed(rest))) for side in sides]


class _Expansion:
    """Expands the rules. None is a part without texts."""

    def __init__(self, rules: Mapping[str, FormPart]) -> None:
        self._rules = rules
        self._parts = 0  # expanded so far

    def expand(self, part: FormPart, depths: Mapping[str, int]) -> FormPart | None:
        """`depths`: the levels of each rule around this part."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise BadInput(f"the grammar has more than {MAX_PARTS} parts, with those of each use of a rule", "grammar")
        match part:
            case Reference():
                depth = depths.get(part.rule, 0)
                deeper = {**depths, part.rule: depth + 1}
                return self.expand(self._rules[part.rule], deeper) if depth < MAX_DEPTH else None
            case JoinedParts():
                parts = [self.expand(each, depths) for each in _factored_lists(part.parts)]
                possible = [each for each in parts if each is not None]
                return JoinedParts(tuple(possible)) if len(possible) == len(parts) else None
            case Alternatives():
                return any_of(self.expand(each, depths) for each in part.parts)
            case RepeatedPart():
                inner = self.expand(part.part, depths)
                if inner is None:
                    return None if part.least else NOTHING
                return RepeatedPart(inner, part.least, part.most)
        return part
