"""CONSUMER.* of $JS.API: the requests that create, update and show consumers.

Pull requests (CONSUMER.MSG.NEXT) are not here: they go to their consumer in whole runs, see dispatcher.py.

Source: nats-server 2.15, server/jetstream_api.go, one function for each handler; RESET in server/consumer.go.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from broker.base.gotime import ZERO_TIME, ZERO_TIME_NS, format_time
from broker.jetstream.account.sweeps import finished
from broker.jetstream.api.request import Request, Route, Silent, Tracked
from broker.jetstream.config.consumer import ConsumerConfig, ConsumerCreateRequest
from broker.jetstream.config.consumer_rules import is_group_name
from broker.jetstream.config.stream_rules import with_dynamic_metadata
from broker.jetstream.settings import LIST_PAGE, NAMES_PAGE
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_json
from broker.jetstream.wire.ids import short_hash
from broker.jetstream.wire.numbers import INT64_MAX
from broker.protocol import headers

if TYPE_CHECKING:
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream

__all__ = ["ROUTES"]


@dataclass(slots=True)
class _PagedRequest:
    offset: int = wire.integer()


@dataclass(slots=True)
class _PauseRequest:
    pause_until: int | None = wire.time()


@dataclass(slots=True)
class _UnpinRequest:
    group: str = wire.text()


@dataclass(slots=True)
class _ResetRequest:
    seq: int = wire.uint64()


async def create_legacy(request: Request) -> dict[str, Any]:
    """Serve CONSUMER.CREATE.<stream>: create an ephemeral consumer, which its configuration may name."""
    given = await request.body(ConsumerCreateRequest, "CreateConsumerRequest")
    _check_names(request.tokens[2], given, given.config.name)
    if given.config.durable_name:
        raise ApiError(ApiErrors.CONSUMER_EPHEMERAL_WITH_DURABLE_NAME)
    return await _create(request, given)


async def create(request: Request) -> dict[str, Any]:
    """Serve CONSUMER.CREATE.<stream>.<consumer>[.<filter>].

    The name in the subject takes precedence over the body's; the filter must equal the body's.
    """
    given = await request.body(ConsumerCreateRequest, "CreateConsumerRequest")
    _, _, stream_name, name, *filter_tokens = request.tokens
    _check_names(stream_name, given, name)
    if given.config.durable_name and given.config.durable_name != name:
        raise ApiError(ApiErrors.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
    given.config.name = name
    if filter_tokens:
        if given.config.filter_subjects:
            raise ApiError(ApiErrors.CONSUMER_MULTIPLE_FILTERS_NOT_ALLOWED)
        if given.config.filter_subject != ".".join(filter_tokens):
            raise ApiError(ApiErrors.CONSUMER_CREATE_FILTER_SUBJECT_MISMATCH)
    return await _create(request, given)


async def create_durable(request: Request) -> dict[str, Any]:
    """Serve CONSUMER.DURABLE.CREATE.<stream>.<consumer>, the oldest form."""
    given = await request.body(ConsumerCreateRequest, "CreateConsumerRequest")
    stream_name, name = request.tokens[3:]
    _check_names(stream_name, given, name)
    if not given.config.durable_name:
        raise ApiError(ApiErrors.CONSUMER_DURABLE_NAME_NOT_SET)
    if given.config.durable_name != name:
        raise ApiError(ApiErrors.CONSUMER_DURABLE_NAME_NOT_MATCH_SUBJECT)
    given.config.name = name
    return await _create(request, given)


async def info(request: Request) -> dict[str, Any]:
    """Return the configuration and state."""
    await request.need_empty()
    return await _info(request, request.consumer(*request.tokens[2:]))


async def names(request: Request) -> dict[str, Any]:
    """Return one page of consumer names, in order."""
    asked = await request.optional_body(_PagedRequest, "JSApiConsumersRequest")
    found = [consumer.name for consumer in _consumers(request, request.stream(request.tokens[2]))]
    offset = min(max(asked.offset, 0), len(found))
    return {"total": len(found), "offset": offset, "limit": NAMES_PAGE, "consumers": found[offset:offset + NAMES_PAGE]}


async def list_consumers(request: Request) -> dict[str, Any]:
    """Return one page of consumer infos, in order of name."""
    asked = await request.optional_body(_PagedRequest, "JSApiConsumersRequest")
    stream = request.stream(request.tokens[2])
    found = _consumers(request, stream)
    offset = min(max(asked.offset, 0), len(found))
    page = found[offset:offset + LIST_PAGE]
    infos = []
    for consumer in page:
        await consumer.counted()
        infos.append(consumer.info())
        if not len(infos) % _AT_ONCE:
            await asyncio.sleep(0)
    stream.log.barrier(stream)
    return {"total": len(found), "offset": offset, "limit": LIST_PAGE, "consumers": infos}


async def delete(request: Request) -> dict[str, Any]:
    """Delete a consumer; its waiting requests are notified."""
    await request.need_empty()
    consumer = request.consumer(*request.tokens[2:])
    if (sweep := request.account.consumers.delete(consumer)) is not None:
        await finished(sweep)
    return {"success": True}


async def pause(request: Request) -> dict[str, Any]:
    """Pause deliveries until a time; no time, or one in the past, resumes them."""
    asked = await request.optional_body(_PauseRequest, "JSApiConsumerPauseRequest")
    consumer = request.consumer(*request.tokens[2:])
    until_ns = None if asked.pause_until == ZERO_TIME_NS else asked.pause_until
    request.account.consumers.pause(consumer, until_ns)
    if until_ns is None:
        return {"paused": False, "pause_until": ZERO_TIME}
    remaining_ns = until_ns - request.account.clock.now_ns()
    answer: dict[str, Any] = {"paused": remaining_ns > 0, "pause_until": format_time(until_ns)}
    if remaining_ns > 0:
        answer["pause_remaining"] = min(remaining_ns, INT64_MAX)
    return answer


async def reset(request: Request) -> dict[str, Any]:
    """Move a consumer to a sequence, or back to its ack floor."""
    try:
        consumer = request.consumer(*request.tokens[2:])
    except ApiError:
        # In nats-server each consumer subscribes to its own resets, so a request for an unknown consumer gets no
        # answer.
        raise Silent from None
    asked = _ResetRequest()
    if request.payload:
        asked = await request.decoded(
            lambda: wire.read(_ResetRequest, wire.load_one(request.payload), "JSApiConsumerResetRequest", lenient=True))
    if headers.get(request.headers, _IDENTITY) is not None:
        request.answer_headers = _identity_header(_identity(request.stream(consumer.stream.name)))
    seq = await consumer.reset(asked.seq)
    interest = request.stream(consumer.stream.name).interest
    if interest.selective and (sweep := interest.sweep(1, acked=True)) is not None:
        await finished(sweep)
    return await _info(request, consumer) | {"reset_seq": seq}


async def unpin(request: Request) -> dict[str, Any]:
    """Remove the pin of a priority group, so that another client may get it."""
    asked = await request.decoded(
        lambda: wire.read(_UnpinRequest, wire.load_one(request.payload), "JSApiConsumerUnpinRequest", lenient=True))
    group = asked.group
    if not group:
        raise invalid_json("consumer group not specified")
    if not is_group_name(group):
        raise ApiError(ApiErrors.CONSUMER_INVALID_GROUP_NAME)
    consumer = request.consumer(*request.tokens[2:])
    if group not in consumer.config.priority_groups:
        raise ApiError(ApiErrors.CONSUMER_INVALID_PRIORITY_GROUP)
    consumer.unpin(group)
    return {}


def _check_names(stream_name: str, given: ConsumerCreateRequest, name: str) -> None:
    if given.stream_name != stream_name:
        raise ApiError(ApiErrors.STREAM_MISMATCH)
    if "/" in name or "\\" in name:
        raise ApiError(ApiErrors.CONSUMER_NAME_CONTAINS_PATH_SEPARATORS)


async def _create(request: Request, given: ConsumerCreateRequest) -> dict[str, Any]:
    if given.config.num_replicas > 1:
        raise ApiError(ApiErrors.STREAM_REPLICAS_NOT_SUPPORTED)
    stream = request.stream(given.stream_name)
    config: ConsumerConfig = given.config
    if config.copies:
        identity = _identity(stream)
        if headers.get(request.headers, _IDENTITY) not in (None, b"", identity):
            raise ApiError(ApiErrors.CONSUMER_STREAM_IDENTITY_MISMATCH, msg=identity.decode())
        request.answer_headers = _identity_header(identity)
    consumer = await request.account.consumers.create(stream, config, given.action, pedantic=given.pedantic)
    if consumer.paused:
        stream.log.wait(consumer.events.pause, True, consumer.config.pause_until, of=stream)
    return await _info(request, consumer)


def _identity(stream: Stream) -> bytes:
    """Return a text by which a stream that copies this one notices that another of the same name has replaced it."""
    return short_hash(format_time(stream.created_ns)).encode()


def _identity_header(identity: bytes) -> bytes:
    return headers.VERSION + b"\r\n%b: %b\r\n\r\n" % (_IDENTITY, identity)


def _consumers(request: Request, stream: Stream) -> list[Consumer]:
    return [consumer for _, consumer in sorted(request.account.consumers.of(stream).items())
            if not consumer.config.direct]


async def _info(request: Request, consumer: Consumer) -> dict[str, Any]:
    """Return the consumer's info. Its unstored changes become urgent, so that the answer waits for them."""
    await consumer.counted()
    consumer.stream.log.barrier(consumer.stream)
    shown = consumer.info()
    shown["config"]["metadata"] = with_dynamic_metadata(consumer.config.metadata, request.account.version)
    return shown


_AT_ONCE = 16
"""Consumers listed in one turn of the loop: each may count messages that are not yet persisted."""

_IDENTITY = b"Nats-Stream-Identity"
_PAGE = {"total": 0, "offset": 0, "limit": 0, "consumers": []}

ROUTES: dict[tuple[str, ...], Route] = {
    ("CONSUMER", "CREATE", "*"): Route("consumer_create_response", create_legacy),
    ("CONSUMER", "CREATE", "*", "*"): Route("consumer_create_response", create),
    ("CONSUMER", "CREATE", "*", "*", ">"): Route("consumer_create_response", create),
    ("CONSUMER", "DURABLE", "CREATE", "*", "*"): Route("consumer_create_response", create_durable),
    ("CONSUMER", "INFO", "*", "*"): Route("consumer_info_response", info),
    ("CONSUMER", "NAMES", "*"): Route("consumer_names_response", names, _PAGE),
    ("CONSUMER", "LIST", "*"): Route("consumer_list_response", list_consumers, _PAGE),
    ("CONSUMER", "DELETE", "*", "*"): Route("consumer_delete_response", delete),
    ("CONSUMER", "PAUSE", "*", "*"): Route("consumer_pause_response", pause,
                                           {"paused": False, "pause_until": ZERO_TIME}),
    ("CONSUMER", "RESET", "*", "*"): Route("consumer_reset_response", reset, {"reset_seq": 0}, Tracked.NONE),
    ("CONSUMER", "UNPIN", "*", "*"): Route("consumer_unpin_response", unpin),
}
"""The routes by subject after $JS.API; ``*`` is any token, ``>`` the rest."""
