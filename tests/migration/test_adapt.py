"""Decisions without a server: the order of moving, changes at the target, and the comparison of streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.jetstream.archive.contents import ArchiveReader, ArchiveWriter
from broker.jetstream.archive.values import ArchivedConsumer, ArchivedMsg, ArchivedStream
from broker.migration.adapt import Adapted, adapted_config, differences
from broker.migration.compare import compare
from broker.migration.errors import CannotMigrate, StreamFailed
from broker.migration.folders import FolderSource
from broker.migration.streams import Numbers, StreamToMove, in_order

MESSAGES = [ArchivedMsg(seq, seq * 10**9, b"s.%d" % seq, 0, b"payload %d" % seq) for seq in range(1, 2001)]


def archive(consumers: list[ArchivedConsumer], messages: list[ArchivedMsg] = MESSAGES) -> bytes:
    writer = ArchiveWriter(1)
    last = messages[-1].seq if messages else 0
    parts = [writer.begin(ArchivedStream(len(messages), 1, 1, last, "", "", len(consumers)))]
    parts += [writer.consumer(one) for one in consumers]
    return b"".join([*parts, writer.messages(messages), writer.end()])


async def pieces(data: bytes, size: int = 777) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at:at + size]


def stream(name: str, **config: Any) -> StreamToMove:
    return StreamToMove(name, {"name": name, **config}, Numbers())


def test_copies_move_before_their_origins() -> None:
    """Circles get some order, too; streams of other accounts do not count."""
    streams = [stream("A"), stream("B", mirror={"name": "A"}), stream("C", sources=[{"name": "B"}, {"name": "D"}]),
               stream("D"), stream("E", sources=[{"name": "F"}]), stream("F", sources=[{"name": "E"}]),
               stream("G", mirror={"name": "C", "external": {"api": "x"}})]
    order = [one.name for one in in_order(streams)]
    assert sorted(order) == list("ABCDEFG")
    assert order.index("C") < order.index("B") < order.index("A")
    assert order.index("C") < order.index("D")


async def test_an_archive_is_passed_on_as_it_is() -> None:
    """The archive is passed on byte for byte if nothing has to change; its figures and consumers are known
    afterwards."""
    data = archive([ArchivedConsumer("c", {"durable_name": "c", "num_replicas": 0}, (3, 3), (1, 1), {2: (2, 5)})])
    adapted = Adapted(stream("S"), 1, lasting=True)
    assert b"".join([part async for part in adapted.rewrite(pieces(data))]) == data
    assert adapted.numbers == Numbers(2000, 1, 1, 2000)
    assert [(one.name, one.pending) for one in adapted.consumers] == [("c", {2: (2, 5)})]


async def test_consumers_that_cannot_be_as_they_were() -> None:
    """Replicas and state in memory are changed; everything else of the archive is the same."""
    given = stream("S", num_replicas=3, placement={"cluster": "c"}, storage="memory")
    config = {"durable_name": "c", "num_replicas": 3, "mem_storage": True}
    data = archive([ArchivedConsumer("c", config, (3, 3), (1, 1), {2: (2, 5)})])
    adapted = Adapted(given, 1, lasting=True)
    out = b"".join([part async for part in adapted.rewrite(pieces(data))])
    found = list(ArchiveReader().feed(out))
    [consumer] = [item for item in found if isinstance(item, ArchivedConsumer)]
    assert consumer == ArchivedConsumer("c", {"durable_name": "c", "num_replicas": 0}, (3, 3), (1, 1), {2: (2, 5)})
    assert [msg for item in found if isinstance(item, list) for msg in item] == MESSAGES
    assert adapted_config(given, memory_to_file=True) == {"name": "S", "num_replicas": 1, "storage": "file"}
    assert len(given.notes) == 4


@pytest.mark.parametrize("consumers", [0, 1])
async def test_a_damaged_archive(consumers: int) -> None:
    """The archive is cut, also where it is rewritten: the stream fails."""
    data = archive([ArchivedConsumer("c", {"durable_name": "c", "num_replicas": 3})] * consumers)
    for cut in (0, 5, 40, len(data) - 1 if consumers else 60):
        with pytest.raises(StreamFailed, match="its archive cannot be used"):
            async for _ in Adapted(stream("S"), 1, lasting=False).rewrite(pieces(data[:cut])):
                pass


@pytest.mark.parametrize(("config", "found", "wrong"), [
    ({}, Numbers(5, 50, 1, 5), []),
    ({}, Numbers(4, 40, 2, 5), ["first_seq 2 instead of 1", "messages 4 instead of 5", "bytes 40 instead of 50"]),
    ({"max_age": 1}, Numbers(4, 40, 2, 5), []),
    ({"retention": "workqueue"}, Numbers(0, 0, 6, 5), []),
    ({"max_age": 1}, Numbers(6, 60, 1, 6),
     ["last_seq 6 instead of 5", "messages 6 instead of 5", "bytes 60 instead of 50"]),
    ({"mirror": {"name": "O"}}, Numbers(7, 70, 1, 7), []),
    ({"mirror": {"name": "O"}}, Numbers(4, 40, 1, 4),
     ["last_seq 4 instead of 5", "messages 4 instead of 5", "bytes 40 instead of 50"]),
    ({"storage": "memory"}, Numbers(5, 99, 1, 5), []),
], ids=str)
def test_differences_that_may_have_happened_since(config: dict[str, Any], found: Numbers, wrong: list[str]) -> None:
    assert differences(config, Numbers(5, 50, 1, 5), found) == wrong


async def test_messages_compared() -> None:
    """Each kind of difference is reported by sequence."""
    other = [*MESSAGES[:9], MESSAGES[9]._replace(body=b"!"), MESSAGES[10]._replace(time_ns=1, subject=b"x"),
             *MESSAGES[12:], ArchivedMsg(3000, 1, b"new", 0, b"")]
    done = await compare(pieces(archive([])), pieces(archive([], other)))
    assert (done.same, done.missing, done.added, done.differing) == (1997, 1, 1, 2)
    assert done.different == ["message 10 has another payload", "message 11 has another time and subject",
                              "message 12 is missing"]


@pytest.mark.parametrize(("text", "reason"), [
    ("{", "the backup is not whole"), ("[]", "no configuration"), ('{"config": {"name": "S"}}', "no configuration"),
    ('{"config": {"name": "a b\\r\\nPUB x 0"}, "state": {}}', "is no name of a stream"),
    ('{"config": {"name": ""}, "state": {}}', "is no name of a stream"),
    ('{"config": {"name": "S"}, "state": {"messages": []}}', "its state is not one of a stream"),
])
async def test_folders_that_are_no_backups(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "stream.tar.s2").write_bytes(b"")
    (tmp_path / "backup.json").write_text(text)
    with pytest.raises(CannotMigrate, match=reason):
        await FolderSource(tmp_path).streams()


async def test_two_backups_of_one_stream(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stream.tar.s2").write_bytes(b"")
        (tmp_path / name / "backup.json").write_text(json.dumps({"config": {"name": "S"}, "state": {}}))
    with pytest.raises(CannotMigrate, match="both backups of S"):
        await FolderSource(tmp_path).streams()
    with pytest.raises(CannotMigrate, match="no backup"):
        await FolderSource(tmp_path / "none").streams()
