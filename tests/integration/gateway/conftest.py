"""The fixtures of the gateway's tests."""

from tests.support.gateway import gateway, lonely_gateway, scheduler, settings, shared, text

__all__ = ["gateway", "lonely_gateway", "scheduler", "settings", "shared", "text"]
