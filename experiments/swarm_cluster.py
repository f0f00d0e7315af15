"""The whole system on a Swarm of three nodes with a replicated bus, deployed as docs/deploy.md describes."""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from experiments.container_cluster import BASES, COMPOSE, build_images, compose_environ, run_command
from experiments.faults.accounts import Received
from experiments.faults.load import NextGateway
from experiments.swarm_nodes import SwarmNode, load_images
from shared.messages.requests import Outcome

STACK = "dilaserve"
CELL_NAME = "swarm"
PORT = 8000
READY_S = 400.0
READ_S = 10.0  # time after which a client asks another gateway
OUTCOMES = "outcomes"  # the service that logs them
BASE_IMAGES = ("NATS_IMAGE", "POSTGRES_IMAGE", "ENGINE_PROXY_IMAGE")


@dataclass(frozen=True, slots=True)
class SwarmCluster:
    """Node 1 is the manager; nodes 2 and 3 have a worker each, nodes 1 and 2 a scheduler, all a gateway."""

    nodes: Sequence[SwarmNode]
    environ: Mapping[str, str]

    def client(self, first: SwarmNode) -> httpx.AsyncClient:
        """A client of the gateways: it begins with that of node `first`, and goes to the next when one fails."""
        order = [first, *(node for node in self.nodes if node is not first)]
        gateways = NextGateway([f"http://{node.address}:{PORT}" for node in order])
        return httpx.AsyncClient(
            base_url="http://gateway", transport=gateways, timeout=httpx.Timeout(READ_S, connect=2.0)
        )

    def deploy(self) -> None:
        run_command([str(COMPOSE / "swarm.sh"), "deploy"], self.environ)

    def upgrade(self, tag: str) -> None:
        """Bring the system to the images with this tag, service by service."""
        run_command([str(COMPOSE / "swarm.sh"), "upgrade"], {**self.environ, "TAG": tag})

    def tag_images(self, tag: str) -> None:
        """Give every node its images under another tag, too."""
        for node in self.nodes:
            for image in images_of(node, self.environ):
                if image.startswith("dilaserve/"):
                    node.docker("tag", image, f"{image.rpartition(':')[0]}:{tag}")

    def wait_until_served(self, workers: Sequence[str]) -> None:
        """Wait until each gateway reports that it is ready, with a ready instance on each of these nodes and no other.

        Raises: RuntimeError after READY_S seconds."""
        deadline_s = time.monotonic() + READY_S
        for node in self.nodes:
            while (state := self._serving(node)) != sorted(workers):
                if time.monotonic() > deadline_s:
                    services = self.nodes[0].docker("service", "ls")
                    raise RuntimeError(f"not served within {READY_S:g} s; {node.name} reports {state}\n{services}")
                time.sleep(0.5)

    def plans(self, node: SwarmNode) -> list[dict[str, Any]]:
        """The reconfigurator's decisions by the gateway of a node, newest first."""
        reply = httpx.get(f"http://{node.address}:{PORT}/plans", trust_env=False).raise_for_status()
        found: list[dict[str, Any]] = reply.json()["data"]
        return found

    def last_logs(self, lines: int = 8) -> str:
        """The last lines of each container's log on the nodes that run."""
        found = list[str]()
        for node in self.nodes:
            with suppress(RuntimeError):
                for name in node.docker("ps", "--all", "--format", "{{.Names}}").split():
                    found += [f"{node.name} {name}", node.docker("logs", "--tail", str(lines), name)]
        return "\n".join(found)

    def _serving(self, node: SwarmNode) -> list[str] | str:
        """The nodes of the ready instances by the gateway of a node; a text if it is not ready."""
        try:
            reply = httpx.get(f"http://{node.address}:{PORT}/cluster", trust_env=False).raise_for_status()
        except httpx.HTTPError as error:
            return repr(error)
        view = reply.json()
        if not view["ready"]:
            return str(view["reason"])
        ready = (each["name"] for each in view["nodes"] for i in each["instances"] if i["state"] == "ready")
        return sorted(ready)

    @contextmanager
    def outcomes(self, on: SwarmNode) -> Iterator[Received]:
        """Log the outcomes with a service on a node during the body, which has them when it has ended."""
        received, source = Received(list), Path(__file__).with_name("outcome_log.py").read_text("utf-8")
        password, manager = self.environ["NATS_GATEWAY_PASSWORD"], self.nodes[0]
        url = ",".join(f"nats://gateway:{password}@{server}:4222" for server in ("nats", "nats-2", "nats-3"))
        place = ["--network", f"{STACK}_cell", "--endpoint-mode", "dnsrr"]
        place += ["--constraint", f"node.hostname == {on.name}"]
        environ = ["--env", f"DILASERVE_NATS_URL={url}", "--env", f"DILASERVE_CELL={CELL_NAME}"]
        options, image = ["--no-resolve-image", "--no-healthcheck"], f"dilaserve/gateway:{self.environ['TAG']}"
        command = [image, "python", "-c", source]
        manager.docker("service", "create", "--quiet", "--name", OUTCOMES, *place, *environ, *options, *command)
        try:
            yield received
            for container in on.docker("ps", "--all", "--quiet", "--filter", f"name={OUTCOMES}").split():
                for line in on.docker("logs", container).splitlines():
                    if line.startswith("{"):
                        outcome = msgspec.json.decode(line, type=Outcome)
                        received[outcome.request_id].append(outcome)
        finally:
            manager.docker("service", "rm", OUTCOMES)


@contextmanager
def three_node_cluster(nodes: Sequence[SwarmNode], *, build: bool) -> Iterator[SwarmCluster]:
    """Copy its images to each node, and deploy; `swarm_nodes` removes the nodes with the stack.

    Raises: CannotRun; RuntimeError if a command fails or the system is not ready in time.
    """
    variables = compose_environ()
    if build:
        build_images(variables)
    environ = swarm_environ(variables, nodes)
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda node: load_images(node, images_of(node, environ)), nodes))
    cluster = SwarmCluster(nodes, environ)
    cluster.deploy()
    cluster.wait_until_served([node.name for node in nodes[1:]])
    yield cluster


def swarm_environ(variables: Mapping[str, str], nodes: Sequence[SwarmNode]) -> dict[str, str]:
    """The variables of the deployment on these nodes, from those for this machine's engine."""
    manager, second, third = nodes
    return {
        **variables,
        "DOCKER_HOST": f"unix://{manager.socket}",
        "ENGINE_SOCKET": str(manager.socket),
        "STACK": STACK,
        "CELL": CELL_NAME,
        "IMAGES": "dilaserve",
        "NODE": manager.name,
        "NODE_2": second.name,
        "NODE_3": third.name,
        "NATS_ROUTE_PASSWORD": f"r{secrets.token_hex(16)}",
        "NODES": f"{second.name}:1,{third.name}:1",
        "SCHEDULER_PLACE": f"node.hostname != {third.name}",
        "PREDICTOR_PLACE": "node.role == manager",
        "AUTH": "false",
        "PORT": str(PORT),
        "THRESHOLDS": "0.9",
        "CACHE": "dual",
        "TP_DEGREES": "1",
        "INTERVAL_S": "300",
        "WINDOW_S": "300",
    }


def images_of(node: SwarmNode, environ: Mapping[str, str]) -> list[str]:
    """The images that a node needs, by the places of the services in `swarm_environ`."""
    services = {1: ["reconfigurator", "predictor", "scheduler"], 2: ["scheduler", "worker"], 3: ["worker"]}
    bases = BASE_IMAGES if node.number == 1 else BASE_IMAGES[:1]
    own = [f"dilaserve/{service}:{environ['TAG']}" for service in ("gateway", *services[node.number])]
    return [*(environ.get(base, BASES[base]) for base in bases), *own]
