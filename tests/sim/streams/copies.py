"""Mirrors and sources: a copy has its origin's messages, each once, in their order, and in the end all that live there.

    origin ──┬──────────────> mirror   the same sequences          origin, other: limits, deletes and purges as anywhere
             └──────┐                                              mirror, sum: nothing is removed by name; no stream is
    other ── one subject ───> sum      and messages of its own                  deleted, so a name is one stream

Whoever reads a copy may have seen each of its stored messages, so these stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.protocol import headers as header_block
from tests.sim.streams.record import Lost, Publish, StreamRecord
from tests.sim.streams.special import Special
from tests.sim.streams.until import until

if TYPE_CHECKING:
    from broker.storage.state.stream import StreamState
    from tests.sim.streams.checker import Message
    from tests.sim.streams.client import Client
    from tests.sim.streams.process import Process
    from tests.sim.streams.world import World

__all__ = ["Copies"]

_FILTERED = "other.1"


class _Copy(StreamRecord):
    """The record of a mirror, or of a stream with sources."""

    def __init__(self, stream_id: int, kind: str, config: dict[str, Any], world: World) -> None:
        super().__init__(stream_id, kind, config)
        self._sent_to = world.sent_to
        self._places: dict[bytes, int] = {}
        """Sequence in this copy by payload."""

    def record_payload(self, seq: int, payload: bytes, where: str) -> None:
        if payload in self.sent:
            super().record_payload(seq, payload, where)
            return
        known = self.named.setdefault(seq, payload)
        if known != payload:
            raise Lost(f"{self}: sequence {seq} names two messages: {known!r}, and {where} {payload!r}")
        if self._places.setdefault(payload, seq) != seq:
            raise Lost(f"{self}: {payload!r} was copied twice, as {self._places[payload]} and, {where}, {seq}")
        origin = self._sent_to.get(payload)
        if origin is None or origin.kind not in ("origin", "other"):
            raise Lost(f"{self}: {where} {seq} reads {payload!r}, which nobody published to its origins")
        if self.kind == "mirror":
            origin.record_payload(seq, payload, "in its mirror")

    def stays(self, seq: int, publish: Publish) -> None:
        """Record that a message was seen in the store."""
        self.acked[seq] = publish


class Copies(Special):
    """The family of mirrors, sources and their origins."""

    kinds = stay = ("origin", "other", "mirror", "sum")
    kept = ("mirror", "sum")

    def record(self, stream_id: int, kind: str, config: dict[str, Any]) -> StreamRecord:
        return _Copy(stream_id, kind, config,
                     self.world) if kind in ("mirror", "sum") else super().record(stream_id, kind, config)

    def publish(self, record: StreamRecord, client: Client) -> None:
        if record.kind != "mirror":
            client.publish_run(record)

    def check(self, record: StreamRecord, stream: StreamState, messages: dict[int, Message], now_ns: int) -> None:
        if not isinstance(record, _Copy):
            return
        came: dict[bytes, int] = {}
        for seq, message in sorted(messages.items()):
            origin = self.world.sent_to[message.payload]
            if origin is record:
                continue
            if seq not in record.acked:
                record.stays(seq, origin.sent[message.payload])
                self.world.counts["copied"] += 1
            if record.kind == "mirror":
                continue
            name, number = (header_block.get(message.body[:message.hlen], b"Nats-Stream-Source")
                            or b"- 0").split(b" ")[:2]
            origin.record_payload(int(number), message.payload, f"in {record}")
            if name.decode() != origin.name or came.get(name, 0) >= int(number):
                raise Lost(f"{record}: {seq} has the source {name!r} {number!r}, after {came}")
            came[name] = int(number)

    async def check_end(self, owner: Process) -> None:
        await until(self.world, lambda: not self._missing(), lambda: f"copies are complete: {self._missing()}")

    def _missing(self) -> str:
        """Return a message that a copy lacks, "" for none."""
        found = self.world.check_store()
        live = {record.kind: found[record.stream_id] for record in self.world.records.values()
                if record.stream_id in found}
        if "mirror" in live:
            for seq, message in live.get("origin", {}).items():
                if seq not in live["mirror"]:
                    return f"{seq}, {message.payload!r}, is not in the mirror"
        if "sum" in live:
            here = {message.payload for message in live["sum"].values()}
            for kind in ("origin", "other"):
                for seq, message in live.get(kind, {}).items():
                    if message.payload not in here and (kind == "origin" or message.subject == _FILTERED.encode()):
                        return f"{seq} of {kind}, {message.payload!r}, is not in the sum"
        return ""
