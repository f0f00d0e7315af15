"""The table of faults, in its order: what is broken, how, and in which cluster."""

from dataclasses import dataclass

from experiments.faults.actions import (
    AFTER_CANARY_S,
    Apply,
    break_busiest,
    break_connections,
    broken,
    damage_file,
    damage_model,
    delete,
    fill_disk,
    fill_stream,
    flip_bytes,
    half_open,
    hostile_forms,
    kill,
    kill_leader,
    kill_leader_again_and_again,
    lose_bus_leader,
    lose_nats,
    overload,
    poison,
    restart_all,
    send_invalid_messages,
    stop,
    stop_leader,
    take_lease,
    terminate,
    truncate,
)
from experiments.faults.memory_attacks import many_uploads, unfinished_bodies, unread_downloads
from experiments.faults.swarm import (
    NodeApply,
    Place,
    bus_leaders_node,
    cut_off,
    drain,
    last_node,
    lose_power,
    manager,
    schedulers_node,
    upgrade,
)
from experiments.faults.target import ClusterNeeds
from experiments.live_cluster import SUBJECTS
from shared.bus.subjects import stream_names

REQUESTS, OUTCOMES, CLAIMS = (f"{stream}-*/msgs/*.blk" for stream in ("REQUESTS", "OUTCOMES", "KV_claims"))
DESCRIPTION = "ARRIVALS-*/meta.inf"
USUAL, STANDBY = ClusterNeeds(), ClusterNeeds(options=("--standby",))
OWN_BUS, OWN_MODEL = ClusterNeeds(own_bus=True), ClusterNeeds(own_model=True)
WITH_KEYS = ClusterNeeds(options=("--auth",))
THREE_SERVERS = ClusterNeeds(bus_servers=3, environ={"DILASERVE_STREAM_REPLICAS": "3"})
WEIGHTS, TREES = "model.safetensors", "predictor/model.txt"


@dataclass(frozen=True, slots=True)
class Fault:
    """A row whose cluster is on this machine."""

    name: str
    apply: Apply
    needs: ClusterNeeds = USUAL
    has_form: bool = False  # whether each request of the load has a small form that is new

    @property
    def is_of_services(self) -> bool:
        """Whether it kills or stops services of a usual cluster, so that a long run may repeat it."""
        return self.needs == USUAL and self.name.startswith(("kill", "stop"))


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A row on a Swarm of three nodes."""

    name: str
    apply: NodeApply
    place: Place  # the node that it breaks, whose gateway the clients use first


FAULTS: list[Fault | NodeFault] = [
    Fault("kill gateway", kill("gateway")),
    Fault("kill scheduler", kill_leader),
    Fault("kill scheduler, with a standby", kill_leader, STANDBY),
    Fault("kill one worker", kill("worker")),
    Fault("end one worker in order (SIGTERM)", terminate("worker")),
    Fault("kill all workers", kill("worker", every=True)),
    Fault("kill predictor", kill("predictor")),
    Fault("kill reconfigurator", kill("reconfigurator")),
    Fault("kill NATS", kill("nats-server")),
    Fault("kill Postgres", kill("postgres")),
    Fault("kill scheduler and worker", kill("scheduler", "worker")),
    Fault("kill NATS and scheduler", kill("nats-server", "scheduler")),
    Fault("kill NATS and gateway", kill("nats-server", "gateway")),
    Fault("kill scheduler and gateway", kill("scheduler", "gateway")),
    Fault("kill the leading scheduler five times", kill_leader_again_and_again),
    Fault("kill every process, then start again", restart_all, OWN_BUS),
    Fault("stop gateway 10 s", stop("gateway")),
    Fault("stop scheduler 10 s", stop_leader),
    Fault("stop scheduler 10 s, with a standby", stop_leader, STANDBY),
    Fault("stop one worker 10 s", stop("worker")),
    Fault("stop all workers 10 s", stop("worker", every=True)),
    Fault("stop predictor 10 s", stop("predictor")),
    Fault("stop reconfigurator 10 s", stop("reconfigurator")),
    Fault("stop NATS 10 s", stop("nats-server")),
    Fault("stop Postgres 10 s", stop("postgres")),
    Fault("NATS down 20 s", lose_nats, OWN_BUS),
    Fault("the leader of three NATS servers down 20 s", lose_bus_leader, THREE_SERVERS),
    Fault("reset all NATS connections, 0.8 s undelivered", break_connections(0.8), OWN_BUS),
    Fault("reset all NATS connections, 3 s undelivered", break_connections(3.0), OWN_BUS),
    Fault("reset the scheduler's connection, 0.8 s undelivered", break_connections(0.8, "scheduler"), OWN_BUS),
    Fault("half-open connection of the scheduler", half_open, OWN_BUS),
    Fault("the disk of NATS and Postgres full 10 s", fill_disk, ClusterNeeds(disk_mb=1024)),
    Fault("8 bytes of the stream of requests flipped, NATS restarted", damage_file(REQUESTS, flip_bytes), OWN_BUS),
    Fault("half of the stream of requests cut off, NATS restarted", damage_file(REQUESTS, truncate), OWN_BUS),
    Fault("8 bytes of the stream of outcomes flipped, NATS restarted", damage_file(OUTCOMES, flip_bytes), OWN_BUS),
    Fault("8 bytes of the claims of keys flipped, NATS restarted", damage_file(CLAIMS, flip_bytes), OWN_BUS),
    Fault("8 bytes of a stream's description flipped, NATS restarted", damage_file(DESCRIPTION, flip_bytes), OWN_BUS),
    Fault("the stream of requests deleted", delete("REQUESTS-cell0")),
    Fault("each stream and bucket deleted, one after another", delete(*sorted(stream_names(SUBJECTS)))),
    Fault("a lease that no scheduler renews", take_lease),
    Fault("invalid messages on all subjects", send_invalid_messages, OWN_BUS),
    Fault("the stream of requests full 10 s", fill_stream("REQUESTS"), OWN_BUS),
    Fault("the stream of outcomes full 10 s", fill_stream("OUTCOMES"), OWN_BUS),
    Fault("8 bytes of the weights flipped, a worker killed", damage_model(WEIGHTS, flip_bytes, "worker"), OWN_MODEL),
    Fault("half of the weights cut off, a worker killed", damage_model(WEIGHTS, truncate, "worker"), OWN_MODEL),
    Fault("half of the step predictor cut off, it is killed", damage_model(TREES, truncate, "predictor"), OWN_MODEL),
    Fault("a worker computes NaN", break_busiest("worker"), broken("worker:nan")),
    Fault("a worker computes random tokens", break_busiest("worker", AFTER_CANARY_S), broken("worker:random")),
    Fault("an iteration hangs", break_busiest("worker"), broken("worker:hang")),
    Fault("one request raises an error in its workers", poison(1), broken("worker:poison-error")),
    Fault("one request crashes its workers", poison(1), broken("worker:poison-crash")),
    Fault("three requests crash their workers", poison(3), broken("worker:poison-crash")),
    Fault("one request hangs its workers", poison(1), broken("worker:poison-hang")),
    Fault("one request's predictions cannot be read", poison(1), broken("worker:poison-reading")),
    Fault("a worker's clock 1 h ahead", break_busiest("worker"), broken("worker:clock")),
    Fault("the gateway's clock 1 h ahead", break_busiest("gateway"), broken("gateway:clock")),
    Fault("the scheduler's clock 1 h ahead", break_busiest("scheduler"), broken("scheduler:clock")),
    Fault("the scheduler's clock 10 min behind", break_busiest("scheduler"), broken("scheduler:clock-behind")),
    Fault("500 more requests in 5 s", overload(120_000)),
    Fault("500 more requests in 5 s, policy fixed", overload(120_000), ClusterNeeds(options=("--policy", "fixed"))),
    Fault("500 more requests in 5 s with an SLO of 2 s, --shed", overload(2_000), ClusterNeeds(options=("--shed",))),
    Fault("12 hostile patterns and 6 large schemas of another key", hostile_forms, WITH_KEYS, has_form=True),
    Fault("300 bodies of 4 MiB that never end", unfinished_bodies),
    Fault("16 uploads of 63 MiB at once", many_uploads),
    Fault("16 downloads of 63 MiB that nobody reads", unread_downloads),
    NodeFault("Swarm: a worker's node loses its power", lose_power, last_node),
    NodeFault("Swarm: a worker's node is cut off, and joins again", cut_off, last_node),
    NodeFault("Swarm: a worker's node is drained", drain, last_node),
    NodeFault("Swarm: the node of the leading scheduler loses its power", lose_power, schedulers_node),
    NodeFault("Swarm: the node of the bus's leader loses its power", lose_power, bus_leaders_node),
    NodeFault("Swarm: upgrade, service by service", upgrade, manager),
]
