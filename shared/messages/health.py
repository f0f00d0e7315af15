"""The state of a service's process, for the console."""

import msgspec

from shared.messages.numbers import Finite

HEALTH_S = 2.0  # interval of messages


class ServiceHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A service -> gateway. Subject: dilaserve.<cell>.health.<service>. Core NATS, every HEALTH_S, and at the end."""

    process: str  # host and process id; unique
    version: str = ""  # of DiLaServe
    uptime_s: Finite = 0.0
    memory_bytes: int = 0  # resident
    has_ended: bool = False  # this is its last message
