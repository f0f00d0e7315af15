"""The messages of OpenAI's chats, the fields with which a client describes tools, chooses among them, and sends calls
back, and what the bodies of all APIs share of these."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from services.gateway.api.base_models import Lenient, wrong_field
from services.gateway.api.field_types import also
from services.gateway.api.other_fields import LeftOut, OrLeftOut, kind_of, leaving_out
from services.gateway.api.prompts import TextOrParts, Turn, call, joined, turn
from services.gateway.api.thoughts import find_thoughts
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.gateway.api.tool_calls.use import CallRules, ToolUse, UsableTool
from shared.text import TextModel

MAX_TOOLS = 128
THOUGHT = "reasoning_content"  # of a message, in chats and in chat templates
LEAVES_OUT_BUILT_IN = leaving_out("(?!function$).+")

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


class NamedFunction(Lenient):
    schema_field: ClassVar[str] = "parameters"  # the field with the JSON schema of its arguments

    name: ToolName
    description: str | None = None
    strict: bool | None = None  # the arguments of every call match the schema

    def at(self, field: str) -> UsableTool:
        """`field`: the place of this function in its body."""
        schema = getattr(self, self.schema_field)
        return UsableTool(f"{field}.{self.schema_field}", self.name, self.description, schema, self.strict)


class Function(NamedFunction):
    parameters: dict[str, Any] | None = None  # None: the function takes no arguments


class Tool(Lenient):
    type: Literal["function"] = "function"
    function: Function
    strict: bool | None = None  # as that of the function

    def at(self, field: str) -> UsableTool:
        """`field`: the place of this tool in its body."""
        tool = self.function.at(f"{field}.function")
        return replace(tool, strict=tool.strict or self.strict)


class FunctionName(Lenient):
    name: str


class NamedTool(Lenient):
    """The choice of one function, which is then called once. Chats send `function.name`, responses `name`."""

    type: Literal["function"] = "function"
    function: FunctionName | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _require_name(self) -> Self:
        if self.function is None and self.name is None:
            raise wrong_field("name", "is required")
        return self

    @property
    def chosen(self) -> str:
        return self.function.name if self.function is not None else str(self.name)


class AllowedTools(Lenient):
    """The choice of some functions, among which the model chooses. Chats send `mode` and `tools` within
    `allowed_tools`, responses beside `type`."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[OrLeftOut[NamedTool], LEAVES_OUT_BUILT_IN]], Field(max_length=MAX_TOOLS, fail_fast=True)
    ]

    @model_validator(mode="before")
    @classmethod
    def _as_responses_have_it(cls, sent: Any) -> Any:
        inner = sent.get("allowed_tools") if isinstance(sent, dict) else None
        return {"type": sent["type"], **inner} if isinstance(inner, dict) else sent


class CalledFunction(Lenient):
    name: str
    arguments: str | dict[str, Any] | None = None  # JSON, as the model wrote it, or its value; None: there are none


class ToolCall(Lenient):
    """A call in a message of the assistant."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction

    @model_validator(mode="before")
    @classmethod
    def _custom_as_function(cls, sent: Any) -> Any:
        """The input of a custom tool is a text."""
        custom = sent.get("custom") if kind_of(sent) == "custom" else None
        if not isinstance(custom, dict):
            return sent
        return {"id": sent.get("id"), "function": {"name": custom.get("name"), "arguments": custom.get("input")}}


class Message(Lenient):
    """A message of a conversation: a text, calls of tools, or the result of a call."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextOrParts | None = None
    refusal: str | None = None  # of an earlier reply, in place of its content
    # The thought of an earlier reply; the other name is that of vLLM and OpenRouter
    reasoning_content: Annotated[str | None, also(THOUGHT, "reasoning")] = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _thoughts_apart(cls, sent: Any) -> Any:
        """Mistral's replies have their thoughts in parts of the content, of which each has parts of text."""
        content = sent.get("content") if isinstance(sent, dict) else None
        if not isinstance(content, list) or not any(kind_of(part) == "thinking" for part in content):
            return sent
        thoughts = [part.get("thinking") for part in content if kind_of(part) == "thinking"]
        parts = [part for each in thoughts if isinstance(each, list) for part in each if isinstance(part, dict)]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        kept = [part for part in content if kind_of(part) != "thinking"]
        return {THOUGHT: "\n".join(texts), **sent, "content": kept}

    @model_validator(mode="after")
    def _require_content(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise wrong_field("tool_calls", "is only allowed in a message of the assistant")
        if self.content is None and self.role not in {"assistant", "tool"}:
            raise wrong_field("content", "is required in a message of this role")
        return self

    def turn(self) -> Turn:
        calls = [call(each.id, each.function.name, each.function.arguments) for each in self.tool_calls or ()]
        made = turn(self.role, joined(self.content) or self.refusal or "", calls, self.tool_call_id)
        return made | {THOUGHT: self.reasoning_content} if self.reasoning_content else made


ANY = "any"  # Mistral's name of `required`
MODES = ("none", "auto", "required", ANY)
Mode = Annotated[Literal["none", "auto", "required"], BeforeValidator(lambda mode: "required" if mode == ANY else mode)]
CHOICES = (
    "must be 'none', 'auto', 'required', {'type': 'function', 'function': {'name': '...'}} or "
    "{'type': 'allowed_tools', 'allowed_tools': {'mode': 'auto', 'tools': [...]}}; in responses, "
    "name, or mode and tools, lie beside type"
)


def _named_alone(choice: Any) -> Any:
    """TGI's clients send the name of a function alone."""
    return {"type": "function", "name": choice} if isinstance(choice, str) and choice not in MODES else choice


def _kind_of_choice(choice: Any) -> str | None:
    kinds = {"function": "NamedTool", "allowed_tools": "AllowedTools"}
    if isinstance(choice, dict) and "type" not in choice and "function" in choice:
        return "NamedTool"
    return "Mode" if isinstance(choice, str) else kinds.get(kind_of(choice))


ToolChoice = Annotated[
    Annotated[Mode, Tag("Mode")]
    | Annotated[NamedTool, Tag("NamedTool")]
    | Annotated[AllowedTools, Tag("AllowedTools")],
    Discriminator(_kind_of_choice, custom_error_type="unsupported", custom_error_message=CHOICES),
    BeforeValidator(_named_alone),
]
Tools = Annotated[list[Annotated[OrLeftOut[Tool], LEAVES_OUT_BUILT_IN]], Field(max_length=MAX_TOOLS, fail_fast=True)]


class WithTools(Lenient):
    """A body with tools. Tools that are no functions are left out."""

    tools: Sequence[Any] | None = None

    @property
    def rules(self) -> CallRules:
        return CallRules()

    def tool_use(self, text: TextModel, options: Mapping[str, Any] | None = None, *, thinks: bool = True) -> ToolUse:
        """The tools that the model may call. `options`: of the chat template; `thinks`: whether a thought may precede
        the answer, which no form given by a client allows. Raises: as ToolUse.of."""
        tools = enumerate(self.tools or ())
        usable = [tool.at(f"tools[{at}]") for at, tool in tools if not isinstance(tool, LeftOut)]
        use = ToolUse.of(find_call_syntax(text.tool_template), usable, self.rules)
        if use.is_required or not thinks:
            return use
        return replace(use, thoughts=find_thoughts(text, options or {}))


class WithToolChoice(WithTools):
    """A body with tools whose choice is that of OpenAI's chats and of its Responses API."""

    tool_choice: ToolChoice | None = None  # None: auto
    parallel_tool_calls: bool | None = None  # false: at most one call

    @property
    def rules(self) -> CallRules:
        choice, parallel = self.tool_choice, self.parallel_tool_calls
        if isinstance(choice, NamedTool):
            return CallRules(named=choice.chosen)
        if isinstance(choice, AllowedTools):
            allowed = [tool.chosen for tool in choice.tools if isinstance(tool, NamedTool)]
            return CallRules(choice.mode, parallel=parallel, allowed=allowed)
        return CallRules(choice, parallel=parallel)
