"""The command as it is run: every view, as text and JSON, its exit status, and its errors."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.inspect.cli import inspect, main, parse_arguments
from broker.inspect.source import Source
from broker.storage.format.document import encode_document
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from broker.storage.objectstore.base import StoreRefused
from broker.storage.objectstore.file import FileStore
from broker.storage.objectstore.memory import MemoryStore
from tests.inspect.stores import PATHS, STORE_ID, T0, filled

VIEWS = [[], ["--verify"], ["shards"], ["epochs"], ["streams"], ["stream", "ORDERS"], ["segments"],
         ["blocks", "ORDERS"], ["messages", "logs"], ["consumers", "ORDERS"], ["dump", "format"],
         ["dump", "log/00000001-000000000003"]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "store"

    async def fill() -> None:
        store = FileStore(path)
        owner = await filled(store)
        await owner.kill()
        await store.close()

    asyncio.run(fill())
    return path


def files(path: Path) -> dict[str, tuple[bytes, int]]:
    return {str(file): (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_views(directory: Path, view: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each view works as text and as JSON, and nothing in the directory changes."""
    before = files(directory)
    assert main([f"file://{directory}", *view]) == 0
    text = capsys.readouterr()
    assert text.out
    assert text.err == ""
    assert main([f"file://{directory}", *view, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []
    assert files(directory) == before


def json_of(directory: Path, capsys: pytest.CaptureFixture[str], *view: str, status: int = 0) -> dict[str, Any]:
    assert main([f"file://{directory}", *view, "--json"]) == status
    return dict(json.loads(capsys.readouterr().out))


def test_the_figures_in_json(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each view has the right numbers."""
    report = json_of(directory, capsys, "--verify")
    assert {row["name"]: row["messages"] for row in report["streams"]} == {"ORDERS": 8, "logs": 750}
    assert report["format"]["store_id"] == STORE_ID.hex()
    assert report["verified"]["objects"] == 27
    [shard] = report["shards"]
    assert (shard["owner"], shard["position"], shard["log"]["segments"]) == ("broker-b", "00000003-000000000001", 13)
    assert [epoch["end"] for epoch in shard["epochs"]] == [8, 3, None]
    messages = json_of(directory, capsys, "messages", "ORDERS", "--from", "5", "--limit", "2")["messages"]
    assert messages[0]["data"] == "order 2"
    assert messages[0]["headers"] == [["Nats-Msg-Id", "1"]]
    assert messages[1]["data"] == {"base64": "/////////////w=="}
    assert [m["seq"] for m in json_of(directory, capsys, "messages", "ORDERS", "--subject", "*.eu.*")["messages"]] == [
        1, 5, 7, 9]
    blocks = json_of(directory, capsys, "blocks", "logs")["blocks"]
    assert [(row["first_seq"], row["last_seq"], row["dead_messages"]) for row in blocks] == [
        (301, 600, 150), (601, 900, 0), (901, 1200, 0)]
    [consumer] = json_of(directory, capsys, "consumers", "ORDERS")["consumers"]
    assert [row[0] for row in consumer["pending"]] == [3, 4, 5]
    assert json_of(directory, capsys, "stream", "$G/logs")["config"]["subjects"] == ["logs.>"]
    entries = json_of(directory, capsys, "segments")["segments"]
    assert [row["kind"] for row in entries].count("seal") == 2
    assert len(json_of(directory, capsys, "segments", "--limit", "3")["segments"]) == 3


def test_problems_are_listed_and_end_in_status_1(directory: Path, tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """A store is damaged: no view fails, and the views that meet the damage name the object."""
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    key = PATHS.log(Position(1, 4))
    data = bytearray((copy / key).read_bytes())
    data[-1] ^= 1
    (copy / key).write_bytes(data)
    for view in VIEWS:
        status = main([f"file://{copy}", *view])
        out, err = capsys.readouterr()
        assert status == (1 if view in (["--verify"], ["messages", "logs"]) else 0)
        assert (key in out + err) or not status
    report = json_of(copy, capsys, "--verify", status=1)
    [problem] = report["problems"]
    assert problem["object"] == key
    assert problem["means"] == "messages 561 to 600 of stream $G/logs cannot be read"
    assert len(json_of(copy, capsys, "messages", "logs", status=1)["messages"]) == 710
    assert json_of(copy, capsys, "dump", key, status=1)["blocks"][1]["frames"][3]["state"] != "sound"


def cannot(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return str(err)


def test_refused_inspections(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 2 without a store, for a missing name and for wrong arguments, and the reason is shown."""
    assert "no storage directory" in cannot(capsys, f"file://{tmp_path}/nowhere")
    assert not (tmp_path / "nowhere").exists()
    assert "there is no jetblock store" in cannot(capsys, f"file://{tmp_path}")
    assert list(tmp_path.iterdir()) == []
    assert "is not the URL of a store" in cannot(capsys, str(directory))
    assert "only inside its broker" in cannot(capsys, "memory://")
    url = f"file://{directory}"
    assert "there is: $G/ORDERS, $G/logs" in cannot(capsys, url, "messages", "nothing")
    assert "no object has the key" in cannot(capsys, url, "dump", "log/00000009-000000000000")
    assert "no object has the key" in cannot(capsys, url, "dump", "../etc/passwd")
    assert "takes a NAME" in cannot(capsys, url, "stream")
    assert "takes no name" in cannot(capsys, url, "streams", "x")
    assert "there is no view" in cannot(capsys, url, "stram")
    assert "--verify checks the whole store" in cannot(capsys, url, "streams", "--verify")
    assert "--from and --subject" in cannot(capsys, url, "--from", "3")
    assert "is no subject" in cannot(capsys, url, "messages", "logs", "--subject", "a..b")
    assert "invalid" in cannot(capsys, url, "messages", "logs", "--limit", "-1")
    newer = tmp_path / "newer"
    (newer / "v1").mkdir(parents=True)
    body = {"version": JOURNAL_VERSION + 1, "store_id": STORE_ID, "made_at_ns": T0}
    (newer / "v1" / "format").write_bytes(encode_document(ObjectKind.FORMAT, Position(0, 0), STORE_ID, body))
    assert "a newer jetblock made this store" in cannot(capsys, f"file://{newer}")


async def show(store: MemoryStore, *arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = await inspect(Source(store, give_up_ns=0), parse_arguments(["memory://", *arguments]), out, err)
    return status, out.getvalue(), err.getvalue()


async def test_an_empty_store_and_a_store_that_refuses() -> None:
    """A store that no broker has opened yet can be inspected; the store's own error text is shown."""
    store = MemoryStore()
    await store.put("v1/format", [StoreFormat.make(STORE_ID, T0).encode()])
    for view in ([], ["--verify"], ["epochs"], ["streams"], ["segments"]):
        status, out, err = await show(store, *view)
        assert (status, err) == (0, ""), (view, out, err)

    class Refusing(MemoryStore):
        async def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
            raise StoreRefused("s3://b: NoSuchBucket: create the bucket")

    assert await show(Refusing()) == (2, "", "jetblock inspect: s3://b: NoSuchBucket: create the bucket\n")


async def test_terminals_are_safe_from_names() -> None:
    """Control characters of subjects and payloads are escaped in text, and whole in JSON."""
    store = MemoryStore()
    owner = await filled(store)
    owner.streams["logs"].publish(("logs.\x1b[2J", b"", b"\x1b[31mred\n"))
    await owner.log.persisted()
    status, out, _ = await show(store, "messages", "logs", "--from", "1201")
    assert status == 0
    assert "\x1b" not in out
    _, out, _ = await show(store, "messages", "logs", "--from", "1201", "--json")
    assert json.loads(out)["messages"][0]["data"] == {"base64": "G1szMW1yZWQK"}
    await owner.kill()


@pytest.mark.parametrize("view", [[], ["--verify"], ["shards"], ["epochs"], ["streams"], ["segments"],
                                  ["stream", "ORDERS"], ["messages", "ORDERS"]], ids=" ".join)
def test_a_shard_that_is_not_there(directory: Path, view: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 2, because nothing was inspected, and not 0; the existing shard has no problem."""
    for number in ("3", "99999999999"):
        assert main([f"file://{directory}", *view, "--shard", number]) == 2
        printed = capsys.readouterr()
        assert (printed.out, printed.err) == (
            "", f"jetblock inspect: file://{directory}: there is no shard {number}; there is: 0\n")
    assert main([f"file://{directory}", *view, "--shard", "0"]) == 0


def test_a_shard_of_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is that there is no store."""
    assert main([f"file://{tmp_path}", "--shard", "3"]) == 2
    assert "there is no jetblock store" in capsys.readouterr().err


async def test_a_shard_whose_claims_are_lost() -> None:
    """A shard with a log and no claim is damaged, not missing: it is inspected, and its problems are listed."""
    store = MemoryStore()
    await (await filled(store)).kill()
    for info in await store.list(PATHS.epochs):
        await store.delete(info.key)
    options = parse_arguments(["file:///x", "--shard", "0"])
    out = io.StringIO()
    assert await inspect(Source(store), options, out, out) == 1


def test_suggestions(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelled view gives a suggestion."""
    assert main([f"file://{directory}", "strems"]) == 2
    assert "did you mean streams?" in capsys.readouterr().err
