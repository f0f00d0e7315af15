"""The form of a text that a client asks for: a JSON schema, a regular expression, a grammar, or a choice."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pydantic_core import from_json

from shared.errors import BadInput
from shared.messages.requests import MAX_PATTERN_LENGTH
from shared.patterns.automaton import compile_pattern
from shared.patterns.byte_automaton import longest_text
from shared.patterns.grammar import grammar_pattern
from shared.patterns.json_schema import choice_part, object_part, schema_part
from shared.patterns.parts import Compiled, FormPart, automaton_of

MAX_KNOWN = 1_000  # forms
OrCalls = Callable[[FormPart | None, list[str]], FormPart | str]  # adds calls of tools to a form, or to any text
TOOLS = "tools"  # the field of a form that only calls of tools give


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a client has given: the body's field, and what makes its parts, or its pattern. `make` adds to its
    argument the fields of what is left out. Forms with the same field and `given` are equal."""

    field: str
    make: Callable[[list[str]], FormPart | str]
    given: object = None


@dataclass(frozen=True, slots=True)
class TextForm:
    """The texts that a client accepts: any, those of a pattern, or one of several labels."""

    pattern: str = ""
    labels: Sequence[str] = ()
    max_bytes: int | None = None  # of a text of the pattern; None: no limit
    left_out: Sequence[str] = ()  # parts of the schema that are never written: they cannot be, and need not be

    @property
    def max_tokens(self) -> int | None:
        """The longest text of the pattern with an end token, as a token has at least a byte; None: no limit."""
        return None if self.max_bytes is None else self.max_bytes + 1


class FormCompiler:
    """Compiles forms: one regular expression at a time, as each may take a core for seconds. JSON schemas, which take
    less, do not wait for them."""

    def __init__(self) -> None:
        self._regexes = ThreadPoolExecutor(max_workers=1, thread_name_prefix="patterns")
        self._schemas = ThreadPoolExecutor(max_workers=1, thread_name_prefix="forms")
        self._known: OrderedDict[str, TextForm] = OrderedDict()  # which need not wait for others

    async def form_of(
        self, forms: Sequence[Form], labels: Sequence[str], or_calls: OrCalls | None, calls: str = ""
    ) -> TextForm:
        """A form whose pattern compiles. `labels`: the texts of a choice that is read in one step; empty: none.
        `or_calls` adds calls of tools to a form or to any text; `calls` is the key of their tools.

        Raises: BadInput naming the wrong field.
        """
        if not forms and or_calls is None:
            return TextForm()
        if len(forms) > 1:
            names = ", ".join(form.field for form in forms)
            raise BadInput(f"give one form of the text; given: {names}", forms[1].field)
        if or_calls is None and labels:
            return TextForm(labels=labels)
        form = forms[0] if forms else None
        key = f"{form and (form.field, form.given)!r} {calls}"
        if key not in self._known:
            is_regex = form is not None and form.field.endswith(("regex", "grammar"))
            thread = self._regexes if is_regex else self._schemas
            made = await asyncio.get_running_loop().run_in_executor(thread, _text_form, form, or_calls)
            self._known[key] = made
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
            return made
        return self._known[key]


def _text_form(form: Form | None, or_calls: OrCalls | None) -> TextForm:
    left_out: list[str] = []
    field = form.field if form is not None else TOOLS
    made = form.make(left_out) if form is not None else None
    try:
        if or_calls is not None:
            made = or_calls(Compiled(compile_pattern(made)) if isinstance(made, str) else made, left_out)
        if not made:
            return TextForm()
        if isinstance(made, str):
            _check_length(made, field)
        compiled = compile_pattern(made) if isinstance(made, str) else automaton_of(made)
    except BadInput as error:
        if error.field not in {None, "pattern"}:
            raise
        raise BadInput(f"{field}: {error.message}", field) from None
    except RecursionError:
        raise BadInput(f"{field} is nested too deep", field) from None
    pattern = made if isinstance(made, str) else compiled.written()
    _check_length(pattern, field)
    return TextForm(pattern, max_bytes=longest_text(compiled), left_out=left_out)


def _check_length(pattern: str, field: str) -> None:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BadInput(f"its pattern has {len(pattern)} characters; at most {MAX_PATTERN_LENGTH}", field)


def schema_form(schema: str | dict[str, object], field: str) -> Form:
    """The form of a JSON schema, or of its text."""
    return Form(field, partial(_schema, schema, field), schema)


def object_form(field: str) -> Form:
    """The form of any JSON object."""
    return Form(field, lambda _: object_part())


def vllm_forms(
    schema: str | dict[str, object] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    prefix: str,
) -> Iterator[Form]:
    """vLLM's forms, whose fields begin with `prefix`."""
    if schema is not None:
        yield schema_form(schema, f"{prefix}json")
    if regex is not None:
        yield Form(f"{prefix}regex", lambda _: _of_some_text(regex, f"{prefix}regex"), regex)
    if choice is not None:
        yield Form(f"{prefix}choice", lambda _: choice_part(choice), choice)
    if grammar is not None:
        yield Form(f"{prefix}grammar", lambda _: _grammar(grammar, f"{prefix}grammar"), grammar)


def _grammar(grammar: str, field: str) -> str:
    try:
        return _of_some_text(grammar_pattern(grammar), field)
    except BadInput as error:
        raise BadInput(f"{field}: {error.message}", field) from None


def _of_some_text(pattern: str, field: str) -> str:
    """Raises: BadInput if the pattern is empty, which elsewhere means any text."""
    if not pattern:
        raise BadInput("only the empty text has this form; leave the field out to have any text", field)
    return pattern


def _schema(schema: str | dict[str, object], field: str, left_out: list[str]) -> FormPart:
    try:
        return schema_part(from_json(schema) if isinstance(schema, str) else schema, field, left_out)
    except ValueError as error:
        raise BadInput(f"{field} is not a JSON schema: {error}", field) from None
