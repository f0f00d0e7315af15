"""JSON schemas of objects as parts of texts."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

from shared.errors import BadInput
from shared.patterns.byte_automaton import PatternAutomaton, product
from shared.patterns.compile_budget import TooLarge
from shared.patterns.counted_lists import fitted
from shared.patterns.json_containers import COLON, KEY, Member, member, object_of, object_with
from shared.patterns.json_strings import QUOTE, searched
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Compiled, FormPart, JoinedParts, Literal, any_of, either
from shared.patterns.schema_keywords import NoValue, assertions_of, limits
from shared.patterns.schema_merging import Schema, merged
from shared.patterns.schema_narrowing import in_own_scope
from shared.patterns.schema_references import References

MAX_DEPTH = 3  # of a reference within itself
MAX_PATTERNS = 100  # that a schema has or needs
MAX_TRIED = 20_000  # beginnings of keys
MAX_FURTHER = 50  # properties that are required by their number alone
MAX_NEEDED = 6  # properties that others need and the schema does not describe
MAX_PAIRS, MAX_COPIED = 100, 4_000  # of a property and one that it needs, and states that these take more
OTHERS = "additionalProperties"
_List = tuple[FormPart, int, int | None]  # an item, the fewest and the most of them
Depths = Mapping[str, int]  # of each reference around a part, its levels


class ObjectConverter(ABC):
    """Converts the schemas of objects, and follows references. None is a part without instances."""

    def __init__(self, left_out: list[str]) -> None:
        self._references = References(True)  # of the schema that is converted
        self._is_cut = False  # whether a reference has more levels than MAX_DEPTH
        self._patterns: set[str] = set()
        self._left_out = left_out
        self._without_value = ""  # the first required property without a possible value

    def _fitted(self, item: FormPart, least: int, most: int | None, names: Sequence[str], before: int = 0) -> _List:
        """A list that has few enough states. `names`: the fields of its largest number and of its items; `before`: how
        many others are in the list."""
        found = fitted(item, least, most)
        if found.most is not None and found.most != most:
            self._left_out.append(f"{names[0]}={before + found.most}")
        if found.length is not None:
            self._left_out.append(f"{names[1]}.maxLength={found.length}")
        return found.item, least, found.most

    @abstractmethod
    def convert(self, schema: Any, field: str, depths: Depths) -> FormPart | None:
        """`depths`: the levels of each reference around this part."""

    def _plain(self, part: Any, field: str, depths: Depths) -> tuple[Any, Depths]:
        """A part without a reference, and the levels within it. A part that is too deep is false."""
        while isinstance(part, Mapping) and "$ref" in part:
            part = assertions_of(part, field)
            target, depth = self._references.find(part["$ref"], field), depths.get(part["$ref"], 0)
            if depth == MAX_DEPTH:
                self._is_cut = True
                return False, depths
            depths = {**depths, part["$ref"]: depth + 1}
            del part["$ref"]
            part = merged(in_own_scope(target, field), part, field, self._matches) if part else target
        return part, depths

    def _written(self, *ways: Callable[[], FormPart | None], is_needed: bool = True) -> FormPart | None:
        """Any of the ways that can be written. Notes the fields of others, but for those without a value, which are not
        missed. Raises: the first error if a way is needed and none can be written."""
        found: list[FormPart | None] = []
        errors = []
        for way in ways:
            try:
                found.append(way())
            except TooLarge:
                raise
            except BadInput as error:
                errors.append(error)
        if is_needed and errors and all(part is None for part in found):
            raise errors[0]
        self._left_out += [str(error.field) for error in errors if not isinstance(error, NoValue)]
        return any_of(found)

    def _matches(self, pattern: Any, name: str, field: str) -> bool:
        """Whether a pattern, which JSON Schema searches in a text, is in this name."""
        self._count_pattern(pattern, field)
        return searched(pattern, field).accepts(json.dumps(name, ensure_ascii=False)[1:-1])

    def _count_pattern(self, pattern: Any, field: str) -> None:
        """Raises: TooLarge if it is one pattern too many."""
        self._patterns.add(str(pattern))
        if len(self._patterns) > MAX_PATTERNS:
            raise TooLarge(f"the schema has or needs more than {MAX_PATTERNS} patterns", field)

    def _object(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        needs, always = schema.get("dependentRequired", {}), [*schema.get("required", [])]
        for name in always:  # to which the loop appends
            always += [each for each in needs.get(name, []) if each not in always]
        named, required = dict.fromkeys([*schema.get("properties", {}), *always]), set(always)
        further = [each for name in named for each in needs.get(name, []) if each not in named]
        named |= dict.fromkeys(further[:MAX_NEEDED])
        least, most = limits(schema, "Properties", field)
        taken = {*named, *needs}
        if not taken and least < 2 and (found := self._of_keys(schema, least, most, field, depths)) is not None:
            return found
        key = self._key(schema, field, depths)
        allowed = automaton_of(key) if key not in {None, KEY} else None
        values: dict[str, FormPart] = {}
        for name in named:
            value = None
            if key is not None and (allowed is None or allowed.accepts(json.dumps(name, ensure_ascii=False))):
                own = partial(self.convert, self._property(schema, name, field), f"{field}.{name}", depths)
                value = self._written(own, is_needed=name in required)
            if value is None and name in required:
                self._without_value = self._without_value or f"{field}.{name}"
                return None
            if value is not None:
                values[name] = member(name, value)
        pairs = self._pairs(values, {name: needs[name] for name in needs if name not in required}, field)
        members = [(value, name in required) for name, value in values.items()]
        members += self._further(schema, taken, least - len(members), field, depths)
        if least > len(members) or (most is not None and most < len(required)):
            return None
        return object_with(members, least, most, pairs)

    def _pairs(
        self, values: dict[str, FormPart], needs: Mapping[str, Sequence[str]], field: str
    ) -> list[tuple[int, int]]:
        """The places of optional members and of those that each needs. Removes and notes a member whose needs have no
        value, or would take too many states."""
        sizes, pairs = {name: part.size for name, part in values.items()}, list[tuple[str, str]]()
        for name in filter(sizes.__contains__, needs):
            more = [*pairs, *((name, each) for each in needs[name] if each in sizes)]
            if len(more) <= MAX_PAIRS and _copied(sizes, more) <= MAX_COPIED:
                pairs = more
            else:
                del values[name]
        while lacking := [name for name in values if not values.keys() >= {*needs.get(name, ())}]:
            for name in lacking:
                del values[name]
        self._left_out += [f"{field}.{name}" for name in sizes if name not in values]
        places = {name: at for at, name in enumerate(values)}
        return [(places[name], places[each]) for name, each in pairs if name in places]

    def _property(self, schema: Schema, name: str, field: str) -> Any:
        """The schema of a property that an object schema names or requires."""
        patterns = schema.get("patternProperties", {}).items()
        matching = [own for pattern, own in patterns if self._matches(pattern, name, field)]
        others = True if matching else schema.get("additionalProperties", True)
        own = schema.get("properties", {}).get(name, others)
        return {"allOf": [own, *matching]} if matching else own

    def _of_keys(self, schema: Schema, least: int, most: int | None, field: str, depths: Depths) -> FormPart | None:
        """An object of keys that the schema does not name: those of its patterns, or if it has none any."""
        keys = self._keys(schema, field, depths)
        if schema.get("patternProperties"):
            keys = takewhile(lambda each: each[2] != OTHERS, keys)
        members = [
            JoinedParts((key, COLON, value))
            for key, part, name in keys
            if (value := self.convert(part, f"{field}.{name}", depths)) is not None
        ]
        if not members or most == 0:
            return None if least else object_with([])
        names = f"{field}.maxProperties", f"{field}.{OTHERS}"
        return object_of(*self._fitted(either(members), least, most, names))

    def _further(self, schema: Schema, named: Container[str], count: int, field: str, depths: Depths) -> list[Member]:
        """`count` members that the schema does not name, or as many as there are."""
        found: dict[str, Member] = {}
        for key, part, where in self._keys(schema, field, depths) if count > 0 else ():
            value = self.convert(part, f"{field}.{where}", depths)
            if value is None:
                continue
            if count > MAX_FURTHER:
                raise BadInput(f"minProperties is supported up to {MAX_FURTHER} beyond the named properties", field)
            for text in _texts(automaton_of(key)):
                if (name := json.loads(text)) not in named:
                    found.setdefault(name, (JoinedParts((Literal(text), COLON, value)), False))
                if len(found) == count:
                    return [*found.values()]
        return [*found.values()]

    def _key(self, schema: Schema, field: str, depths: Depths) -> FormPart | None:
        """The keys that `propertyNames` allows."""
        names = self._plain(schema.get("propertyNames", True), field, depths)[0]
        if names is True or names == {}:
            return KEY
        return self.convert(merged(names, {"type": "string"}, field, self._matches), f"{field}.propertyNames", depths)

    def _keys(self, schema: Schema, field: str, depths: Depths) -> Iterator[tuple[FormPart, Any, str]]:
        """The keys that an object schema does not name, each with the schema of its values, and where that is."""
        allowed, values = self._key(schema, field, depths), schema.get("patternProperties", {})
        if allowed is not None and not values:
            yield allowed, schema.get(OTHERS, True), OTHERS
        if allowed is None or not values:
            return
        patterns = {}
        for pattern in values:
            self._count_pattern(pattern, field)
            patterns[pattern] = automaton_of(JoinedParts((QUOTE, Compiled(searched(pattern, field)), QUOTE)))
        whole = automaton_of(allowed)
        for pattern, own in patterns.items():  # the keys that match no other pattern, so each has one schema
            others = [other for beside, other in patterns.items() if beside != pattern]
            if (alone := _outside(product(whole, own), others)) is not None:
                yield Compiled(alone), values[pattern], f"patternProperties.{pattern}"
        if (alone := _outside(whole, patterns.values())) is not None:
            yield Compiled(alone), schema.get(OTHERS, True), OTHERS


def _copied(sizes: Mapping[str, int], pairs: Iterable[tuple[str, str]]) -> int:
    """About the number of states that `Listed` needs for pairs of members, beside those of the members."""
    places = {name: at for at, name in enumerate(sizes)}
    spans = [sorted((places[one], places[other])) for one, other in pairs]
    awaited = (len({last for first, last in spans if first < at < last}) for at in range(len(sizes)))
    return sum(size * (2**count - 1) for size, count in zip(sizes.values(), awaited, strict=True))


def _outside(found: PatternAutomaton | None, others: Iterable[PatternAutomaton]) -> PatternAutomaton | None:
    """The texts that are of none of the others; None: no text."""
    for other in others:
        found = product(found, other, excluded=True) if found is not None else None
    return found


def _texts(automaton: PatternAutomaton) -> Iterator[str]:
    """Texts of keys: simple ones if possible, then the shortest, by the bytes of ASCII."""
    yield from filter(automaton.accepts, (f'"key{i}"' for i in range(1, MAX_TRIED // 100)))
    waiting = [("", 0)]
    for text, state in waiting:
        if automaton.accepting[state]:
            yield text
        row = automaton.next_state[state, 32:127]
        for byte, target in enumerate(row.tolist(), 32):
            if target >= 0 and len(waiting) < MAX_TRIED:
                waiting.append((text + chr(byte), target))
