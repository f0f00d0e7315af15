"""Creates and updates the streams and buckets of a cell."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import structlog
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, ObjectStoreConfig, StreamConfig
from nats.js.errors import APIError, BadRequestError, ServerError

from shared.bus.subjects import Subjects, buckets, object_stores, streams
from shared.errors import BadInput

log = structlog.get_logger(__name__)

C = TypeVar("C", StreamConfig, KeyValueConfig, ObjectStoreConfig)
NO_ROOM = 10047  # the server's error code for a limit in bytes that it cannot reserve
NO_CLUSTER = 10074  # the server's error code for several replicas without a cluster


async def set_up(js: JetStreamContext, subjects: Subjects, disk_bytes: int, replicas: int) -> None:
    """Create every stream and bucket of the cell, or update its limit and its number of replicas.

    Raises: BadInput for several replicas on a server without a cluster; bus errors.
    """
    try:
        for stream in streams(subjects, disk_bytes):
            await _limited(stream.evolve(num_replicas=replicas), partial(_set_up_stream, js))
        for bucket in buckets(subjects, disk_bytes):
            await _limited(bucket.evolve(replicas=replicas), partial(_set_up_bucket, js))
        for store in object_stores(subjects, disk_bytes):
            await _limited(store.evolve(replicas=replicas), partial(_set_up_store, js))
    except APIError as error:
        if error.err_code != NO_CLUSTER:
            raise
        message = f"DILASERVE_STREAM_REPLICAS={replicas}: the NATS server is in no cluster; accepted without one: 1"
        raise BadInput(message, "stream_replicas") from None


async def _set_up_stream(js: JetStreamContext, config: StreamConfig) -> None:
    try:
        await js.add_stream(config)
    except BadRequestError:  # it exists with other options
        await js.update_stream(config)


async def _set_up_bucket(js: JetStreamContext, config: KeyValueConfig) -> None:
    try:
        await js.create_key_value(config)
    except BadRequestError:
        await _update(js, f"KV_{config.bucket}", config)


async def _set_up_store(js: JetStreamContext, config: ObjectStoreConfig) -> None:
    try:
        await js.create_object_store(str(config.bucket), config)
    except BadRequestError:
        await _update(js, f"OBJ_{config.bucket}", config)


async def _update(js: JetStreamContext, stream: str, config: KeyValueConfig | ObjectStoreConfig) -> None:
    """The other options of an existing bucket stay as they are."""
    existing = (await js.stream_info(stream)).config
    if (existing.max_bytes, existing.num_replicas) != (config.max_bytes, config.replicas):
        await js.update_stream(existing.evolve(max_bytes=config.max_bytes, num_replicas=config.replicas))


async def _limited(config: C, create: Callable[[C], Awaitable[None]]) -> None:
    """Create a stream or bucket, without a limit if the server has too little room: the cell then serves as before."""
    try:
        await create(config)
    except ServerError as error:
        if error.err_code != NO_ROOM:
            raise
        name = config.name if isinstance(config, StreamConfig) else config.bucket
        fix = "raise max_file_store of NATS, or lower DILASERVE_MAX_STORED_BYTES"
        log.warning("NATS cannot reserve the bytes of a stream; it has no limit", stream=name, fix=fix)
        await create(config.evolve(max_bytes=-1))
