"""Calls to a Docker Engine: in a thread, with its failures in the project's words."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from docker.errors import APIError, DockerException, ImageNotFound
from requests.exceptions import RequestException

from shared.errors import BadInput, RetryLater

T = TypeVar("T")
BAD_PARAMETER = 400
ANSWER_S = 30  # how long the engine may take to answer; a stop takes its grace longer


async def call_engine(call: Callable[[], T]) -> T:
    """Run a call of docker-py. Raises: BadInput if the engine says that the order is wrong, else RetryLater."""
    try:
        return await asyncio.to_thread(call)
    except ImageNotFound as error:
        raise BadInput(f"no image for workers: {error.explanation}", "worker_image") from error
    except APIError as error:
        if error.is_client_error() and error.status_code == BAD_PARAMETER:
            raise BadInput(f"the Docker Engine refused: {error.explanation}") from error
        raise RetryLater(f"the Docker Engine failed: {error.explanation or error}") from error
    except (DockerException, RequestException, OSError) as error:
        raise RetryLater(f"the Docker Engine does not answer: {error}") from error
