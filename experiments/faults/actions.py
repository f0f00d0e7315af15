"""The faults of a cluster on this machine: each is a short function, which repairs what does not repair itself."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
from nats.js.errors import KeyNotFoundError

from dilaserve.stack.up_options import DEMO_MODEL
from experiments.faults.broken_service.sitecustomize import POISON_SEED
from experiments.faults.bus_servers import leaders
from experiments.faults.load import open_loop, send
from experiments.faults.target import ClusterNeeds, LocalTarget, processes_of
from experiments.live_cluster import SUBJECTS, chat_body, connected, held_out_requests
from services.scheduler.io.lease import KEY as LEASE_KEY

PROMPTS = [row.prompt for row in held_out_requests()[:20]]
STOP_S = 10.0
DOWN_S = 20.0  # for which a lost machine is down
KILLS = 5
BURST = 500  # requests of an overload: about three times what two instances serve
BURST_S = 5.0  # seconds in which they are sent
AFTER_CANARY_S = 4.0  # delay of a fault after its usual start: a canary has just run, the next one is not due
BROKEN_SERVICE = Path(__file__).parent / "broken_service"
PAGE_BYTES = 1 << 16
INVALID = (b"", b"\xc1", b"{", b"{}", b'{"request_id": 3}', b'{"request_id": "none", "epoch": -1}', b"[" * 100_000)

Apply = Callable[[LocalTarget], Awaitable[None]]
"""Ends when the fault ends."""


def busiest_first(name: str) -> list[psutil.Process]:
    """The processes of a name by CPU time, highest first: at this load one of two workers gets nearly all requests."""
    return sorted(processes_of(name), key=lambda process: -process.cpu_times().user)


def kill(*names: str, every: bool = False) -> Apply:
    """SIGKILL the busiest process, or `every` process, of each name."""

    async def apply(_target: LocalTarget) -> None:
        for name in names:
            for process in busiest_first(name)[: None if every else 1]:
                process.kill()

    return apply


def stop(name: str, *, every: bool = False) -> Apply:
    """SIGSTOP for STOP_S."""

    async def apply(_target: LocalTarget) -> None:
        processes = busiest_first(name)[: None if every else 1]
        for process in processes:
            process.suspend()
        await asyncio.sleep(STOP_S)
        for process in processes:
            process.resume()

    return apply


async def kill_leader(target: LocalTarget) -> None:
    """SIGKILL the scheduler that leads."""
    (await target.leader()).kill()


async def stop_leader(target: LocalTarget) -> None:
    """SIGSTOP the scheduler that leads for STOP_S."""
    leader = await target.leader()
    leader.suspend()
    await asyncio.sleep(STOP_S)
    leader.resume()


def terminate(name: str) -> Apply:
    """SIGTERM the busiest process of a name, which then shuts down."""

    async def apply(_target: LocalTarget) -> None:
        busiest_first(name)[0].terminate()

    return apply


def break_busiest(name: str, wait_s: float = 0.0) -> Apply:
    """Break the busiest process of a service from now on, as DILASERVE_BROKEN asks."""

    async def apply(_target: LocalTarget) -> None:
        await asyncio.sleep(wait_s)
        busiest_first(name)[0].send_signal(signal.SIGUSR1)

    return apply


def poison(count: int) -> Apply:
    """Send `count` requests that make the instances that run them fail, and wait for all replies."""

    async def apply(target: LocalTarget) -> None:
        async with target.client() as http:

            async def send() -> None:
                body = chat_body("2+2?", max_tokens=16, seed=POISON_SEED)
                if (await http.post("/v1/chat/completions", json=body)).is_success:
                    raise RuntimeError("the request that should end its instances was served")

            await asyncio.gather(*(send() for _ in range(count)))

    return apply


def break_connections(silent_s: float, service: str = "") -> Apply:
    """Drop what NATS sends for `silent_s`, then reset the connections: all, or those of one service."""

    async def apply(target: LocalTarget) -> None:
        ports = target.ports_of(service) if service else None
        target.proxy.silence(ports)
        await asyncio.sleep(silent_s)
        target.proxy.reset(ports)

    return apply


async def half_open(target: LocalTarget) -> None:
    """Drop what NATS sends on the scheduler's connection, which stays open."""
    target.proxy.silence(target.ports_of("scheduler"))


async def fill_disk(target: LocalTarget) -> None:
    """Fill the disk of NATS and Postgres for STOP_S; then free it."""
    filler = target.directory / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(PAGE_BYTES)):
            pass
    await asyncio.sleep(STOP_S)
    filler.unlink()


def damage_file(pattern: str, damage: Callable[[Path], None]) -> Apply:
    """Damage the newest file of a stream, while NATS restarts."""

    async def apply(target: LocalTarget) -> None:
        def damage_newest() -> None:
            files = target.directory.glob(f"store/**/streams/{pattern}")
            damage(max(files, key=lambda path: path.stat().st_mtime))

        await target.restart_nats(damage_newest)

    return apply


def damage_model(name: str, damage: Callable[[Path], None], service: str) -> Apply:
    """Damage a file of the model, and kill the busiest process of a service, which reads it again."""

    async def apply(target: LocalTarget) -> None:
        damage(target.directory / DEMO_MODEL.name / name)
        busiest_first(service)[0].kill()

    return apply


def flip_bytes(path: Path, from_end: int = 1000, count: int = 8) -> None:
    """Invert bytes `from_end` bytes before the end of a file: among the messages that were stored last."""
    data = bytearray(path.read_bytes())
    start = max(0, len(data) - from_end)
    data[start : start + count] = bytes(byte ^ 0xFF for byte in data[start : start + count])
    path.write_bytes(data)


def truncate(path: Path) -> None:
    """Drop the second half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def delete(*streams: str) -> Apply:
    """Delete these streams, each once a request is served that was sent after the deletion of the one before."""

    async def apply(target: LocalTarget) -> None:
        async with connected(target.nats_url) as bus, target.client() as http:
            for number, stream in enumerate(streams):
                if number:
                    target.burst.append(await send(http, PROMPTS[number % len(PROMPTS)]))
                await bus.js.delete_stream(stream)

    return apply


async def take_lease(target: LocalTarget) -> None:
    """Write into the lease what no scheduler renews, and have it not expire."""
    async with connected(target.nats_url) as bus:
        stream = f"KV_{bus.subjects.leases_bucket}"
        await bus.js.update_stream((await bus.js.stream_info(stream)).config.evolve(max_age=0))
        await (await bus.bucket(bus.subjects.leases_bucket)).put(LEASE_KEY, b"nobody")


async def hostile_forms(target: LocalTarget) -> None:
    """Send twelve patterns and six schemas that are costly to compile, with another API key; wait for all replies."""
    forms: list[dict[str, object]] = [{"regex": f"(a|b)*a(a|b){{{number}}}"} for number in range(30, 42)]
    for number in range(6):
        properties = {"a": {"type": "string", "maxLength": 200_000 + number}}
        forms.append({"guided_json": {"type": "object", "properties": properties}})
    async with target.client() as http:
        http.headers["Authorization"] = f"Bearer {await target.new_key()}"
        bodies = [chat_body("2+2?", max_tokens=16, **form) for form in forms]
        await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for body in bodies))


def fill_stream(kind: str) -> Apply:
    """Make a stream refuse new messages for STOP_S."""

    async def apply(target: LocalTarget) -> None:
        async with connected(target.nats_url) as bus:
            config = (await bus.js.stream_info(bus.subjects.stream(kind))).config
            await bus.js.update_stream(config.evolve(max_msgs=1, max_bytes=1))
            await asyncio.sleep(STOP_S)
            await bus.js.update_stream(config)

    return apply


async def send_invalid_messages(target: LocalTarget) -> None:
    """Publish messages that cannot be read, or have impossible values, on every subject that a service receives."""
    async with connected(target.nats_url) as bus:
        subjects = bus.subjects
        instances = await (await bus.bucket(subjects.instances_bucket)).keys()
        of_instances = [
            each(name) for each in (subjects.steps, subjects.step_results, subjects.control) for name in instances
        ]
        of_requests = [
            each("none") for each in (subjects.cancel, subjects.progress, subjects.checkpoints, subjects.outcomes)
        ]
        for subject in (subjects.requests, subjects.arrivals, subjects.predict, *of_instances, *of_requests):
            for content in INVALID:
                await bus.nc.publish(subject, content)
        await bus.nc.flush()


async def kill_leader_again_and_again(target: LocalTarget) -> None:
    """SIGKILL the leading scheduler KILLS times, each time as soon as one leads."""
    kills = 0
    while kills < KILLS:
        with suppress(psutil.NoSuchProcess, KeyNotFoundError):  # the one before is dead, and its lease may have expired
            (await target.leader()).kill()
            kills += 1
        await asyncio.sleep(0.1)


async def lose_nats(target: LocalTarget) -> None:
    """SIGKILL NATS, and start it after DOWN_S."""
    await target.restart_nats(after_s=DOWN_S)


async def lose_bus_leader(target: LocalTarget) -> None:
    """SIGKILL the server that leads the stream of requests, and start it after DOWN_S."""
    assert target.servers is not None, "the row has servers of its own"
    leader = (await leaders(target.nats_url))[SUBJECTS.stream("REQUESTS")]
    target.servers.kill(leader)
    await asyncio.sleep(DOWN_S)
    target.servers.start(leader)


def overload(slo_ms: int) -> Apply:
    """Send BURST more requests in BURST_S, each with this SLO."""

    async def apply(target: LocalTarget) -> None:
        async with target.client() as http:
            target.burst.extend(await open_loop(http, PROMPTS, BURST, BURST / BURST_S, slo_ms=slo_ms))

    return apply


async def restart_all(target: LocalTarget) -> None:
    """SIGKILL every process, then start all on the same data."""
    await target.restart_all()


def broken(how: str) -> ClusterNeeds:
    """A cluster with a service that breaks: see broken_service."""
    path = os.pathsep.join([str(BROKEN_SERVICE), os.environ.get("PYTHONPATH", "")])
    return ClusterNeeds(environ={"PYTHONPATH": path, "DILASERVE_BROKEN": how})
