"""Launchers behind a Docker Engine: calls run in threads, and their failures become the project's errors."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from typing import TypeVar

from docker import DockerClient
from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from services.reconfigurator.execution.launchers.container_spec import WorkerTemplate, read_spec
from services.reconfigurator.nodes import Node
from shared.errors import BadInput, RetryLater
from shared.messages.launch import InstanceSpec

T = TypeVar("T")
BAD_PARAMETER = 400  # HTTP status
TIMEOUT_S = 30  # time that the engine may take to answer; a stop may take its grace longer


class EngineLauncher(ABC):
    """See Launcher."""

    def __init__(self, template: WorkerTemplate, nodes: Collection[Node]) -> None:
        self._template = template
        self._nodes = {node.name for node in nodes}

    @cached_property
    def _engine(self) -> DockerClient:
        """Connects, so use it only within `call_engine`."""
        return DockerClient.from_env(timeout=TIMEOUT_S)

    async def nodes(self) -> Collection[str]:
        return await call_engine(self._available_nodes)

    async def running(self) -> Collection[InstanceSpec]:
        labels = await call_engine(self._running_labels)
        return [spec for one in labels if (spec := read_spec(one)) is not None]

    async def start(self, spec: InstanceSpec) -> None:
        await call_engine(lambda: self._start(spec))

    async def stop(self, spec: InstanceSpec, grace_s: float) -> None:
        await call_engine(lambda: self._stop(spec, grace_s))

    async def close(self) -> None:
        if "_engine" in vars(self):
            self._engine.close()

    @abstractmethod
    def _available_nodes(self) -> Collection[str]: ...

    @abstractmethod
    def _running_labels(self) -> Iterable[Mapping[str, str]]:
        """The labels of the instances that exist."""

    @abstractmethod
    def _start(self, spec: InstanceSpec) -> None: ...

    @abstractmethod
    def _stop(self, spec: InstanceSpec, grace_s: float) -> None: ...


async def call_engine(call: Callable[[], T]) -> T:
    """Run a call of docker-py in a thread. Raises: BadInput if the engine rejects a parameter, else RetryLater."""
    try:
        return await asyncio.to_thread(call)
    except ImageNotFound as error:
        raise BadInput(f"no image for workers: {error.explanation}", "worker_image") from error
    except APIError as error:
        if error.status_code == BAD_PARAMETER:
            raise BadInput(f"the Docker Engine refused: {error.explanation}") from error
        raise RetryLater(f"the Docker Engine failed: {error.explanation or error}") from error
    except (DockerException, RequestException, OSError) as error:
        raise RetryLater(f"the Docker Engine does not answer: {error}") from error
