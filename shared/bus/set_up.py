"""Creates and updates the streams and buckets of a cell."""

import structlog
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, ObjectStoreConfig, StreamConfig
from nats.js.errors import APIError, BadRequestError, ServerError

from shared.bus.subjects import Subjects, buckets, object_stores, streams
from shared.errors import BadInput

log = structlog.get_logger(__name__)

Config = StreamConfig | KeyValueConfig | ObjectStoreConfig
NO_ROOM = 10047  # the server's error code for a limit in bytes that it cannot reserve
NO_CLUSTER = 10074  # the server's error code for several replicas without a cluster


async def set_up(js: JetStreamContext, subjects: Subjects, disk_bytes: int, replicas: int) -> None:
    """Create every stream and bucket of the cell, or update its limit and its number of replicas.

    Raises: BadInput for several replicas on a server without a cluster; bus errors.
    """
    configs: list[Config] = [each.evolve(num_replicas=replicas) for each in streams(subjects, disk_bytes)]
    configs += [each.evolve(replicas=replicas) for each in buckets(subjects, disk_bytes)]
    configs += [each.evolve(replicas=replicas) for each in object_stores(subjects, disk_bytes)]
    try:
        for config in configs:
            await _set_up_limited(js, config)
    except APIError as error:
        if error.err_code != NO_CLUSTER:
            raise
        message = f"DILASERVE_STREAM_REPLICAS={replicas}: the NATS server is in no cluster; accepted without one: 1"
        raise BadInput(message, "stream_replicas") from None


async def _set_up(js: JetStreamContext, config: Config) -> None:
    """Create a stream or bucket, or update one that exists with other options. Those of a bucket stay as they are but
    for its limit and its number of replicas."""
    try:
        match config:
            case StreamConfig():
                await js.add_stream(config)
            case KeyValueConfig():
                await js.create_key_value(config)
            case ObjectStoreConfig():
                await js.create_object_store(str(config.bucket), config)
    except BadRequestError:  # it exists
        if isinstance(config, StreamConfig):
            await js.update_stream(config)
            return
        kind = "KV" if isinstance(config, KeyValueConfig) else "OBJ"
        existing = (await js.stream_info(f"{kind}_{config.bucket}")).config
        if (existing.max_bytes, existing.num_replicas) != (config.max_bytes, config.replicas):
            await js.update_stream(existing.evolve(max_bytes=config.max_bytes, num_replicas=config.replicas))


async def _set_up_limited(js: JetStreamContext, config: Config) -> None:
    """Set up a stream or bucket, without a limit if the server has too little room: the cell then serves as before."""
    try:
        await _set_up(js, config)
    except ServerError as error:
        if error.err_code != NO_ROOM:
            raise
        name = config.name if isinstance(config, StreamConfig) else config.bucket
        fix = "raise max_file_store of NATS, or lower DILASERVE_MAX_STORED_BYTES"
        log.warning("NATS cannot reserve the bytes of a stream; it has no limit", stream=name, fix=fix)
        await _set_up(js, config.evolve(max_bytes=-1))
