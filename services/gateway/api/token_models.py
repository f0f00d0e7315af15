"""The bodies and the replies of /tokenize and /detokenize."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from services.gateway.api.base_models import OfModel, unsupported_field
from services.gateway.api.other_fields import NEUTRAL_OF_PROMPTS
from services.gateway.api.prompts import Prompt
from services.gateway.api.request_models import Message, TemplateOptions
from services.gateway.api.tool_calls.models import Tools, WithTools
from services.gateway.view_models import ResponseModel
from shared.text import TextModel


class TokenizeBody(OfModel, WithTools):
    """POST /tokenize: a prompt or messages."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL_OF_PROMPTS

    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    tools: Tools | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None  # of messages; false: without the beginning of the model's reply

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise unsupported_field("prompt", "give either prompt or messages")
        return self

    def given(self, text: TextModel) -> tuple[Prompt, str]:
        """The prompt, and its field."""
        tools, options = self.tool_use(text), self.chat_template_kwargs
        if self.messages is None:
            return self.prompt or "", "prompt"
        turns, opens_reply = [message.turn() for message in self.messages], self.add_generation_prompt is not False
        return tools.chat(turns, opens_reply=opens_reply, options=options), "messages"


class DetokenizeBody(OfModel):
    """POST /detokenize."""

    tokens: Annotated[list[int], Field(fail_fast=True)]
    skip_special_tokens: bool | None = None  # None: true


class TokenList(ResponseModel):
    tokens: list[int]
    count: int
    max_model_len: int = Field(description="maximum number of tokens, prompt and output together")


class DetokenizedText(ResponseModel):
    prompt: str
