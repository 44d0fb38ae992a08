"""A message's time to live: the checks of its header.

Does not own: the expiry of messages (retention.ttl).

Source: nats-server, server/stream.go, processJetStreamMsgWithBatch, parseMessageTTL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.base.gotime import format_duration, parse_duration
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.numbers import INT64_MAX, modulo_2_to_64
from broker.protocol import headers as header_block

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.publish.candidate import Candidate, Check
    from broker.jetstream.stream.publish.context import CheckContext

__all__ = ["TTL", "TTL_INVALID", "checked_ttl", "delete_marker", "disabled", "least_ttl", "marker", "parse_ttl",
           "valid"]

TTL = b"Nats-TTL"

_SECOND = 1_000_000_000

TTL_INVALID = -2
"""Result of ``parse_ttl`` for text that is not a TTL."""


def disabled(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse a TTL with 10166 if the stream does not allow any."""
    def check(candidate: Candidate) -> None:
        if (text := candidate.headers.get(TTL)) and parse_ttl(text) not in (0, TTL_INVALID):
            raise ApiError(ApiErrors.MESSAGE_TTL_DISABLED)
    return check if not config.allow_msg_ttl else None


def valid(context: CheckContext, config: StreamConfig) -> Check:
    """Refuse an invalid TTL with 10165; otherwise set the message's TTL.

    A TTL is raised to at least that of a delete marker. Otherwise an existing marker could outlive the message, which
    then would not leave a marker of its own.
    """
    least = least_ttl(config)
    allowed = config.allow_msg_ttl

    def check(candidate: Candidate) -> None:
        if not (text := candidate.headers.get(TTL)):
            return
        ttl = parse_ttl(text)
        if ttl == TTL_INVALID:
            raise ApiError(ApiErrors.MESSAGE_TTL_INVALID)
        if 0 < ttl < least:
            ttl = least
            block = header_block.remove(candidate.body[:candidate.hlen], TTL)
            block = header_block.set(block, TTL, b"%d" % ttl)
            candidate.size += len(block) - candidate.hlen
            candidate.hlen, candidate.body = len(block), block + candidate.body[candidate.hlen:]
        if allowed:  # a copied message may have one that has no effect here
            candidate.ttl = ttl
    return check


def least_ttl(config: StreamConfig) -> int:
    """Return the seconds to which lower TTLs are raised."""
    return config.subject_delete_marker_ttl // _SECOND if config.max_msgs_per_subject != 1 else 0


def checked_ttl(text: bytes, config: StreamConfig) -> int:
    """Return the TTL that the header of a staged message gives it, as ``parse_ttl``; a low one is raised.

    Raises: ApiError 10165, 10166.
    """
    ttl = parse_ttl(text)
    if ttl == TTL_INVALID:
        raise ApiError(ApiErrors.MESSAGE_TTL_INVALID)
    if ttl and not config.allow_msg_ttl:
        raise ApiError(ApiErrors.MESSAGE_TTL_DISABLED)
    return max(ttl, least_ttl(config)) if ttl > 0 else ttl


def marker(context: CheckContext, config: StreamConfig) -> Check | None:
    """Refuse the stream's own delete marker if its message is no longer the last of the subject.

    Such a marker waited behind a later message, which it would remove.
    """
    markers, subjects = context.ttls, context.subjects

    def check(candidate: Candidate) -> None:
        if candidate.pending.source is markers.source:
            context.commit_pending(candidate.pending)
            if subjects.last(candidate.subject) != markers.replaced_by_marker(candidate.subject):
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
    return check if config.subject_delete_marker_ttl > 0 else None


def delete_marker(config: StreamConfig) -> bytes:
    """Return the headers of the message that replaces a subject's last one when that expires; b"": none."""
    seconds = config.subject_delete_marker_ttl // _SECOND
    if not seconds:
        return b""
    return header_block.build(((b"Nats-Marker-Reason", b"MaxAge"), (TTL, format_duration(seconds * _SECOND).encode()),
                               (b"Nats-Rollup", b"sub")))


def parse_ttl(text: bytes) -> int:
    """Parse a message's time to live in whole seconds; -1: never expires; 0: no TTL; ``TTL_INVALID``: not a TTL.

    The text is seconds in digits, a Go duration of at least one second, or ``never`` in any case. Like nats-server,
    this function reads digits modulo 2^64 as an int64, so ``00`` and ``18446744073709551616`` are no TTL. A single
    ``0`` is a duration that is too short.
    """
    if text.lower() == b"never":
        return -1
    if text.isdigit() and text != b"0":
        seconds = modulo_2_to_64(text)
        return seconds if seconds <= INT64_MAX else TTL_INVALID
    try:
        ttl_ns = parse_duration(text.decode())
    except ValueError:  # includes UnicodeDecodeError
        return TTL_INVALID
    return ttl_ns // _SECOND if ttl_ns >= _SECOND else TTL_INVALID
