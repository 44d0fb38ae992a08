"""The stored registrations of the gateway: its server ID, the connected clients, and their subscriptions.

Each record is a message in the stream ``STAN``, JSON on a subject of its own, and a newer record replaces it. So the
registrations survive what messages survive, and move with the store to a standby. The positions of subscriptions and
their unacknowledged messages are not here: they are the state of JetStream consumers.

    $STAN.server          {"server_id": …, "cluster_id": …}
    $STAN.client.<id>     a client, by its ID
    $STAN.sub.<id>        a subscription
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.filters import ALL
from broker.jetstream.stream.publish.pub_ack_receiver import PubAckReceiver

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.wire.errors import ApiError

__all__ = ["Registry"]

log = logging.getLogger(__name__)

_STREAM = "STAN"
_PREFIX = "$STAN."
_READ_AT_ONCE = 1000


class Registry(PubAckReceiver):
    """The records. A call that changes one returns once the change is stored."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._seqs: dict[str, int] = {}
        """The sequence of each stored record, by its key."""
        self._waiting: dict[bytes, asyncio.Future[int]] = {}
        self._puts = 0

    @classmethod
    async def open(cls, account: Account) -> Registry:
        """Return the registry of an account; create its stream if there is none. Raises: ApiError."""
        stream = account.streams.get(_STREAM)
        if stream is None:
            stream = await account.changes.create(StreamConfig(
                name=_STREAM, subjects=[_PREFIX + ">"], max_msgs_per_subject=1, max_msgs=-1, max_bytes=-1,
                max_consumers=-1, description="Clients and subscriptions of NATS Streaming"))
        return cls(stream)

    async def load(self) -> dict[str, dict[str, Any]]:
        """Return all records by their keys. A record that cannot be read is logged and left out."""
        records: dict[str, dict[str, Any]] = {}
        next_seq = 1
        while (msgs := await self._stream.next_msgs(ALL, next_seq, _READ_AT_ONCE)).seqs:
            for at, seq in enumerate(msgs.seqs):
                key = msgs.subjects[at].decode().removeprefix(_PREFIX)
                self._seqs[key] = seq
                hlen = 0 if msgs.hlens is None else msgs.hlens[at]
                try:
                    value = json.loads(msgs.bodies[at][hlen:])
                except ValueError:
                    value = None
                if isinstance(value, dict):
                    records[key] = value
                else:
                    log.warning("the registration %s of NATS Streaming cannot be read; it is ignored", key)
            next_seq = msgs.seqs[-1] + 1
        return records

    async def put(self, key: str, record: dict[str, Any]) -> None:
        """Store a record in place of the last one with this key. Raises: ApiError."""
        self._puts += 1
        token = b"%d" % self._puts
        stored = self._waiting[token] = asyncio.get_running_loop().create_future()
        body = json.dumps(record, separators=(",", ":")).encode()
        try:
            self._stream.publish_for(self, [((_PREFIX + key).encode(), token, 0, body)])
            await self._stream.log.safe()  # raises if the log fails, and then nothing is answered
            self._seqs[key] = await stored
        finally:
            self._waiting.pop(token, None)

    async def delete(self, key: str) -> None:
        """Remove a record, if there is one. Raises: ApiError; StoreError."""
        seq = self._seqs.pop(key, None)
        if seq is None:
            return
        await self._stream.delete_msg(seq, erase=False)
        await self._stream.log.safe()

    # --- PubAckReceiver

    def identity(self) -> dict[str, Any]:
        return {}

    def stored(self, replies: Sequence[bytes], first_seq: int) -> None:
        for seq, token in enumerate(replies, first_seq):
            waiting = self._waiting.get(token)
            if waiting is not None and not waiting.done():
                waiting.set_result(seq)

    def duplicate(self, reply: bytes, seq: int) -> None:
        self.stored((reply,), seq)

    def refused(self, replies: Sequence[bytes], error: ApiError) -> None:
        for token in replies:
            waiting = self._waiting.get(token)
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)

