"""Notices instances that end although no plan stops them, as those of a lost node. Pure."""

from collections.abc import Collection

from shared.messages.launch import InstanceSpec


class LossWatch:
    """The instances lost since the last decision. One that never served does not count: its plan reports it."""

    def __init__(self) -> None:
        self.served: frozenset[InstanceSpec] = frozenset()
        self.lost: frozenset[InstanceSpec] = frozenset()

    def update(
        self, running: Collection[InstanceSpec], serving: Collection[InstanceSpec], stopped: Collection[InstanceSpec]
    ) -> bool:
        """Compare the instances with those of the last call; plans stopped `stopped`. Returns: whether any is lost."""
        self.lost |= self.served.difference(running, stopped)
        self.served = self.served.union(serving).intersection(running)
        return bool(self.lost)

    def decided(self) -> None:
        """Forget the losses: a decision has been made since."""
        self.lost = frozenset()
