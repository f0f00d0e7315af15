"""The form of a body's text: a JSON schema, a regular expression, a grammar, or a choice."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from pydantic_core import from_json

from services.gateway.api.request_models import CompletionBody, TextForms
from shared.errors import BadInput
from shared.messages.requests import MAX_PATTERN_LENGTH
from shared.patterns.automaton import compile_pattern, longest_text
from shared.patterns.grammar import grammar_pattern
from shared.patterns.json_schema import choice_pattern, object_pattern, schema_pattern

Form = tuple[str, Callable[[], str]]  # a field of the body, and its pattern

_compiler = ThreadPoolExecutor(max_workers=1, thread_name_prefix="patterns")  # one at a time, as each takes a core
# The longest text of patterns that compile, in bytes; known ones need not wait for others
_longest: OrderedDict[str, int | None] = OrderedDict()
MAX_KNOWN = 1_000
TOOLS = "tools"  # the field of a form that only calls of tools give


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


async def form_of(body: CompletionBody, or_calls: Callable[[str], str] | None) -> TextForm:
    """A form whose pattern compiles. A choice with log-probabilities is read as labels, in one step. `or_calls` adds
    calls of tools to the pattern of a form or of any text.

    Raises: BadInput naming the wrong field.
    """
    forms = list(_forms(body))
    if not forms and or_calls is None:
        return TextForm()
    if len(forms) > 1:
        raise BadInput(f"give one form of the text; given: {', '.join(name for name, _ in forms)}", forms[1][0])
    if or_calls is None and body.wants_logprobs and (labels := _labels(body)):
        return TextForm(labels=labels)
    field, make = forms[0] if forms else (TOOLS, str)
    pattern = await asyncio.to_thread(lambda: or_calls(make()) if or_calls else make())
    if not pattern:
        return TextForm()
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise BadInput(f"its pattern has {len(pattern)} characters; at most {MAX_PATTERN_LENGTH}", field)
    if pattern not in _longest:
        try:
            compiled = await asyncio.get_running_loop().run_in_executor(_compiler, compile_pattern, pattern)
        except BadInput as error:
            raise BadInput(f"{field}: {error.message}", field) from None
        _longest[pattern] = await asyncio.to_thread(longest_text, compiled)
        if len(_longest) > MAX_KNOWN:
            _longest.popitem(last=False)
    return TextForm(pattern, max_bytes=_longest.get(pattern))


def field_of_form(body: TextForms) -> str:
    """The field that gives the form of the text."""
    return next((field for field, _ in _forms(body)), TOOLS)


def _labels(body: TextForms) -> list[str]:
    """The texts of a choice, without repetitions; empty if the form is another one."""
    structured = body.structured_outputs
    labels = body.guided_choice or (structured.choice if structured is not None else None)
    return list(dict.fromkeys(labels or []))


def _forms(body: TextForms) -> Iterator[Form]:
    wanted, structured = body.response_format, body.structured_outputs
    if wanted is not None and wanted.json_schema is not None:
        field = f"{body.form_field}.json_schema.schema" if body.form_field == "response_format" else body.form_field
        yield field, partial(_schema, wanted.json_schema.schema_, field)
    elif wanted is not None and wanted.type == "json_object":
        yield body.form_field, object_pattern
    if structured is not None:
        forms = structured.json_, structured.regex, structured.choice, structured.grammar
        yield from _vllm_forms(*forms, "structured_outputs.")
    yield from _vllm_forms(body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar, "guided_")


def _vllm_forms(
    schema: str | dict[str, object] | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
    prefix: str,
) -> Iterator[Form]:
    if schema is not None:
        yield f"{prefix}json", partial(_schema, schema, f"{prefix}json")
    if regex is not None:
        yield f"{prefix}regex", partial(_of_some_text, regex, f"{prefix}regex")
    if choice is not None:
        yield f"{prefix}choice", partial(choice_pattern, choice)
    if grammar is not None:
        yield f"{prefix}grammar", partial(_grammar, grammar, f"{prefix}grammar")


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
