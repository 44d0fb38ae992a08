"""STREAM.MSG.GET and STREAM.MSG.DELETE of $JS.API: single messages, as JSON.

Source: nats-server 2.15, server/jetstream_api.go jsMsgGetRequest, jsMsgDeleteRequest.
"""

# ruff: noqa: RUF009  # the wire functions return dataclass fields, made anew for each object

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.base.gotime import format_time
from broker.jetstream.api.request import Request, Route, Tracked
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.stream.state.stored import StoredMsg
    from broker.jetstream.stream.stream import Stream

__all__ = ["ROUTES", "GetRequest", "find"]


@dataclass(slots=True)
class GetRequest:
    """The body of STREAM.MSG.GET and of DIRECT.GET."""

    seq: int = wire.uint64()
    last_by_subj: str = wire.text()
    next_by_subj: str = wire.text()
    batch: int = wire.integer()
    max_bytes: int = wire.integer()
    start_time: int | None = wire.time()
    multi_last: list[str] = wire.texts()
    up_to_seq: int = wire.uint64()
    up_to_time: int | None = wire.time()
    no_hdr: bool = wire.boolean()

    @property
    def conflicting(self) -> bool:
        """True if the request names more than one kind of position."""
        timed = self.start_time is not None
        return bool((self.seq and self.last_by_subj) or (self.seq and timed) or (timed and self.last_by_subj)
                    or (self.last_by_subj and self.next_by_subj))


@dataclass(slots=True)
class _DeleteRequest:
    seq: int = wire.uint64()
    no_erase: bool = wire.boolean()


async def get(request: Request) -> dict[str, Any]:
    """Return one message: by sequence, the last or next of a subject, or the first since a time."""
    await request.need_body()
    asked = await request.body(GetRequest, "JSApiMsgGetRequest")
    no_position = not (asked.seq or asked.last_by_subj or asked.next_by_subj or asked.start_time is not None)
    if asked.batch > 0 or asked.max_bytes > 0 or asked.conflicting or no_position:
        raise ApiError(ApiErrors.BAD_REQUEST)
    msg = await find(request.stream(request.tokens[3]), asked)
    if msg is None:
        raise ApiError(ApiErrors.NO_MESSAGE_FOUND)
    shown: dict[str, Any] = {"subject": msg.subject.decode("utf-8", "replace"), "seq": msg.seq}
    if msg.hlen and not asked.no_hdr:
        shown["hdrs"] = b64encode(msg.headers).decode()
    if msg.payload:
        shown["data"] = b64encode(msg.payload).decode()
    shown["time"] = format_time(msg.time_ns)
    return {"message": shown}


async def delete(request: Request) -> dict[str, Any]:
    """Remove one message."""
    await request.need_body()
    asked = await request.body(_DeleteRequest, "JSApiMsgDeleteRequest")
    stream = request.stream(request.tokens[3])
    if stream.config.sealed:
        raise ApiError(ApiErrors.STREAM_SEALED)
    if stream.config.deny_delete:
        raise ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err="message delete not permitted")
    if not await stream.delete_msg(asked.seq, not asked.no_erase):
        raise _gone(stream, asked.seq)
    return {"success": True}


async def find(stream: Stream, asked: GetRequest) -> StoredMsg | None:
    """Return the message that a request without a batch asks for."""
    if asked.last_by_subj:
        return await stream.get_last(asked.last_by_subj.encode())
    if asked.next_by_subj or asked.start_time is not None:
        return await stream.get_next(asked.next_by_subj.encode() or b">", asked.seq, asked.start_time)
    return await stream.get(asked.seq)


def _gone(stream: Stream, seq: int) -> ApiError:
    """Return nats-server's error for a missing sequence; its two stores differ beyond the ends of the stream."""
    if stream.config.storage == "file":
        if seq > stream.last_seq:
            return ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err="stream store EOF")
        if not seq or seq < stream.first_seq:
            return ApiError(ApiErrors.STREAM_MSG_DELETE_FAILED, err="no message found")
    return ApiError(ApiErrors.SEQUENCE_NOT_FOUND, seq=seq)


ROUTES: dict[tuple[str, ...], Route] = {
    ("STREAM", "MSG", "GET", "*"): Route("stream_msg_get_response", get, tracked=Tracked.ERRORS),
    ("STREAM", "MSG", "DELETE", "*"): Route("stream_msg_delete_response", delete),
}
"""The routes by subject after $JS.API; ``*`` is any token."""
