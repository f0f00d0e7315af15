"""Resolves `item_reference`: an item of the input that names an item of an earlier reply by its id."""

import re
from collections.abc import Mapping

from services.gateway.api.openai_responses.replies import ResponseReplies
from services.gateway.api.plan import BodyPlanner
from services.gateway.api.replies_and_chunks import Json
from services.gateway.api.tool_calls.use import ToolUse
from services.gateway.errors import MAX_NAME_LENGTH, ApiError

ITEM_ID = re.compile(r"msg_([A-Za-z0-9_-]{1,64})|fc_([A-Za-z0-9_-]{1,64})_[0-9]+")  # with the id of its request


async def referenced_items(ids: Mapping[str, str], planner: BodyPlanner, tools: ToolUse) -> dict[str, Json]:
    """The items, from the outcomes of earlier requests of the same key, each of which is read once.

    `ids`: of the items, by the fields that name them; `tools`: how calls in a text are read; without tools none is.
    Returns: the items by field. Raises: ApiError 404 that names the field of an item that does not exist; RetryLater if
    the bus does not answer.
    """
    of_request: dict[str, dict[str, Json]] = {}  # the items of each reply, by id
    found = {}
    for field, item_id in ids.items():
        match = ITEM_ID.fullmatch(item_id)
        request_id = match[1] or match[2] if match else ""
        if match and request_id not in of_request:
            outcome = await planner.conversations.outcome(request_id, planner.key)
            items = ResponseReplies({}, request_id, planner.text, tools, None).output(outcome) if outcome else []
            of_request[request_id] = {item["id"]: item for item in items}
        item = of_request.get(request_id, {}).get(item_id)
        if item is None:
            reason = "no response of the last day has it, or its call needs the tools"
            advice = "send the item itself, as clients do with store: false"
            message = f"{field}: the item {item_id[:MAX_NAME_LENGTH]!r} is not found: {reason}; {advice}"
            raise ApiError(404, message, param=field, code="not_found")
        found[field] = item
    return found
