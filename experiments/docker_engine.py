"""A Docker Engine for experiments and tests: the running one, or one started here and stopped at the end."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from experiments.background import background_program

START_S = 60.0


class CannotRun(Exception):  # noqa: N818  (a fact of the machine)
    """No Docker Engine or no image is available; the message has the reason."""


@contextmanager
def docker_engine() -> Iterator[None]:
    """Provide an engine during the body. Raises: CannotRun."""
    if _answers():
        yield
        return
    program = shutil.which("dockerd")
    if program is None:
        raise CannotRun("no Docker Engine is installed (apt install docker.io)")
    if os.geteuid() != 0:
        raise CannotRun("no Docker Engine runs, and only root can start one")
    with ExitStack() as stack:
        try:
            stack.enter_context(background_program([program], _answers, START_S, new_session=True))
        except RuntimeError as error:
            last_line = (str(error).splitlines() or ["no message"])[-1]
            raise CannotRun(f"the Docker Engine does not start: {last_line}") from error
        yield


@contextmanager
def swarm() -> Iterator[None]:
    """The engine as a Swarm manager: of its current Swarm, or of a new one of this node, left at the end."""
    if docker("info", "--format", "{{.Swarm.LocalNodeState}}").strip() == "active":
        yield
        return
    docker("swarm", "init", "--advertise-addr", "127.0.0.1")
    try:
        yield
    finally:
        docker("swarm", "leave", "--force")


def docker(*arguments: str) -> str:
    """Run a docker command. Returns: its output. Raises: RuntimeError with its error message if it fails."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)  # noqa: S607
    if done.returncode:
        raise RuntimeError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _answers() -> bool:
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    return bool(shutil.which("docker")) and subprocess.run(command, capture_output=True, check=False).returncode == 0
