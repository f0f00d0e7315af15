"""Whether the gateway can take requests, and if not, why."""

from services.gateway.bus_connection import BusConnection
from services.gateway.instances import Instances
from shared.errors import RetryLater


class Readiness:
    """Ready: connected to the bus, at least one ready instance or a plan under way to have one, not draining."""

    def __init__(self, link: BusConnection, instances: Instances) -> None:
        self._link = link
        self._instances = instances
        self.draining = False

    def check(self) -> None:
        """Raises: RetryLater with the reason when no request can be taken."""
        if self.draining:
            raise RetryLater("the gateway is shutting down")
        _ = self._link.bus
        if not self._instances.ready() and not self._instances.changing():
            raise RetryLater("no instance is ready")
