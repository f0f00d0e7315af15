"""The project's errors, split by what the caller can do about them."""


class DilaserveError(Exception):
    """Base of all errors that this project raises deliberately."""


class BadInput(DilaserveError):  # noqa: N818  (named for the cause)
    """The caller's data is invalid: the same call fails again. `field` names the invalid part; None: the whole."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class TooLong(BadInput):
    """The prompt and the output have more tokens than the model takes."""


class RetryLater(DilaserveError):  # noqa: N818
    """A temporary condition, such as an unavailable server: the same call may succeed later."""


class NotCreated(RetryLater):
    """A stream, bucket or key of the bus does not exist, perhaps not yet: services start in any order."""


class StorageFull(RetryLater):
    """A stream of the bus holds as many messages or bytes as it may, and stores no further message."""


class Superseded(DilaserveError):  # noqa: N818
    """Another process has taken over the role of this process, which must stop."""
