"""Several nodes of a Docker Swarm on one machine: an engine for each, with a host name and a network stack of its own.

The nodes are joined by a bridge. A node can lose its power, or its cable. Needs root.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from experiments.docker_engine import CannotRun, docker

BRIDGE = "dilaserve-nodes"
BETWEEN = ["FORWARD", "--in-interface", BRIDGE, "--out-interface", BRIDGE, "--jump", "ACCEPT"]  # its iptables rule
PREFIX = f"{BRIDGE}-"  # of the names of temporary directories
NETWORK = "10.93.71"  # /24; the nodes' own networks are 172.16.0.0/12 and 10.0.0.0/16
PROGRAMS = ("dockerd", "ip", "iptables", "mount", "nsenter", "unshare")
MEMORY_BYTES = 12 << 30  # for the files of three nodes, if the machine has a third more to spare
START_S = 60.0


@dataclass(slots=True, eq=False)
class SwarmNode:
    """One node: its engine's files are below `directory`."""

    number: int  # from 1; the first is the manager
    directory: Path
    _engine: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        return f"{NETWORK}.{self.number}"

    @property
    def socket(self) -> Path:
        return self.directory / "engine.sock"

    @property
    def _namespace(self) -> str:
        return f"dilaserve-{self.name}"

    @property
    def _cable(self) -> str:
        return f"dlsv-{self.number}"

    def docker(self, *arguments: str) -> str:
        """Run a docker command on this node. Raises: RuntimeError with its error message if it fails."""
        return docker("--host", f"unix://{self.socket}", *arguments)

    def connect(self) -> None:
        """Create the node's network stack, and connect it to the bridge. It has no way out, so that the engine finds at
        once that it reaches no registry."""
        _run("ip", "netns", "add", self._namespace)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self._namespace)
        _run("ip", "link", "set", self._cable, "master", BRIDGE, "up")
        _run("ip", "-n", self._namespace, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _run("ip", "-n", self._namespace, "link", "set", device, "up")

    def start(self) -> None:
        """Start the engine, and with it the containers that the Swarm had on this node."""
        self.join()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.socket.with_suffix(".pid").unlink(missing_ok=True)
        files = {"data-root": "data", "exec-root": "exec", "pidfile": "engine.pid"}
        options = [f"--{option}={self.directory / file}" for option, file in files.items()]
        engine = ["dockerd", *options, "--containerd=", f"--host=unix://{self.socket}"]
        # not `ip netns exec`, which would hide the mounts of the control groups
        inside = ["nsenter", f"--net=/run/netns/{self._namespace}", "unshare", "--uts", "sh", "-c"]
        with (self.directory / "log").open("ab") as log:
            command = [*inside, f'hostname {self.name}; exec "$@"', "sh", *engine]
            self._engine = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + START_S
        while True:
            with suppress(RuntimeError):
                self.docker("version")
                return
            if time.monotonic() > deadline_s:
                raise CannotRun(f"the engine of {self.name} does not start: {_last_line(self.directory / 'log')}")
            time.sleep(0.2)

    def cut(self) -> None:
        """Unplug the node from the network."""
        _run("ip", "link", "set", self._cable, "down")

    def join(self) -> None:
        """Plug it in again."""
        _run("ip", "link", "set", self._cable, "up")

    def kill(self) -> None:
        """End the engine and all containers at once, as a loss of power: nobody receives a reply any more."""
        self.cut()
        self._end_processes()

    def remove(self) -> None:
        """End the node, and remove its network and its mounts."""
        self._end_processes()
        _unmount(self.directory)
        _try("ip", "netns", "delete", self._namespace)
        _try("ip", "link", "delete", self._cable)

    def _end_processes(self) -> None:
        _end_processes(self.directory)
        if self._engine is not None:
            self._engine.wait()


@contextmanager
def swarm_nodes(count: int) -> Iterator[Sequence[SwarmNode]]:
    """A Swarm of `count` nodes during the body, of which the first is the manager. Raises: CannotRun.

    Their files are below the directory that the variable SWARM_NODES names, and stay there; else they are removed,
    which takes minutes if they are not in memory.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise CannotRun(f"not installed: {', '.join(missing)} (apt install docker.io iproute2 iptables)")
    if os.geteuid() != 0:
        raise CannotRun("only root can start several engines")
    with ExitStack() as stack:
        stack.enter_context(only_run())
        directory = os.environ.get("SWARM_NODES") or stack.enter_context(_new_directory())
        stack.enter_context(_bridge())
        nodes = [SwarmNode(number, Path(directory, str(number)).resolve()) for number in range(1, count + 1)]
        for node in nodes:
            stack.callback(node.remove)
            node.connect()
        with ThreadPoolExecutor() as threads:
            list(threads.map(SwarmNode.start, nodes))
        _form_swarm(nodes)
        yield nodes


def load_images(node: SwarmNode, images: Sequence[str]) -> None:
    """Copy images of this machine's engine to a node, except those that it has. Raises: RuntimeError."""
    identity = "{{.Id}}"
    missing = []
    for image in images:
        try:
            known = node.docker("image", "inspect", "--format", identity, image)
        except RuntimeError:
            known = ""
        if known != docker("image", "inspect", "--format", identity, image):
            missing.append(image)
    if not missing:
        return
    with subprocess.Popen(["docker", "save", *missing], stdout=subprocess.PIPE) as save:  # noqa: S607
        load = ["docker", "--host", f"unix://{node.socket}", "load", "--quiet"]
        done = subprocess.run(load, stdin=save.stdout, capture_output=True, text=True, check=False)
    if save.returncode or done.returncode:
        raise RuntimeError(f"the images cannot be copied to {node.name}: {done.stderr.strip()}")


def _form_swarm(nodes: Sequence[SwarmNode]) -> None:
    """Join the nodes, which leave the Swarm of an earlier run."""
    for node in nodes:
        with suppress(RuntimeError):
            node.docker("swarm", "leave", "--force")
    manager, *others = nodes
    manager.docker("swarm", "init", "--advertise-addr", manager.address)
    token = manager.docker("swarm", "join-token", "--quiet", "worker").strip()
    for node in others:
        node.docker("swarm", "join", "--token", token, f"{manager.address}:2377")


@contextmanager
def only_run() -> Iterator[None]:
    """Hold a lock during the body, and remove at its start what a killed run has left: engines with their containers,
    mounts, namespaces and the bridge. Raises: CannotRun if another run holds the lock."""
    parent = Path(tempfile.gettempdir())
    with Path(parent, f"{PREFIX}lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system releases that of a killed process
        except BlockingIOError:
            raise CannotRun("another run on this machine has nodes") from None
        left = [path for path in parent.glob(f"{PREFIX}*") if path.is_dir()]
        kept = Path(os.environ["SWARM_NODES"]).resolve().glob("[0-9]") if "SWARM_NODES" in os.environ else ()
        for directory in [*left, *kept]:  # of the kept files only those of nodes: other programs may have the rest
            _end_processes(directory)
            _unmount(directory)
        for directory in left:
            shutil.rmtree(directory)
        for namespace in Path("/run/netns").glob("dilaserve-node-*"):
            _try("ip", "netns", "delete", namespace.name)
            _try("ip", "link", "delete", f"dlsv-{namespace.name.rpartition('-')[2]}")  # which the kernel removes later
        _remove_bridge()
        yield


def _end_processes(directory: Path) -> None:
    """End the engines, whose arguments name files below the directory, and the containers, which are below them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):
            if any(f"{directory}/" in argument for argument in process.cmdline()):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
    for process in found.values():
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(list(found.values()), timeout=START_S)


def _unmount(directory: Path) -> None:
    """Unmount all that is mounted at the directory and below it."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if f"{mount}/".startswith(f"{directory}/")), reverse=True):
        _try("umount", "--lazy", mount)


@contextmanager
def _new_directory() -> Iterator[str]:
    """A temporary directory, in memory if there is enough."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as directory:
        if psutil.virtual_memory().available * 3 > MEMORY_BYTES * 4:
            _run("mount", "--types", "tmpfs", "--options", f"size={MEMORY_BYTES}", "tmpfs", directory)
        try:
            yield directory
        finally:
            _try("umount", "--lazy", directory)


@contextmanager
def _bridge() -> Iterator[None]:
    """The bridge between the nodes, with an address of this machine, which sends the load."""
    _run("ip", "link", "add", BRIDGE, "type", "bridge")
    try:
        _run("ip", "address", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        _run("ip", "link", "set", BRIDGE, "up")
        _run("iptables", "--wait", "--insert", *BETWEEN)  # an engine on this machine forwards nothing else
        yield
    finally:
        _remove_bridge()


def _remove_bridge() -> None:
    _try("iptables", "--wait", "--delete", *BETWEEN)
    _try("ip", "link", "delete", BRIDGE)


def _run(*command: str) -> None:
    """Raises: CannotRun with the error message if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotRun(f"{' '.join(command)}: {done.stderr.strip()}")


def _try(*command: str) -> None:
    """Run a command that may find nothing to do."""
    subprocess.run(command, capture_output=True, check=False)


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["no message"])[-1]
