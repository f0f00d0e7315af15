"""Compiles the forms of texts that clients ask for, so that one client's large form delays no other client's small one.

Each form is first compiled in a thread, with a small budget. One that exceeds it is compiled in a process of its own,
which is killed if its client leaves. API keys take turns at both. Small forms of two keys may compile at once, so that
one key alone delays no other. Known forms do not wait.
"""

import asyncio
import os
import re
import resource
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal

from pydantic_core import from_json

from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.api.turns import Turns
from shared.errors import BadInput
from shared.messages.requests import MAX_PATTERN_LENGTH
from shared.patterns.automaton import compile_pattern
from shared.patterns.byte_automaton import WRITTEN, longest_text
from shared.patterns.compile_budget import LARGE, SMALL, Budget, BudgetExceeded, TooLarge, limited_to
from shared.patterns.grammar import grammar_part
from shared.patterns.json_schema import choice_part, object_part, schema_part
from shared.patterns.part_automaton import automaton_of
from shared.patterns.parts import Compiled, FormPart
from shared.patterns.schema_keywords import ASSERTIONS
from shared.run_in_process import LOWEST_PRIORITY, run_in_process

Kind = Literal["schema", "object", "regex", "grammar", "choice"]
KINDS: Mapping[str, Kind] = {  # by the last word of a field, or the type of a response format
    "object": "object",
    "regex": "regex",
    "regex_schema": "regex",
    "pattern": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "ebnf": "grammar",
}


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a client has given: the body's field, and its value. Equal forms have the same texts."""

    field: str
    kind: Kind
    given: Any = None  # a schema or its text; a pattern; a grammar; a list of texts

    def make(self, left_out: list[str]) -> FormPart | str:
        """The parts of its texts, or their pattern. `left_out` gets what is left out, by field. Raises: BadInput."""
        match self.kind:
            case "object":
                return object_part()
            case "choice":
                return choice_part(self.given)
            case "schema":
                return schema_part(self._schema(), self.field, left_out)
            case "grammar":
                return grammar_part(self.given)
        if not self.given:
            reason = "only the empty text has this form; leave the field out to have any text"
            raise BadInput(f"{self.field}: {reason}", self.field)
        return f"(?:{self.given})" if self.given.startswith(WRITTEN) else str(self.given)

    def without_field(self) -> str:
        """A text that is equal for two fields with the same form: clients that do not know a server's version give a
        form in the fields of several versions. Raises: BadInput."""
        return f"{self.kind} {self._schema() if self.kind == 'schema' else self.given!r}"

    def _schema(self) -> Any:
        """The schema, also within OpenAI's object around it, which clients of TGI send as its value."""
        try:
            given = from_json(self.given) if isinstance(self.given, str) else self.given
        except ValueError as error:
            raise BadInput(f"{self.field} is not a JSON schema: {error}", self.field) from None
        is_around = isinstance(given, dict) and "schema" in given and ASSERTIONS.isdisjoint(given)
        return given["schema"] if is_around else given


def form_of(field: str, value: Any) -> Form:
    """The form that a field of the body gives."""
    return Form(field, KINDS.get(re.split(r"[._]", field)[-1], "schema"), value)


MAX_KNOWN = 16 << 20  # characters of the patterns of known forms, and FORM_SIZE for each form
FORM_SIZE = 1_000
MAX_MEMORY = 2 << 30  # bytes, of the address space of a compiling process
SMALL_AT_ONCE = 2
TOOLS = "tools"  # the field of a form that only calls of tools give


@dataclass(frozen=True, slots=True)
class TextForm:
    """The texts that a client accepts: any, those of a pattern, or one of several labels."""

    pattern: str = ""
    labels: Sequence[str] = ()
    max_tokens: int | None = None  # of a text of the pattern: one for each byte, and the end token; None: no limit
    left_out: Sequence[str] = ()  # fields of optional parts that cannot be compiled: the text never has them


class FormCompiler:
    def __init__(self) -> None:
        self._small, self._large = Turns(SMALL_AT_ONCE), Turns(1)
        self._known: OrderedDict[bytes, TextForm] = OrderedDict()
        self._known_characters = 0

    async def form_of(
        self, forms: Sequence[Form], tools: ToolUse, owner: str = "", *, one_step: bool = False
    ) -> TextForm:
        """A form whose pattern compiles, of texts that may also call the tools. `owner`: the API key. `one_step`: the
        texts of a choice are labels, which one step reads.

        Raises: BadInput naming the wrong field; RetryLater if the machine is too busy.
        """
        if not forms and not tools.tools:
            return TextForm()
        if len(forms) > 1 and len({form.without_field() for form in forms}) > 1:
            names = ", ".join(form.field for form in forms)
            raise BadInput(f"give one form of the text; given: {names}", forms[1].field)
        form = forms[0] if forms else None
        if form is not None and form.kind == "choice" and one_step and not tools.tools:
            return TextForm(labels=list(dict.fromkeys(form.given)))
        known_as = blake2b(f"{form!r} {tools.key}".encode(errors="surrogatepass"), digest_size=16).digest()
        if known_as in self._known:
            self._known.move_to_end(known_as)
            return self._known[known_as]
        try:
            async with self._small.turn(owner):
                if known_as not in self._known:  # another request had the same form
                    self._keep(known_as, await asyncio.to_thread(_text_form, form, tools, SMALL))
        except BudgetExceeded:
            async with self._large.turn(owner):
                if known_as not in self._known:
                    self._keep(known_as, await run_in_process(_large_form, form, tools))
        return self._known[known_as]

    def _keep(self, known_as: bytes, made: TextForm) -> None:
        self._known[known_as] = made
        self._known_characters += FORM_SIZE + len(made.pattern)
        while self._known_characters > MAX_KNOWN:
            _, oldest = self._known.popitem(last=False)
            self._known_characters -= FORM_SIZE + len(oldest.pattern)


def _large_form(form: Form | None, tools: ToolUse) -> TextForm:
    """As `_text_form`, in a process of its own, of the lowest priority. Raises: BadInput naming the wrong field."""
    os.nice(LOWEST_PRIORITY)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    field = _field_of(form)
    try:
        return _text_form(form, tools, LARGE)
    except BudgetExceeded as error:
        raise BadInput(f"{field}: {error.message}", field) from None
    except MemoryError:
        reason = f"the form is too large: compiling it may take {MAX_MEMORY >> 30} GiB of memory"
        raise BadInput(f"{field}: {reason}", field) from None


def _text_form(form: Form | None, tools: ToolUse, budget: Budget) -> TextForm:
    """Raises: BudgetExceeded; BadInput naming the wrong field."""
    field = _field_of(form)
    try:
        try:
            with limited_to(budget) as own:
                return _compiled(form, tools)
        except TooLarge as error:
            if isinstance(error, BudgetExceeded) or own.list_states == budget.list_states:
                raise
        with limited_to(replace(budget, list_states=0, may_cut=False)):
            return _compiled(form, tools)
    except BudgetExceeded:
        raise
    except BadInput as error:
        if error.field not in {None, "pattern", "grammar"}:
            raise
        raise BadInput(f"{field}: {error.message}", field) from None
    except RecursionError:
        raise BadInput(f"{field} is nested too deep", field) from None


def _compiled(form: Form | None, tools: ToolUse) -> TextForm:
    left_out = list[str]()
    made = form.make(left_out) if form is not None else None
    if tools.tools:
        made = tools.form(Compiled(compile_pattern(made)) if isinstance(made, str) else made, left_out)
    if not made:
        return TextForm()
    automaton = None if isinstance(made, str) else automaton_of(made)
    pattern = str(made) if automaton is None else automaton.written()
    _check_length(pattern, _field_of(form))
    automaton = automaton or compile_pattern(pattern)
    max_bytes = longest_text(automaton)
    return TextForm(pattern, max_tokens=None if max_bytes is None else max_bytes + 1, left_out=left_out)


def _field_of(form: Form | None) -> str:
    return form.field if form is not None else TOOLS


def _check_length(pattern: str, field: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        message = f"{field}: the compiled form has {len(pattern)} characters; at most {MAX_PATTERN_LENGTH}"
        raise TooLarge(message, field)
