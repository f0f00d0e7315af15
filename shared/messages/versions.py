"""The version of the messages. It increases when a new field changes texts, so that a service that ignores the field
would produce a wrong text.

Services ignore fields that they do not know, so those of two versions run together. Where an ignored field would change
a text, the scheduler refuses the request while a worker of an earlier version is present.
"""

from shared.messages.requests import Request

FIRST_VERSION = 1  # of services whose messages have no version
VERSION = 2  # pinned tokens, labels, edits


def newer_field(request: Request, *, has_edits: bool) -> str | None:
    """The request's field that workers of an earlier version than VERSION would ignore; None: it has none.
    `has_edits`: by its own edit threshold or the cell's."""
    fields = {"pinned": bool(request.pinned), "choices": bool(request.choices), "edit_threshold": has_edits}
    return next((name for name, is_given in fields.items() if is_given), None)
