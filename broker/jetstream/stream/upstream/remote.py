"""Copies a stream that another server has, by a push consumer without acks that is created for the copy.

    STREAM.INFO      the stream's identity, retention and last sequence
    CONSUMER.CREATE  from the sequence after the last stored one, with flow control and heartbeats
    deliveries       consumer sequences without a gap; gaps in stream sequences are deletions

The consumer is ``direct``, as nats-server's own are for mirrors: the stream's limits on consumers do not count it, its
server does not list it, and an interest stream does not wait for it. It ends by itself once nobody subscribes to its
deliveries, so nothing has to be deleted.

Source: nats-server, server/stream.go, setupMirrorConsumer, trySetupSourceConsumer; server/consumer.go, addConsumer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from broker.base.gotime import format_time, parse_time
from broker.jetstream.stream.upstream.deliveries import Deliveries
from broker.jetstream.stream.upstream.link import NoAnswer, Remote, ask, identity_in
from broker.jetstream.stream.upstream.origin import identity_at
from broker.jetstream.wire.error_table import ERROR_TABLE, ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.ids import secret_id

if TYPE_CHECKING:
    from broker.jetstream.bus import Source
    from broker.jetstream.config.stream import StreamSource
    from broker.jetstream.stream.upstream.deliveries import FlowRequest

__all__ = ["RemoteDeliveries"]

_HEARTBEAT_NS = 1_000_000_000
_UNUSED_NS = 10_000_000_000
"""Time after which the other server removes a consumer whose deliveries nobody receives."""
_ACK_WAIT_NS = 22 * 3600 * 1_000_000_000


class RemoteDeliveries(Deliveries):
    """The deliveries of a consumer that this copy has created on another server.

    Args: ``begin(identity, last_seq)`` returns the sequence from which to copy the stream with this identity and last
        sequence; 0: from where the configuration says. Raises: ApiError if the stream cannot be copied.
    """

    SILENCE_SECONDS: ClassVar[float] = 3.0
    KEEPS_EXPECTATIONS: ClassVar[bool] = True

    def __init__(self, remote: Remote, given: StreamSource, filters: Sequence[str],
                 begin: Callable[[str, int], int], *, mirror: bool) -> None:
        super().__init__(remote.link, f"{remote.deliver}.{secret_id()}".encode())
        self._remote, self._given, self._filters, self._begin = remote, given, filters, begin
        self._mirror = mirror

    async def open(self) -> None:
        """Create the consumer. Raises: ApiError: the origin is not there, or cannot be copied."""
        name = self._given.name
        try:
            info, _ = await self._ask(f"STREAM.INFO.{name}")
            identity = self._check(info)
            seq = self._begin(identity, int(info["state"]["last_seq"]))
            self._subscribe()
            created, block = await self._ask(self._create_subject(), self._config(seq), identity=identity)
            if not identity_in(block):
                # A server before 2.14 does not compare the identity.
                info, _ = await self._ask(f"STREAM.INFO.{name}")
                if self._check(info) != identity:
                    raise self._failed(f"stream {name} was made again at this moment")
            self.identity = identity
            self.stream_seq = int(created["delivered"]["stream_seq"])
            self.lag = int(created.get("num_pending", 0))
        except NoAnswer as error:
            raise self._failed(str(error)) from None
        except (KeyError, TypeError, ValueError) as error:
            raise self._failed(f"the API below {self._remote.api} gives an answer that is not JetStream's: "
                               f"{error!r}") from None

    def answer(self, request: FlowRequest) -> None:
        """Answer the request, so that the consumer sends more."""
        self._link.publish(request.reply, b"", 0, b"")

    def _accepts(self, source: Source | None) -> bool:
        return True  # nobody else knows the subject

    def _check(self, info: dict[str, Any]) -> str:
        """Return the identity of the stream. Raises: ApiError if it cannot be copied."""
        if info["config"].get("retention") == "workqueue":
            raise self._failed(f"stream {self._given.name} is a work queue: copying it would remove its messages "
                               f"before its own consumers get them")
        return identity_at(parse_time(info["created"]))

    def _create_subject(self) -> str:
        name, kind = self._given.name, "MIRROR" if self._mirror else "SRC"
        if len(self._filters) == 1:
            return f"CONSUMER.CREATE.{name}.JS_{kind}_{secret_id(8)}.{self._filters[0]}"
        return f"CONSUMER.CREATE.{name}"

    def _config(self, seq: int) -> dict[str, Any]:
        """Return the consumer's configuration; ``seq`` 0: it begins where the mirror or source says."""
        given = self._given
        config: dict[str, Any] = {
            "deliver_subject": self._to.decode(), "ack_policy": "none", "ack_wait": _ACK_WAIT_NS, "max_deliver": 1,
            "flow_control": True, "idle_heartbeat": _HEARTBEAT_NS, "inactive_threshold": _UNUSED_NS,
            "mem_storage": True, "num_replicas": 1, "direct": True, "deliver_policy": "all"}
        if len(self._filters) == 1:
            config["filter_subject"] = self._filters[0]
        elif self._filters:
            config["filter_subjects"] = list(self._filters)
        if seq or given.opt_start_seq:
            config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": seq or given.opt_start_seq}
        elif given.opt_start_time is not None:
            config |= {"deliver_policy": "by_start_time", "opt_start_time": format_time(given.opt_start_time)}
        return config

    async def _ask(self, request: str, config: dict[str, Any] | None = None, *,
                   identity: str = "") -> tuple[dict[str, Any], bytes]:
        """Send a request below the API's prefix; return the answer and its headers. Raises: ApiError; NoAnswer."""
        body = b"" if config is None else json.dumps({"stream_name": self._given.name, "config": config}).encode()
        block = f"NATS/1.0\r\nNats-Stream-Identity: {identity}\r\n\r\n".encode() if identity else b""
        answer, headers = await ask(self._link, f"{self._remote.api}.{request}".encode(), body, block)
        if isinstance(error := answer.get("error"), dict):
            code, text = error.get("err_code"), str(error.get("description"))
            raise ApiError.of(code, text) if code in ERROR_TABLE else self._failed(text)
        return answer, headers

    def _failed(self, why: str) -> ApiError:
        return ApiError(ApiErrors.MIRROR_CONSUMER_SETUP_FAILED if self._mirror
                        else ApiErrors.SOURCE_CONSUMER_SETUP_FAILED, err=why)
