"""Writes the tools of a chat into its prompt and its pattern, and finds the calls in its reply."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from services.gateway.api.request_models import ChatBody, CompletionBody, Message, joined
from services.gateway.api.tool_calls.call_syntax import CallSyntax, Turn, call_pattern, find_call_syntax
from services.gateway.api.tool_calls.call_text import ReadText
from services.gateway.api.tool_calls.models import NamedTool, Tool, ToolCall
from shared.errors import BadInput
from shared.patterns.json_schema import schema_patterns
from shared.text import TextModel

NO_ARGUMENTS = {"type": "object", "additionalProperties": False}
ROLES = {"developer": "system"}  # chat templates have no role `developer`


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that the model may call, and the rules for calls."""

    syntax: CallSyntax
    tools: tuple[tuple[int, Tool], ...]  # each with its index in the body
    is_required: bool
    several: bool
    is_named: bool
    field: str = ChatBody.parameters_field  # name of the body's field with the schema of a tool, for the tool's index

    @property
    def is_constrained(self) -> bool:
        """Whether the pattern of the text allows only calls that match their schema."""
        return self.is_required or any(tool.function.strict for _, tool in self.tools)

    def pattern(self, text_pattern: str) -> str:
        """The pattern of the whole text. `text_pattern`: that of texts without calls; empty: any text.

        Raises: BadInput.
        """
        if not self.tools:
            return text_pattern
        names = [tool.function.name for _, tool in self.tools]
        if not self.is_constrained and not text_pattern:
            return self.syntax.free_pattern(names)
        schemas = {self.field.format(at): _schema(tool, self.field.format(at)) for at, tool in self.tools}
        try:
            arguments = schema_patterns(schemas)
        except BadInput as error:
            field = str(error.field)
            message = error.message if error.message.startswith(field) else f"{field}: {error.message}"
            raise BadInput(message, field) from None
        except RecursionError:
            raise BadInput("tools has a schema with too many levels", "tools") from None
        calls = call_pattern(dict(zip(names, arguments, strict=True)))
        return self.syntax.pattern(calls, None if self.is_required else text_pattern, several=self.several)

    def read(self, text: str, is_whole: bool) -> ReadText:
        """The content and the calls of a text. `is_whole`: nothing follows it."""
        if not self.tools:
            return ReadText((text,) if text else ())
        found = self.syntax.reader.read(text, is_whole=is_whole)
        return found if self.several else found.with_one_call()


def tool_use(body: CompletionBody, text: TextModel) -> ToolUse:
    """The use of tools that a body asks for; it has no tools if the body is no chat, or the client wants no call."""
    syntax = find_call_syntax(text.tool_template)
    if not isinstance(body, ChatBody) or body.tool_choice == "none":
        return ToolUse(syntax, (), is_required=False, several=False, is_named=False)
    tools, choice, field = tuple(enumerate(body.tools or ())), body.tool_choice, body.parameters_field
    if isinstance(choice, NamedTool):
        named = tuple(pair for pair in tools if pair[1].function.name == choice.function.name)
        return ToolUse(syntax, named, is_required=True, several=False, is_named=True, field=field)
    several = body.parallel_tool_calls is not False
    return ToolUse(syntax, tools, is_required=choice == "required", several=several, is_named=False, field=field)


def conversation(
    messages: Sequence[Message], tools: Sequence[Tool], syntax: CallSyntax
) -> tuple[list[Turn], list[Turn]]:
    """The turns and the tools for the chat template."""
    functions = [
        tool.function.model_dump(include={"name", "description", "parameters"}, exclude_none=True) for tool in tools
    ]
    return syntax.conversation([_turn(message) for message in messages], functions)


def _turn(message: Message) -> Turn:
    turn: dict[str, Any] = {"role": ROLES.get(message.role, message.role), "content": joined(message.content)}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _parse_arguments(call)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _parse_arguments(call: ToolCall) -> Any:
    """The arguments as a value, which chat templates write as JSON; as the text itself if they are not JSON."""
    try:
        return from_json(call.function.arguments)
    except ValueError:
        return call.function.arguments


def _schema(tool: Tool, field: str) -> Any:
    """The schema of a tool's arguments. Raises: BadInput naming the field if they are no object."""
    parameters = tool.function.parameters
    if parameters is None:
        return NO_ARGUMENTS
    if parameters.get("type", "object") != "object":
        raise BadInput(f"{field} must be of the type object", field)
    return parameters or {"type": "object"}
