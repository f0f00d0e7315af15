"""The requests of bodies, without a gateway."""

from typing import Any

from services.gateway.api.form_compiler import FormCompiler
from services.gateway.api.plan import BodyPlanner
from services.gateway.api.request_models import TextBody
from services.gateway.api.tool_calls.call_syntax import find_call_syntax
from services.gateway.stores.conversations import Conversations
from shared.api_keys import ANONYMOUS
from shared.messages.requests import Request
from shared.text import TextModel


async def planned(text: TextModel, **fields: Any) -> Request:
    """The request of a plain completion with these fields and one choice."""
    planner = BodyPlanner(text, find_call_syntax(text.tool_template), FormCompiler(), ANONYMOUS, Conversations({}, ""))
    wanted = await TextBody.model_validate({"model": "m", **fields}).wanted(planner)
    [request] = (await planner.plan(wanted)).requests
    return request
