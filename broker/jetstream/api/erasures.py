"""The requests about erasure below $JS.API.JETBLOCK: ERASE removes messages from a stream and from the store, ERASURE
returns the state of such an erasure, and SHRED destroys a stream and its key.

Additions of jetblock: nats-server has nothing like them.
"""

# ruff: noqa: RUF009  # the wire functions return dataclass fields, made anew for each object

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker.base.gotime import format_time
from broker.jetstream.account.erasing import (
    CopyOf,
    Wanted,
    check_stored,
    copies_elsewhere,
    erase,
    parse_seqs,
    wanted_headers,
)
from broker.jetstream.api.request import Request, Route
from broker.jetstream.filters import Filters
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import SEQ_MAX
from broker.protocol.subject import is_valid
from broker.storage.format.errors import FormatError
from broker.storage.format.keyring import KEYS
from broker.storage.state.seq_ranges import SeqRanges

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.stream.stream import Stream
    from broker.storage.erasure.eraser import Eraser
    from broker.storage.state.erasures import Erasure, StoredFile

__all__ = ["ROUTES"]

_OBJECTS_PAGE: Final = 1000
"""The most objects in one answer."""


@dataclass(slots=True)
class _EraseRequest:
    seqs: str = wire.text()
    subjects: list[str] = wire.texts()
    headers: list[str] = wire.texts()
    ids: list[str] = wire.texts()
    copy_of: str = wire.text()
    erasure: str = wire.text()


@dataclass(slots=True)
class _ErasureRequest:
    erasure: str = wire.text(always=True)
    offset: int = wire.integer()
    alone: bool = wire.boolean()


@dataclass(slots=True)
class _ShredRequest:
    erase_only: bool = wire.boolean()


async def erase_messages(request: Request) -> dict[str, Any]:
    """Remove messages from a stream and from the streams of the account that copy from it, and erase their bytes.

    The answer comes once the removals are stored, the erasure of the bytes follows.
    """
    await request.need_body()
    asked = await request.body(_EraseRequest, "JSApiJetblockEraseRequest")
    stream = request.stream(request.tokens[2])
    request.account.eraser_of(stream)
    return await _erase(request.account, stream, _wanted(asked), asked)


async def _erase(account: Account, stream: Stream, wanted: Wanted, asked: _EraseRequest | None = None, *,
                 shredding: bool = False) -> dict[str, Any]:
    """Erase messages. ``asked``: the request; if it names the origin of the stream, another broker has erased there."""
    erasure_id, copy_of = account.new_erasure_id(), None
    if asked is not None and asked.copy_of:
        conditions = replace(wanted, seqs=SeqRanges())
        erasure_id, copy_of = asked.erasure, CopyOf(asked.copy_of, wanted.seqs, conditions if conditions else None)
    others, elsewhere, unreadable = account.other_brokers, dict[str, str](), dict[str, str]()
    if others is not None:
        elsewhere = await others.copies_of(stream.name, account.streams)  # before anything is erased: it may fail
    try:
        erased = await erase(account.streams, stream, lambda one: account.eraser_of(one).blocks, wanted, erasure_id,
                             domain=account.domain, shredding=shredding, read_again=account.upstreams.read_again,
                             copy_of=copy_of, unreadable=unreadable)
    except FormatError as error:
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err=(
            f"{error}: stop the broker, run `jetblock fsck --repair` on the store, and erase again")) from None
    streams = [{"stream": one.stream.name, "sequences": one.seqs.count, "messages": one.removed} for one in erased
               if one.seqs or one.stream is stream]
    if others is not None:
        for one in erased:
            for copy in [copy for copy, origin in elsewhere.items() if origin == one.stream.name]:
                streams += await others.erase(copy, one, erasure_id, unreadable)
    answer: dict[str, Any] = {"erasure": erasure_id, "messages": sum(one["messages"] for one in streams),
                              "streams": streams}
    if names := copies_elsewhere(account.streams, [one.stream.name for one in erased], account.domain):
        answer["elsewhere"] = names
    if unreadable:
        answer["unreadable"] = [{"key": key, "reason": why} for key, why in unreadable.items()][:_OBJECTS_PAGE]
    return answer


async def erasure(request: Request) -> dict[str, Any]:
    """Return what became of an erasure, in all streams that it is about."""
    await request.need_body()
    asked = await request.body(_ErasureRequest, "JSApiJetblockErasureRequest")
    account, asked_of = request.account, request.stream(request.tokens[2])
    found = [(stream, one) for stream in ([asked_of] if asked.alone else account.streams.values())
             if (one := stream.erasures.get(asked.erasure)) is not None]
    if not found:
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err=f"no erasure {asked.erasure!r} is known, or its "
                                                               f"report has expired")
    eraser = account.eraser_of
    grace_ns = max(_expected_ns(stream, eraser(stream)) for stream, _ in found)
    streams = [_shown(stream, one, asked.offset, eraser(stream)) for stream, one in found]
    if not asked.alone and (others := account.other_brokers) is not None:
        for copy in await others.copies_of(asked_of.name, account.streams):
            streams += await others.erasure(copy, asked.erasure, asked.offset)
    return {"erasure": asked.erasure, "due": format_time(min(one.at_ns for _, one in found) + grace_ns),
            "streams": streams}


async def shred(request: Request) -> dict[str, Any]:
    """Delete a stream and destroy its key, so that no copy of its objects can be read any more.

    The answer has the id of the key; it is empty if the store is not encrypted. With ``erase_only``, all messages are
    erased first, whatever the stream permits, and it stays until the next request.
    """
    erase_only = not await request.is_empty()
    if erase_only and not (await request.body(_ShredRequest, "JSApiJetblockShredRequest")).erase_only:
        raise ApiError(ApiErrors.NOT_EMPTY_REQUEST)
    stream = request.stream(request.tokens[2])
    check_stored(stream)
    if erase_only:
        return await _erase(request.account, stream, Wanted(SeqRanges(((1, SEQ_MAX),))), shredding=True)
    eraser, key = request.account.eraser_of(stream), KEYS.of_stream(stream.stream_id)
    await request.account.changes.delete(stream)
    request.about = None
    await eraser.forget_deleted()
    if key is not None and (shards := await eraser.until_key_gone(stream.stream_id)):
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err=(
            f"its key is not destroyed yet: shard {', '.join(map(str, shards))}, which it had left, still has it; the "
            f"shard's broker destroys it"))
    return {"success": True, "key": "" if key is None else key.key_id.hex()}


def _wanted(asked: _EraseRequest) -> Wanted:
    """Return what a request names. Raises: ApiError."""
    others = asked.subjects or asked.headers or asked.ids
    if bool(asked.seqs) == bool(others) and not asked.copy_of:
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err="name seqs, or any of subjects, headers and ids")
    seqs = SeqRanges()
    if asked.seqs:
        try:
            seqs = parse_seqs(asked.seqs)
        except ValueError as error:
            raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err=error) from None
    subjects = [subject.encode() for subject in asked.subjects]
    for subject in subjects:
        if not is_valid(subject):
            raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err="a subject is not valid")
    return Wanted(seqs, subjects=Filters(subjects) if subjects else None, headers=wanted_headers(asked.headers),
                  ids=frozenset(one.encode() for one in asked.ids))


def _expected_ns(stream: Stream, eraser: Eraser) -> int:
    """Return the time after which an erasure is done. An earlier shard of the stream begins after the readers' grace.
    """
    state = stream.applied()
    return eraser.expected_ns + (eraser.settings.grace_ns if state is not None and state.moves else 0)


def _shown(stream: Stream, one: Erasure, offset: int, eraser: Eraser) -> dict[str, Any]:
    state = "done" if one.done_ns else "deleting" if one.held else "marked"
    objects = max(len(one.held), len(one.made))
    shown = {"stream": stream.name, "incarnation": f"{stream.stream_id:016x}", "state": state,
             "requested": format_time(one.at_ns), "sequences": one.seqs.text(), "objects": objects,
             "offset": min(offset + _OBJECTS_PAGE, objects),
             "held": [_file(file) for file in one.held[offset:offset + _OBJECTS_PAGE]],
             "made": [_file(file) for file in one.made[offset:offset + _OBJECTS_PAGE]]}
    if not one.done_ns:
        doing, done, of = eraser.progress
        if one.held:
            doing, of = "deleting", sum(file.size for file in one.held)
            done = of - sum(file.size for file in one.held if file.key in eraser.left)
        shown["progress"] = {"doing": doing, "bytes": done, "of": of}
        shown["left"] = sum(file.key in eraser.left for file in one.held)
        if waits_for := eraser.waits_for.get(stream.stream_id):
            shown["shards"] = [{"shard": shard.shard, "owned": shard.owned} | _damaged(
                (file.key, file.damage) for file in shard.damaged) for shard in waits_for]
        shown |= _damaged((file.key, why) for file in one.held
                          if (why := eraser.damaged.get(file.key)) is not None)
    if one.done_ns:
        shown["done"] = format_time(one.done_ns)
    return shown


def _damaged(found: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the member with the keys of damaged objects and the reasons; nothing if there are none."""
    shown = [{"key": key, "reason": why} for key, why in islice(found, _OBJECTS_PAGE)]
    return {"damaged": shown} if shown else {}


def _file(file: StoredFile) -> dict[str, Any]:
    shown = {"key": file.key, "size": file.size, "sha256": file.sha256.hex()}
    return {**shown, "note": file.note} if file.note else shown


ROUTES: dict[tuple[str, ...], Route] = {
    ("JETBLOCK", "ERASE", "*"): Route("jetblock_erase_response", erase_messages, apart=True),
    ("JETBLOCK", "ERASURE", "*"): Route("jetblock_erasure_response", erasure, apart=True),
    ("JETBLOCK", "SHRED", "*"): Route("jetblock_shred_response", shred, apart=True),
}
"""The routes by subject after $JS.API; ``*`` is any token."""
