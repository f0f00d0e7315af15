"""The version of the messages. It increases when a new field changes texts, so that a service that ignores the field
would produce a wrong text.

Services ignore fields that they do not know, so those of two versions run together. Where an ignored field would change
a text, the scheduler refuses the request while a worker of an earlier version is present.
"""

from shared.messages.requests import CHANGES, Request

FIRST_VERSION = 1  # of services whose messages have no version
VERSION = 3
FIELDS = {2: ("pinned", "choices", "edit_threshold"), 3: tuple(CHANGES)}  # by the version that has them


def newer_field(request: Request, version: int, *, has_edits: bool) -> str | None:
    """The request's field that workers of a version would ignore; None: it has none. `has_edits`: by its own edit
    threshold or the cell's."""
    given = {"pinned": request.pinned, "choices": request.choices, "edit_threshold": has_edits}
    given |= {name: getattr(request, name) != usual for name, usual in CHANGES.items()}
    newer = [name for first, names in FIELDS.items() if first > version for name in names]
    return next((name for name in newer if given[name]), None)
