"""The fixtures of the worker's tests."""

from tests.support.running_worker import registered, start_worker
