"""STREAM.* and INFO of $JS.API: the requests that create, update, show and purge streams.

Source: nats-server 2.15, server/jetstream_api.go, one function for each handler.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from broker.base.gotime import format_time
from broker.jetstream.account.erasing import Wanted, choose
from broker.jetstream.account.long_work import in_thread_if_long
from broker.jetstream.api.request import Request, Route
from broker.jetstream.config.stream import StreamConfigRequest
from broker.jetstream.config.stream_rules import with_dynamic_metadata
from broker.jetstream.filters import Filters
from broker.jetstream.settings import LIST_PAGE, NAMES_PAGE, SUBJECTS_PAGE
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.protocol.subject import collide
from broker.storage.format.records.catalogue import CatalogueEntry
from broker.storage.state.seq_ranges import SeqRanges

if TYPE_CHECKING:
    from broker.jetstream.stream.stream import Stream

__all__ = ["ROUTES", "stream_info", "stream_state"]


@dataclass(slots=True)
class _PagedRequest:
    offset: int = wire.integer()
    subject: str = wire.text()


@dataclass(slots=True)
class _InfoRequest:
    offset: int = wire.integer()
    deleted_details: bool = wire.boolean()
    subjects_filter: str = wire.text()


@dataclass(slots=True)
class _PurgeRequest:
    seq: int = wire.uint64()
    filter: str = wire.text()
    keep: int = wire.uint64()
    no_erase: bool = wire.boolean()
    """An addition of jetblock: an explicit false lets the bytes of the purged messages leave the store."""


async def account_info(request: Request) -> dict[str, Any]:
    """Return the account's usage and limits."""
    return await request.account.whole_info()


async def create(request: Request) -> dict[str, Any]:
    """Create a stream; creating one again with the same configuration succeeds with the same answer."""
    given = await request.body(StreamConfigRequest, "StreamConfigRequest")
    name = request.tokens[2]
    if given.name != name:
        raise ApiError(ApiErrors.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise ApiError(ApiErrors.STREAM_NAME_CONTAINS_PATH_SEPARATORS)
    if given.sealed:
        raise invalid_config("stream configuration for create can not be sealed")
    if given.mirror_direct and given.mirror is None:
        raise invalid_config("stream has no mirror but does have mirror direct")
    stream = await request.account.changes.create_anywhere(given.config(), pedantic=given.pedantic)
    if isinstance(stream, CatalogueEntry):
        return await request.account.shown_elsewhere(stream) | {"did_create": True}
    request.about = stream
    return await stream_info(request, stream, dynamic=True, domain=False) | {"did_create": True}


async def update(request: Request) -> dict[str, Any]:
    """Replace a stream's configuration; omitted fields go back to their defaults."""
    given = await request.body(StreamConfigRequest, "StreamConfigRequest")
    account = request.account
    await account.admission.check(given.config(), pedantic=given.pedantic)
    if given.name != request.tokens[2]:
        raise ApiError(ApiErrors.STREAM_MISMATCH)
    stream = request.stream(given.name)
    await account.changes.update(stream, given.config(), pedantic=given.pedantic)
    return await stream_info(request, stream, dynamic=True)


async def delete(request: Request) -> dict[str, Any]:
    """Remove a stream, its messages and its consumers."""
    await request.need_empty()
    name = request.tokens[2]
    if not request.account.changes.delete_offline(name):
        await request.account.changes.delete(request.stream(name))
    return {"success": True}


async def info(request: Request) -> dict[str, Any]:
    """Return the configuration and state; with ``subjects_filter`` the count of each matching subject, in pages."""
    asked = await request.optional_body(_InfoRequest, "JSApiStreamInfoRequest")
    stream = request.stream(request.tokens[2])
    stream.log.barrier(stream)
    offset = max(asked.offset, 0)
    shown = await stream_info(request, stream, dynamic=True, deleted_details=asked.deleted_details,
                              subjects_filter=asked.subjects_filter, subjects_offset=offset)
    paging = {"total": 0, "offset": 0, "limit": 0}
    subjects = shown["state"].get("subjects")
    if subjects is not None:
        if subjects.total:
            paging = {"total": subjects.total, "offset": offset, "limit": SUBJECTS_PAGE}
        if not subjects:
            del shown["state"]["subjects"]
    ts = shown.pop("ts")
    shown["cluster"] = {"leader": request.account.server_name}
    return {**paging, **shown, "ts": ts}


async def names(request: Request) -> dict[str, Any]:
    """Return one page of stream names, in order; null rather than an empty list, as in nats-server."""
    asked = await request.optional_body(_PagedRequest, "JSApiStreamNamesRequest")
    found = [name for name, _ in await _matching(request, asked.subject)]
    offset = min(max(asked.offset, 0), len(found))
    return {"total": len(found), "offset": offset, "limit": NAMES_PAGE,
            "streams": found[offset:offset + NAMES_PAGE] or None}


async def list_streams(request: Request) -> dict[str, Any]:
    """Return one page of stream infos, in order of name."""
    asked = await request.optional_body(_PagedRequest, "JSApiStreamListRequest")
    found = await _matching(request, asked.subject)
    offset = min(max(asked.offset, 0), len(found))
    page = found[offset:offset + LIST_PAGE]
    others = await request.account.infos_elsewhere([name for name, stream in page if stream is None])
    infos, missing = [], []
    for name, stream in page:
        if stream is not None:
            infos.append(await stream_info(request, stream, dynamic=False))
        elif name in others:
            infos.append(others[name])
        else:
            missing.append(name)
        if not len(infos) % _AT_ONCE:
            await asyncio.sleep(0)
    answer: dict[str, Any] = {"total": len(found), "offset": offset, "limit": LIST_PAGE, "streams": infos}
    offline = {name: gone.reason for name, gone in sorted(request.account.offline.items())}
    if offline or missing:
        answer["missing"] = [*offline, *missing]
    if offline:
        answer["offline"] = offline
    return answer


async def purge(request: Request) -> dict[str, Any]:
    """Remove all messages, or those that match a filter, below a sequence, or all except the newest ones."""
    asked = await request.optional_body(_PurgeRequest, "JSApiStreamPurgeRequest")
    if asked.seq and asked.keep:
        raise ApiError(ApiErrors.BAD_REQUEST)
    stream = request.stream(request.tokens[2])
    if stream.config.sealed:
        raise ApiError(ApiErrors.STREAM_SEALED)
    if stream.config.deny_purge:
        raise ApiError(ApiErrors.STREAM_PURGE_FAILED, err="stream purge not permitted")
    if asked.seq > SEQ_MAX:
        # No sequence would be left for the next message.
        raise ApiError(ApiErrors.STREAM_PURGE_FAILED, err=f"sequence {asked.seq} is above {SEQ_MAX}")
    if asked.no_erase or b'"no_erase"' not in request.payload or not stream.stored:
        return {"success": True, "purged": await stream.purge(asked.filter.encode() or None, asked.seq, asked.keep)}
    wanted = Wanted(subjects=Filters((asked.filter.encode(),))) if asked.filter else Wanted(SeqRanges(((1, SEQ_MAX),)))
    seqs = (await choose(stream, request.account.eraser_of(stream).blocks, wanted)).cut(
        1, asked.seq - 1 if asked.seq else stream.last_seq)
    purged = await stream.purge(asked.filter.encode() or None, asked.seq, asked.keep)
    erasure_id = request.account.new_erasure_id()
    await stream.erase_removed(seqs, erasure_id)
    return {"success": True, "purged": purged, "erasure": erasure_id}


async def clustered_only(request: Request) -> dict[str, Any]:
    """Refuse requests that make sense only with Raft peers, which this server does not have."""
    raise ApiError(ApiErrors.CLUSTER_REQUIRED)


async def _matching(request: Request, subject_filter: str) -> list[tuple[str, Stream | None]]:
    """Return the account's streams whose subjects could overlap the filter, in order of name; None: another broker has
    the stream."""
    account = request.account
    streams: list[tuple[str, Stream | None]] = [*account.streams.items()]
    if account.elsewhere:
        streams += [(name, None) for name, one in account.elsewhere.items() if not one.entry.deleting]
    streams.sort(key=itemgetter(0))
    if not subject_filter:
        return streams
    wanted, found, compared = subject_filter.encode(), [], 0
    for name, stream in streams:
        subjects = account.elsewhere[name].config.subjects if stream is None else stream.config.subjects
        for at in range(0, len(subjects), _COMPARED_AT_ONCE):
            some = subjects[at:at + _COMPARED_AT_ONCE]
            if any(collide(wanted, subject.encode()) for subject in some):
                found.append((name, stream))
                break
            compared += len(some)
            if compared >= _COMPARED_AT_ONCE:
                compared = 0
                await asyncio.sleep(0)
    return found


async def stream_info(request: Request, stream: Stream, *, dynamic: bool, domain: bool = True,
                      deleted_details: bool = False, subjects_filter: str = "",
                      subjects_offset: int = 0) -> dict[str, Any]:
    """Return the members of a StreamInfo."""
    account = request.account
    state = await stream_state(request, stream, deleted_details, subjects_filter, subjects_offset)
    elements = stream.config.elements
    config = await in_thread_if_long(elements, stream.config.to_json)
    if dynamic:
        config["metadata"] = with_dynamic_metadata(stream.config.metadata, account.version)
    upstream = await in_thread_if_long(elements, partial(account.upstreams.info, stream))
    shown = {"config": config, "created": format_time(stream.created_ns), "state": state, **upstream}
    if domain and account.domain:
        shown["domain"] = account.domain
    shown["ts"] = format_time(account.clock.now_ns())
    return shown


async def stream_state(request: Request, stream: Stream, deleted_details: bool = False,
                       subjects_filter: str = "", subjects_offset: int = 0) -> dict[str, Any]:
    """Return the members of a StreamState."""
    state = await stream.info_state(deleted_details, subjects_filter.encode(), subjects_offset)
    state["consumer_count"] = sum(not one.config.direct for one in request.account.consumers.of(stream).values())
    return state


_AT_ONCE = 32
"""Streams shown in one turn of the loop: about 1 ms."""

_COMPARED_AT_ONCE = 4096
"""Subjects compared with a filter in one turn: about 3 ms."""

_PAGING = {"total": 0, "offset": 0, "limit": 0}

ROUTES: dict[tuple[str, ...], Route] = {
    ("INFO",): Route("account_info_response", account_info),
    ("STREAM", "CREATE", "*"): Route("stream_create_response", create),
    ("STREAM", "UPDATE", "*"): Route("stream_update_response", update),
    ("STREAM", "DELETE", "*"): Route("stream_delete_response", delete),
    ("STREAM", "INFO", "*"): Route("stream_info_response", info, _PAGING),
    ("STREAM", "NAMES"): Route("stream_names_response", names, {**_PAGING, "streams": None}),
    ("STREAM", "LIST"): Route("stream_list_response", list_streams, {**_PAGING, "streams": []}),
    ("STREAM", "PURGE", "*"): Route("stream_purge_response", purge, {"purged": 0}),
    ("STREAM", "LEADER", "STEPDOWN", "*"): Route("stream_leader_stepdown_response", clustered_only),
    ("STREAM", "PEER", "REMOVE", "*"): Route("stream_remove_peer_response", clustered_only),
    ("STREAM", "PEER", "EVACUATE", "*"): Route("stream_evacuate_peer_response", clustered_only),
    ("STREAM", "CANCEL_MOVE", "*"): Route("stream_cancel_move_response", clustered_only),
    ("CONSUMER", "LEADER", "STEPDOWN", "*", "*"): Route("consumer_leader_stepdown_response", clustered_only),
}
"""The routes by subject after $JS.API; ``*`` is any token."""
