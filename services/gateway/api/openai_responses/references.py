"""`item_reference`: an item of the input that names one of an earlier reply, which the client takes for stored."""

import re

from services.gateway.api.openai_responses.replies import ResponseReplies
from services.gateway.api.plan import BodyPlanner
from services.gateway.api.replies_and_chunks import Json
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.errors import MAX_NAME_LENGTH, ApiError

ITEM_ID = re.compile(r"msg_([A-Za-z0-9_-]{1,64})|fc_([A-Za-z0-9_-]{1,64})_[0-9]+")  # with the id of its request


async def referenced_item(item_id: str, planner: BodyPlanner, tools: ToolUse, field: str) -> Json:
    """The item of a reply to the same key, from its outcome. `tools`: those whose calls a text may have.

    Raises: ApiError 404 that names the field if there is none; RetryLater if the bus does not answer.
    """
    match = ITEM_ID.fullmatch(item_id)
    if match is not None:
        request_id = match[1] or match[2]
        outcome = await planner.conversations.outcome(request_id, planner.key)
        items = ResponseReplies({}, request_id, planner.text, tools, None).output(outcome) if outcome else []
        for item in items:
            if item["id"] == item_id:
                return item
    reason = "it is of no response of the last day; send the item itself, as clients do with store: false"
    message = f"{field}: the item {item_id[:MAX_NAME_LENGTH]!r} is not found: {reason}"
    raise ApiError(404, message, param=field, code="not_found")
