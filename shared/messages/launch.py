"""Instances as the reconfigurator wants them, and the orders to whoever starts processes on a node."""

import enum
from typing import Annotated

import msgspec

NodeName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$")]


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One instance: where it is to stand, or stands. Two specs of one place are the same instance."""

    node: NodeName
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]  # by their numbers on the node, ascending

    def __post_init__(self) -> None:
        if not self.gpus or list(self.gpus) != sorted(set(self.gpus)):
            raise ValueError(f"gpus must ascend and be at least one, got {self.gpus}")

    @property
    def tp(self) -> int:
        return len(self.gpus)

    @property
    def name(self) -> str:
        """The worker's name, one subject token: it registers as this and six random digits."""
        return f"worker-{self.node.replace('.', '_')}-{'-'.join(map(str, self.gpus))}"


class LaunchAction(enum.StrEnum):
    START = "start"
    STOP = "stop"
    LIST = "list"


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reconfigurator -> the supervisor of a node: start or stop a worker process, or say which there are.

    Subject: dilaserve.<cell>.launch.<node>. Request and reply; safe to repeat.
    """

    action: LaunchAction
    spec: InstanceSpec | None = None  # of `start` and `stop`
    grace_s: float = 0.0  # of `stop`: seconds that the process has to end before it is killed


class LaunchReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer to a LaunchOrder: what runs now, or why the order was not followed."""

    instances: list[InstanceSpec] = []
    error: str = ""
