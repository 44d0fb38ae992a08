"""Counters of the bytes of live messages, and the limits on them.

    ServerUsage    all streams of one storage kind ("memory" or "file"), of all accounts
    AccountUsage   the streams of one account that has a limit of its own; their bytes count in ServerUsage too

Every stream adds sequenced bytes to its ``Usage`` and subtracts removed ones. A publish compares once: only if
``size_bytes + size > bytes_max`` does it call ``refusal``, which decides. The streams of an account without a limit
count in the server's usage directly, so only accounts with a limit pay for one.

The bytes that open atomic batches have in the store are counted separately, against the same limits: a batch may be
dropped, and its commit decides whether there is room for its messages. nats-server bounds only the number of batches,
each of a thousand messages.

nats-server's two rules differ. The server refuses a publish when *more* than its limit is stored, so it accepts the
message that exceeds the limit. An account refuses the message that would exceed its limit.

Source: nats-server, server/jetstream.go (limitsExceeded, wouldExceedLimits), server/jetstream_cluster.go
(resourcesExceededError).
"""

from __future__ import annotations

import logging
import sys
from typing import Protocol

from broker.jetstream.wire.error_table import ApiErrors

__all__ = ["AccountUsage", "ServerUsage", "Usage"]

_log = logging.getLogger(__name__)

_LOG_INTERVAL_NS = 10_000_000_000


class Usage(Protocol):
    """The bytes of live messages under one limit.

    Attributes: ``size_bytes``: user bytes of all live messages; ``bytes_max``: no publish is refused up to this size;
        ``staged_bytes``: bytes of messages in the store that have not joined a stream.
    """

    size_bytes: int
    staged_bytes: int

    @property
    def bytes_max(self) -> int: ...

    def refusal(self, size: int, now_ns: int) -> int:
        """Return the error code that refuses one more message of ``size`` bytes, and log it; 0:
        the message is accepted."""

    def staging_refusal(self, size: int, now_ns: int) -> int:
        """Return the error code that refuses ``size`` bytes more of an open batch, and log it; 0: they are accepted."""


class ServerUsage:
    """See ``Usage``."""

    __slots__ = ("_limit_log", "bytes_max", "size_bytes", "staged_bytes")

    def __init__(self, kind: str = "", bytes_max: int = -1) -> None:
        """``kind`` as in a stream's ``storage``; ``bytes_max`` -1: no limit."""
        self.size_bytes = self.staged_bytes = 0
        self.bytes_max = bytes_max if bytes_max >= 0 else sys.maxsize
        self._limit_log = _LimitLog(logging.ERROR, f"JetStream {kind} resource limits exceeded for server")

    def refusal(self, size: int, now_ns: int) -> int:
        """See ``Usage``."""
        if self.size_bytes <= self.bytes_max:
            return 0
        self._limit_log.write(now_ns)
        return ApiErrors.INSUFFICIENT_RESOURCES

    def staging_refusal(self, size: int, now_ns: int) -> int:
        """See ``Usage``."""
        if self.staged_bytes + size <= self.bytes_max:
            return 0
        self._limit_log.write(now_ns)
        return ApiErrors.INSUFFICIENT_RESOURCES


class AccountUsage:
    """See ``Usage``. ``account_max`` is the account's limit, 0 or more; ``server`` counts the same bytes."""

    __slots__ = ("_account_max", "_limit_log", "_server", "_size_bytes", "_staged_bytes")

    def __init__(self, account: str, kind: str, account_max: int, server: ServerUsage) -> None:
        self._account_max = account_max
        self._server = server
        self._size_bytes = self._staged_bytes = 0
        self._limit_log = _LimitLog(logging.WARNING,
                                    f'JetStream {kind} resource limits exceeded for account: "{account}"')

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @size_bytes.setter
    def size_bytes(self, size_bytes: int) -> None:
        self._server.size_bytes += size_bytes - self._size_bytes
        self._size_bytes = size_bytes

    @property
    def staged_bytes(self) -> int:
        return self._staged_bytes

    @staged_bytes.setter
    def staged_bytes(self, staged_bytes: int) -> None:
        self._server.staged_bytes += staged_bytes - self._staged_bytes
        self._staged_bytes = staged_bytes

    @property
    def bytes_max(self) -> int:
        server = self._server
        return min(self._account_max, self._size_bytes + server.bytes_max - server.size_bytes)

    def refusal(self, size: int, now_ns: int) -> int:
        """See ``Usage``."""
        err_code = self._server.refusal(size, now_ns)
        if not err_code and self._size_bytes + size > self._account_max:
            self._limit_log.write(now_ns)
            err_code = ApiErrors.ACCOUNT_RESOURCES_EXCEEDED
        return err_code

    def staging_refusal(self, size: int, now_ns: int) -> int:
        """See ``Usage``."""
        err_code = self._server.staging_refusal(size, now_ns)
        if not err_code and self._staged_bytes + size > self._account_max:
            self._limit_log.write(now_ns)
            err_code = ApiErrors.ACCOUNT_RESOURCES_EXCEEDED
        return err_code


class _LimitLog:
    """Log of refused publishes, written at a limited rate."""

    __slots__ = ("_level", "_text", "_written_at_ns")

    def __init__(self, level: int, text: str) -> None:
        self._level = level
        self._text = text
        self._written_at_ns: int | None = None

    def write(self, now_ns: int) -> None:
        if self._written_at_ns is None or now_ns - self._written_at_ns > _LOG_INTERVAL_NS:
            self._written_at_ns = now_ns
            _log.log(self._level, "%s", self._text)
