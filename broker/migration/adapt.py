"""What of a configuration cannot be as it was, and is said; and when two streams hold the same. Decisions without I/O."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from broker.jetstream.archive.contents import ArchiveReader, ArchiveWriter
from broker.jetstream.archive.errors import ArchiveError
from broker.jetstream.archive.values import ArchivedConsumer, ArchivedStream, End
from broker.migration.errors import StreamFailed
from broker.migration.streams import Numbers, StreamToMove

__all__ = ["Adapted", "adapted_config", "differences"]


def adapted_config(stream: StreamToMove, *, memory_to_file: bool) -> dict[str, Any]:
    """The configuration at the target; what differs is noted in ``stream.notes``."""
    config: dict[str, Any] = json.loads(json.dumps(stream.config))
    if int(config.get("num_replicas") or 1) > 1:
        stream.notes.append(f"num_replicas {config['num_replicas']} became 1: the store keeps the copies")
        config["num_replicas"] = 1
    if config.pop("placement", None):
        stream.notes.append("its placement was left out: there is one server")
    if memory_to_file and config.get("storage") == "memory":
        stream.notes.append("it was in memory, and is stored now")
        config["storage"] = "file"
    return config


class Adapted:
    """An archive on its way: reads the stream's numbers and consumers, and changes consumers that could not be here as they are.

    Attributes: ``numbers``, ``consumers``: known once the first message has passed.
    """

    def __init__(self, stream: StreamToMove, now_ns: int, *, lasting: bool) -> None:
        """Args: ``lasting``: only what is stored lasts: the target's broker ends with the command."""
        self._stream = stream
        self._now_ns = now_ns
        self._lasting = lasting
        self.numbers: Numbers | None = None
        self.consumers: list[ArchivedConsumer] = []

    async def of(self, archive: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """The archive as it goes to the target. Raises: StreamFailed; what ``archive`` raises."""
        reader, held, head = ArchiveReader(), list[bytes](), None
        writer = ArchiveWriter(self._now_ns)
        try:
            async for data in archive:
                held.append(data)
                items = reader.feed(data)
                passed = False
                for item in items:
                    if isinstance(item, ArchivedStream):
                        head = item
                        self.numbers = Numbers(item.msgs, item.bytes, item.first_seq, item.last_seq)
                    elif isinstance(item, ArchivedConsumer):
                        self.consumers.append(item)
                    else:
                        passed = True
                        break
                if not passed or head is None:
                    continue
                if not self._change():
                    for one in held:
                        yield one
                    async for data in archive:
                        yield data
                    return
                yield writer.begin(head)
                for consumer in self.consumers:
                    yield writer.consumer(consumer)
                reader = ArchiveReader()
                for one in held:
                    yield self._again(reader, writer, one)
                held.clear()
                async for data in archive:
                    yield self._again(reader, writer, data)
                reader.finish()
                return
            reader.finish()
        except ArchiveError as error:
            raise StreamFailed(f"its archive cannot be used: {error}") from None

    def _again(self, reader: ArchiveReader, writer: ArchiveWriter, data: bytes) -> bytes:
        parts = []
        for item in reader.feed(data):
            if isinstance(item, list):
                parts.append(writer.messages(item))
            elif isinstance(item, End):
                parts.append(writer.end())
        return b"".join(parts)

    def _change(self) -> bool:
        """Whether any consumer had to be changed."""
        changed = False
        for consumer in self.consumers:
            config, notes = consumer.config, self._stream.notes
            if int(config.get("num_replicas") or 0) > 1:
                config["num_replicas"] = 0
                changed = True
            if self._lasting and config.get("mem_storage"):
                config.pop("mem_storage")
                notes.append(f"consumer {consumer.name} kept its state in memory, and is stored now")
                changed = True
        return changed


def differences(was: dict[str, Any], wanted: Numbers, found: Numbers) -> list[str]:
    """In what the stream at the target is not what it should be, less what may have happened to it since.

    Args: ``was``: its configuration at the source.
    """
    copies = bool(was.get("mirror") or was.get("sources"))
    grows = copies or bool(was.get("allow_msg_schedules"))
    shrinks = bool(was.get("max_age") or was.get("allow_msg_ttl") or was.get("retention", "limits") != "limits")
    told = []
    if found.last_seq != wanted.last_seq and not (grows and found.last_seq > wanted.last_seq):
        told.append(f"last_seq {found.last_seq} instead of {wanted.last_seq}")
    if found.last_seq > wanted.last_seq and grows:
        return told
    if shrinks and found.messages <= wanted.messages and found.first_seq >= wanted.first_seq:
        return told
    # nats-server counts a message in memory as smaller than one in a file.
    for name in ("first_seq", "messages", *(("bytes",) if was.get("storage", "file") == "file" else ())):
        if (there := getattr(found, name)) != (here := getattr(wanted, name)):
            told.append(f"{name} {there} instead of {here}")
    return told
