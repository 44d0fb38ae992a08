"""Changes that a configuration needs at the target, with notes about them, and the comparison of figures. No I/O."""

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
    """Return the stream's configuration at the target; add a text about each change to ``stream.notes``."""
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
    """An archive on its way to the target, with consumers changed that could not be the same there.

    Attributes: ``numbers``, ``consumers``: read from the archive, and known once the first message has passed.
    """

    def __init__(self, stream: StreamToMove, now_ns: int, *, lasting: bool) -> None:
        """Make an adapter; ``lasting``: the target's broker ends with the command, so all state must be stored."""
        self._stream = stream
        self._now_ns = now_ns
        self._lasting = lasting
        self.numbers: Numbers | None = None
        self.consumers: list[ArchivedConsumer] = []

    async def rewrite(self, archive: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the archive for the target. Raises: StreamFailed; the errors of ``archive``."""
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
                    yield self._rewrite_part(reader, writer, one)
                held.clear()
                async for data in archive:
                    yield self._rewrite_part(reader, writer, data)
                reader.finish()
                return
            reader.finish()
        except ArchiveError as error:
            raise StreamFailed(f"its archive cannot be used: {error}") from None

    def _rewrite_part(self, reader: ArchiveReader, writer: ArchiveWriter, data: bytes) -> bytes:
        parts = []
        for item in reader.feed(data):
            if isinstance(item, list):
                parts.append(writer.messages(item))
            elif isinstance(item, End):
                parts.append(writer.end())
        return b"".join(parts)

    def _change(self) -> bool:
        """Change the consumers; return True if any needed a change."""
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
    """Return texts about figures of the stream at the target that are wrong.

    Differences that the stream's own activity explains are left out: a mirror grows, messages expire.
    Args: ``was``: the configuration at the source. ``wanted``: the figures there. ``found``: the figures at the target.
    """
    copies = bool(was.get("mirror") or was.get("sources"))
    grows = copies or bool(was.get("allow_msg_schedules"))
    shrinks = bool(was.get("max_age") or was.get("allow_msg_ttl") or was.get("retention", "limits") != "limits")
    texts = []
    if found.last_seq != wanted.last_seq and not (grows and found.last_seq > wanted.last_seq):
        texts.append(f"last_seq {found.last_seq} instead of {wanted.last_seq}")
    if found.last_seq > wanted.last_seq and grows:
        return texts
    if shrinks and found.messages <= wanted.messages and found.first_seq >= wanted.first_seq:
        return texts
    # nats-server counts a message in memory as smaller than one in a file, and NATS Streaming counts in another way.
    counted = was.get("storage", "file") == "file" and (wanted.bytes or not wanted.messages)
    for name in ("first_seq", "messages", *(("bytes",) if counted else ())):
        if (there := getattr(found, name)) != (here := getattr(wanted, name)):
            texts.append(f"{name} {there} instead of {here}")
    return texts
