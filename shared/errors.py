"""The project's errors, split by what the caller can do about them.

DilaserveError
├── BadInput      the caller's data is wrong: mend it; the same call fails again
├── RetryLater    a passing condition: the same call may succeed later
└── Superseded    another process has taken over this one's role: stop
"""


class DilaserveError(Exception):
    """Base of every error this project raises on purpose."""


class BadInput(DilaserveError):  # noqa: N818  (named for what happened, as its siblings are)
    """The caller's data is wrong. `field` names the part at fault, None when it is the whole."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class RetryLater(DilaserveError):  # noqa: N818
    """A passing condition, such as a server that is away."""


class Superseded(DilaserveError):  # noqa: N818
    """Another process has taken over this one's role."""
