"""Launchers behind a Docker Engine: calls run in threads, and their failures become the project's errors."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import cached_property, wraps
from typing import Any, ParamSpec, TypeVar

from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from services.reconfigurator.execution.launchers.container_spec import WorkerTemplate
from shared.errors import BadInput, RetryLater

P = ParamSpec("P")
T = TypeVar("T")
BAD_PARAMETER = 400  # HTTP status
TIMEOUT_S = 30  # time that the engine may take to answer; a stop may take its grace longer


class EngineLauncher:
    """See Launcher."""

    def __init__(self, template: WorkerTemplate, nodes: Collection[str]) -> None:
        self._template = template
        self._settings = template.settings
        self._nodes = set(nodes)

    @cached_property
    def _engine(self) -> DockerClient:
        """Connects, so use it only within an `engine_call`."""
        return DockerClient.from_env(timeout=TIMEOUT_S)

    async def close(self) -> None:
        if "_engine" in vars(self):
            self._engine.close()


def engine_call(method: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run a method that calls docker-py in a thread. Raises: BadInput if the engine rejects a parameter, else
    RetryLater."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(method, *args, **kwargs)
        except ImageNotFound as error:
            raise BadInput(f"no image for workers: {error.explanation}", "worker_image") from error
        except APIError as error:
            if error.status_code == BAD_PARAMETER:
                raise BadInput(f"the Docker Engine refused: {error.explanation}") from error
            raise RetryLater(f"the Docker Engine failed: {error.explanation or error}") from error
        except (DockerException, RequestException, OSError) as error:
            raise RetryLater(f"the Docker Engine does not answer: {error}") from error

    return call
