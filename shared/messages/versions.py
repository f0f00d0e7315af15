"""The version of the messages. It rises with a field whose meaning a reader of an earlier version would miss.

Services ignore fields that they do not know, so those of two versions run together. Where an ignored field would change
a text, the scheduler refuses the request while a worker of an earlier version is present.
"""

from shared.messages.requests import Request

FIRST_VERSION = 1  # of services whose messages have no version
VERSION = 2  # pinned tokens, labels


def needed_version(request: Request) -> int:
    """The version that all workers must have, so that any of them may serve the request."""
    return VERSION if request.pinned or request.choices else FIRST_VERSION
