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
from shared.patterns.automaton import compile_pattern, longest_text
from shared.patterns.grammar import grammar_pattern
from shared.patterns.json_schema import choice_pattern, schema_pattern

MAX_KNOWN = 1_000  # patterns
TOOLS = "tools"  # the field of a form that only calls of tools give


@dataclass(frozen=True, slots=True)
class Form:
    """A form that a client has given: the body's field, and what makes its pattern."""

    field: str
    make: Callable[[], str]


@dataclass(frozen=True, slots=True)
class TextForm:
    """The texts that a client accepts: any, those of a pattern, or one of several labels."""

    pattern: str = ""
    labels: Sequence[str] = ()
    max_bytes: int | None = None  # of a text of the pattern; None: no limit

    @property
    def max_tokens(self) -> int | None:
        """The longest text of the pattern with an end token, as a token has at least a byte; None: no limit."""
        return None if self.max_bytes is None else self.max_bytes + 1


class FormCompiler:
    """Compiles patterns, one at a time, as each takes a core."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="patterns")
        # The longest text of patterns that compile, in bytes; known ones need not wait for others
        self._longest: OrderedDict[str, int | None] = OrderedDict()

    async def form_of(
        self, forms: Sequence[Form], labels: Sequence[str], or_calls: Callable[[str], str] | None
    ) -> TextForm:
        """A form whose pattern compiles. `labels`: the texts of a choice that is read in one step; empty: none.
        `or_calls` adds calls of tools to the pattern of a form or of any text.

        Raises: BadInput naming the wrong field.
        """
        if not forms and or_calls is None:
            return TextForm()
        if len(forms) > 1:
            names = ", ".join(form.field for form in forms)
            raise BadInput(f"give one form of the text; given: {names}", forms[1].field)
        if or_calls is None and labels:
            return TextForm(labels=labels)
        form = forms[0] if forms else Form(TOOLS, str)
        pattern = await asyncio.to_thread(lambda: or_calls(form.make()) if or_calls else form.make())
        if not pattern:
            return TextForm()
        if len(pattern) > MAX_PATTERN_LENGTH:
            raise BadInput(f"its pattern has {len(pattern)} characters; at most {MAX_PATTERN_LENGTH}", form.field)
        if pattern not in self._longest:
            try:
                compiled = await asyncio.get_running_loop().run_in_executor(self._thread, compile_pattern, pattern)
            except BadInput as error:
                raise BadInput(f"{form.field}: {error.message}", form.field) from None
            self._longest[pattern] = await asyncio.to_thread(longest_text, compiled)
            if len(self._longest) > MAX_KNOWN:
                self._longest.popitem(last=False)
        return TextForm(pattern, max_bytes=self._longest.get(pattern))


def schema_form(schema: str | dict[str, object], field: str) -> Form:
    """The form of a JSON schema, or of its text."""
    return Form(field, partial(_schema, schema, field))


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
        yield Form(f"{prefix}regex", partial(_of_some_text, regex, f"{prefix}regex"))
    if choice is not None:
        yield Form(f"{prefix}choice", partial(choice_pattern, choice))
    if grammar is not None:
        yield Form(f"{prefix}grammar", partial(_grammar, grammar, f"{prefix}grammar"))


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


def _schema(schema: str | dict[str, object], field: str) -> str:
    try:
        return schema_pattern(from_json(schema) if isinstance(schema, str) else schema, field)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{field} is not a JSON schema: {error}", field) from None
