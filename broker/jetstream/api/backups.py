"""STREAM.SNAPSHOT and STREAM.RESTORE of $JS.API: a stream as an archive. The transfer itself is in the package backup.

Source: nats-server 2.15, server/jetstream_api.go, jsStreamSnapshotRequest, jsStreamRestoreRequest.
"""

# ruff: noqa: RUF009  # the wire functions return dataclass fields, made anew for each object

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.account.incoming import Provenance
from broker.jetstream.api.request import Request, Route
from broker.jetstream.api.streams import stream_info, stream_state
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.protocol.subject import is_literal, is_valid

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

__all__ = ["ROUTES"]


_AHEAD_NS: Final = 86_400_000_000_000
"""The time by which the clock of the broker that created a stream may be ahead of this one's."""


@dataclass(slots=True)
class _RestoredState:
    messages: int = wire.uint64()
    bytes: int = wire.uint64()
    first_seq: int = wire.uint64()
    first_ts: int | None = wire.time()
    last_seq: int = wire.uint64()
    last_ts: int | None = wire.time()
    num_subjects: int = wire.integer()
    num_deleted: int = wire.integer()
    consumer_count: int = wire.integer()


@dataclass(slots=True)
class _RestoreRequest:
    config: StreamConfig = wire.record(StreamConfig, "server.StreamConfig", always=True)
    state: _RestoredState = wire.record(_RestoredState, "server.StreamState", always=True)

    # Members of jetblock's own, which nats-server ignores: facts that an archive does not have.
    created: int | None = wire.time()
    origins_restored: bool = wire.boolean()


@dataclass(slots=True)
class _SnapshotRequest:
    deliver_subject: str = wire.text()
    no_consumers: bool = wire.boolean()
    chunk_size: int = wire.integer()
    window_size: int = wire.integer()
    jsck: bool = wire.boolean()


async def snapshot(request: Request) -> dict[str, Any]:
    """Send the stream as an archive to a subject, after the answer."""
    await request.need_body()
    stream = request.stream(request.tokens[2])
    asked = await request.body(_SnapshotRequest, "JSApiStreamSnapshotRequest")
    subject = asked.deliver_subject.encode()
    if not is_valid(subject) or not is_literal(subject):
        raise ApiError(ApiErrors.SNAPSHOT_DELIVER_SUBJECT_INVALID)
    request.transfers().check_room(ApiErrors.STREAM_SNAPSHOT)
    stream.log.barrier(stream)
    state = await stream_state(request, stream)
    if not asked.no_consumers:
        state["consumer_count"] = sum(not one.config.direct for one in request.account.consumers.of(stream).values())
    request.transfers().snapshot(stream, state, request.source, to=asked.deliver_subject,
                                 consumers=not asked.no_consumers, chunk_size=asked.chunk_size,
                                 window_size=asked.window_size)
    return {"config": stream.config.to_json(), "state": state}


async def restore(request: Request) -> dict[str, Any]:
    """Expect a stream's archive at a subject. The state in the request is ignored: the archive has it, too."""
    await request.need_body()
    asked = await request.decoded(lambda: _restore_request(request))
    given = asked.config
    name = request.tokens[2]
    given.name = given.name or name
    if given.name != name:
        raise ApiError(ApiErrors.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise ApiError(ApiErrors.STREAM_NAME_CONTAINS_PATH_SEPARATORS)
    if asked.created is not None and not 0 <= asked.created <= request.account.clock.now_ns() + _AHEAD_NS:
        raise ApiError(ApiErrors.BAD_REQUEST)
    request.transfers().check_room(ApiErrors.STREAM_RESTORE)
    config = request.account.incoming.reserve(given)

    async def restored(stream: Stream) -> dict[str, Any]:
        shown = await stream_info(request, stream, dynamic=True, domain=False)
        return {key: shown[key] for key in ("config", "created", "state", "ts")}

    provenance = Provenance(asked.created, asked.origins_restored)
    return {"deliver_subject": request.transfers().restore(config, provenance, request.source, restored)}


def _restore_request(request: Request) -> _RestoreRequest:
    def read(value: object) -> _RestoreRequest:
        if isinstance(value, dict) and isinstance(state := value.get("state"), dict):
            # These lists may be long, and the archive has the same.
            value["state"] = {key: one for key, one in state.items() if key not in ("subjects", "deleted", "lost")}
        return wire.read(_RestoreRequest, value, "JSApiStreamRestoreRequest",
                         lenient=not request.account.settings.strict)

    return wire.load_as(read, request.payload)


ROUTES: dict[tuple[str, ...], Route] = {
    ("STREAM", "SNAPSHOT", "*"): Route("stream_snapshot_response", snapshot),
    ("STREAM", "RESTORE", "*"): Route("stream_restore_response", restore, {"deliver_subject": ""}),
}
"""The routes by subject after $JS.API; ``*`` is any token."""
