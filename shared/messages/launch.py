"""Instance specs, and launch orders from the reconfigurator to a node's supervisor."""

import enum
from typing import Annotated

import msgspec

NodeName = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$")]


class InstanceSpec(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The place of one instance, in the order of nodes and GPUs. Equal specs are the same instance."""

    node: NodeName
    gpus: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]  # GPU numbers on the node, ascending

    def __post_init__(self) -> None:
        if not self.gpus or list(self.gpus) != sorted(set(self.gpus)):
            raise ValueError(f"gpus must be ascending and not empty, got {self.gpus}")

    @property
    def tp(self) -> int:
        return len(self.gpus)

    @property
    def name(self) -> str:
        """The worker's name, one subject token: the last "-" ends the node's name, which may itself end with a number.
        The instance id adds six random hex digits."""
        return f"worker-{self.node.replace('.', '_')}-{'_'.join(map(str, self.gpus))}"


class LaunchAction(enum.StrEnum):
    START = "start"
    STOP = "stop"
    LIST = "list"


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Reconfigurator -> the supervisor of a node: start, stop or list worker processes.

    Subject: dilaserve.<cell>.launch.<node>. Request and reply; safe to repeat.
    """

    action: LaunchAction
    spec: InstanceSpec | None = None  # of `start` and `stop`
    grace_s: float = 0.0  # of `stop`: seconds before the process is killed


class LaunchReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The reply to a LaunchOrder: the running instances, or the error."""

    instances: list[InstanceSpec] = []
    error: str = ""
