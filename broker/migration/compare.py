"""Compare the messages of two archives of one stream: sequence, time, subject, headers and payload of each."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from broker.jetstream.archive.contents import ArchiveReader
from broker.jetstream.archive.errors import ArchiveError
from broker.jetstream.archive.values import ArchivedMsg
from broker.migration.errors import StreamFailed

__all__ = ["Compared", "compare"]

_TEXTS_MAX = 10


@dataclass(slots=True)
class Compared:
    """The numbers of messages that are the same on both sides, or not."""

    same: int = 0
    missing: int = 0
    """Messages that only the source has."""
    added: int = 0
    """Messages that only the target has."""
    differing: int = 0
    different: list[str] = field(default_factory=list)
    """Texts about the first few messages that are missing or differ."""

    def note(self, text: str) -> None:
        """Add a text, if it is one of the first."""
        if len(self.different) < _TEXTS_MAX:
            self.different.append(text)


async def compare(source: AsyncIterator[bytes], target: AsyncIterator[bytes]) -> Compared:
    """Compare two archives in one pass. Raises: StreamFailed; CannotMigrate."""
    done = Compared()
    theirs, ours = _messages(source), _messages(target)
    here, there = await anext(theirs, None), await anext(ours, None)
    while here is not None or there is not None:
        if there is None or (here is not None and here.seq < there.seq):
            assert here is not None
            done.missing += 1
            done.note(f"message {here.seq} is missing")
            here = await anext(theirs, None)
        elif here is None or there.seq < here.seq:
            done.added += 1
            there = await anext(ours, None)
        else:
            if here == there:
                done.same += 1
            else:
                done.differing += 1
                done.note(f"message {here.seq} has another {_differing_parts(here, there)}")
            here, there = await anext(theirs, None), await anext(ours, None)
    return done


def _differing_parts(here: ArchivedMsg, there: ArchivedMsg) -> str:
    pairs = (("time", here.time_ns, there.time_ns), ("subject", here.subject, there.subject),
             ("headers", here.body[:here.hlen], there.body[:there.hlen]),
             ("payload", here.body[here.hlen:], there.body[there.hlen:]))
    return " and ".join(name for name, one, other in pairs if one != other)


async def _messages(archive: AsyncIterator[bytes]) -> AsyncIterator[ArchivedMsg]:
    reader = ArchiveReader()
    try:
        async for data in archive:
            for item in reader.feed(data):
                if isinstance(item, list):
                    for msg in item:
                        yield msg
        reader.finish()
    except ArchiveError as error:
        raise StreamFailed(f"an archive cannot be read: {error}") from None
