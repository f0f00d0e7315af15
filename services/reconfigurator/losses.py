"""Notices instances that end although no plan stops them, as those of a lost node. Pure."""

from collections.abc import Collection

from shared.messages.launch import InstanceSpec


class LossWatch:
    """The lost instances that no decision has considered. One that never served does not count: its plan reports it."""

    def __init__(self) -> None:
        self._served: frozenset[InstanceSpec] = frozenset()
        self.lost: frozenset[InstanceSpec] = frozenset()

    def update(
        self, running: Collection[InstanceSpec], serving: Collection[InstanceSpec], stopped: Collection[InstanceSpec]
    ) -> bool:
        """Compare the instances with those of the last call; plans stopped `stopped`. Returns: whether any is lost."""
        self.lost |= self._served.difference(running, stopped)
        self._served = self._served.union(serving).intersection(running)
        return bool(self.lost)

    def forget(self, lost: Collection[InstanceSpec]) -> None:
        """Forget the losses that a decision has considered."""
        self.lost = self.lost.difference(lost)
