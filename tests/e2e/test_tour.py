"""The README's tour as a reader runs it, also twice, days apart, and with missing streams, subjects or brokers."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from nats.aio.client import Client
from nats.js.api import StreamConfig

from tests.harness import BrokerProcess
from tests.tour import tour

library = tour("library")

SCRIPT = Path(str(library.__file__))


def some_files(root: Path) -> list[library.File]:  # type: ignore[name-defined]
    """Make a small library: two packages, one in the other."""
    for name in ("a", "b", "asyncio/one", "asyncio/two", "asyncio/inner/three"):
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
    return list(library.files(root))


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess("-js", "-sd", str(tmp_path / "store")) as broker:
        yield broker


@pytest_asyncio.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[Client]:
    client = await library.connect(broker.url)
    yield client
    await client.close()


async def script(*words: str) -> tuple[int, str, str]:
    """Run the script with these arguments; return exit status, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), *words, stdout=asyncio.subprocess.PIPE,
                                                   stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_published_again_after_the_duplicate_window(broker: BrokerProcess, client: Client,
                                                          tmp_path: Path) -> None:
    """The stream has each file once, whether or not its id is remembered; `read` finds each once."""
    files, js = some_files(tmp_path / "library"), client.jetstream()
    # Earlier versions of the tour made the stream like this.
    await js.add_stream(StreamConfig(name=library.STREAM, subjects=["lib.>"], allow_direct=True))
    await library.make_stream(js)
    config = (await js.stream_info(library.STREAM)).config
    assert (config.duplicate_window, config.max_msgs_per_subject) == (86_400, 1)
    first = await library.publish(client, files)
    known: list[bool] = []
    assert await library.publish(client, files, acked=lambda file, seq, duplicate: known.append(duplicate)) == first
    assert known == [True] * len(files)
    # The window ends, as after a day.
    await js.update_stream(config.evolve(duplicate_window=0.1))
    await asyncio.sleep(0.2)
    again = await library.publish(client, files)
    assert min(again.values()) > max(first.values())
    state = (await js.stream_info(library.STREAM, subjects_filter=">")).state
    assert state.subjects == dict.fromkeys(first, 1)
    status, printed, _ = await script("read", "--url", broker.url)
    assert (status, "5 messages read" in printed, "all as their checksums say" in printed) == (0, True, True), printed


async def test_reading_distinguishes_damage_from_files_published_again(client: Client, tmp_path: Path) -> None:
    """Only messages that differ from their checksum count as damaged; a new sequence does not."""
    files, js = some_files(tmp_path / "library"), client.jetstream()
    await library.make_stream(js)
    await library.publish(client, files)
    await js.publish("lib.b", b"not what the header says", headers=files[1].headers | {"Nats-Msg-Id": "other"})
    reading = library.Reading(seqs={"lib.a": 99})
    await library.read(client, "D", [], len(files), reading=reading)
    assert (reading.wrong, reading.moved) == (["lib.b"], ["lib.a"])
    assert reading.seqs["lib.a"] == 1


async def test_filters(broker: BrokerProcess, client: Client, tmp_path: Path) -> None:
    """NATS filters work; one that matches nothing, and one that the server refuses, are reported."""
    await library.make_stream(client.jetstream())
    await library.publish(client, some_files(tmp_path / "library"))
    for filters, count in ((["lib.asyncio.*"], 2), (["lib.asyncio.>"], 3), (["lib.asyncio.*", "lib.a"], 3)):
        status, printed, err = await script("--url", broker.url, "read", "--filter", *filters)
        assert (status, err) == (0, "")
        assert printed.startswith(f"{count} messages read")
    for filters, why in ((["lib.none.*"], "no subject of the stream LIBRARY matches lib.none.*\n"),
                         (["lib.>", "lib.asyncio.*"], "consumer subject filters cannot overlap")):
        status, printed, err = await script("read", "--url", broker.url, "--filter", *filters)
        assert (status, printed) == (1, "")
        assert why in err
        assert err.count("\n") == 1


async def test_missing_streams_subjects_and_brokers(broker: BrokerProcess, client: Client) -> None:
    """A missing stream, subject or broker gives one line on standard error and status 1, without waiting."""
    for words in (["read"], ["show", "lib.a"]):
        status, printed, err = await script(*words, "--url", broker.url)
        assert (status, printed, err) == (1, "", f"the broker at {broker.url} has no stream LIBRARY: publish first "
                                              f"(stream not found)\n")
    await library.make_stream(client.jetstream())
    for words, why in ((["read"], "the stream LIBRARY is empty\n"),
                       (["show", "lib.nobody"], "no message under the subject lib.nobody in the stream LIBRARY\n")):
        assert await script(*words, "--url", broker.url) == (1, "", why)
    with socket.socket() as unused:  # The socket is bound, so nobody else has its port.
        unused.bind(("127.0.0.1", 0))
        nowhere = f"nats://127.0.0.1:{unused.getsockname()[1]}"
        for words in (["publish"], ["read"], ["show", "lib.a"]):
            status, printed, err = await script(*words, "--url", nowhere)
            assert (status, printed, err.count("\n")) == (1, "", 1)
            assert err.startswith(f"no broker at {nowhere}: ")
            assert "make run" in err


def test_arguments() -> None:
    """The option --url may come before or after the command."""
    for words in (["--url", "nats://x", "publish"], ["publish", "--url", "nats://x"],
                  ["show", "lib.a", "--url", "nats://x"]):
        assert library.parse(words).url == "nats://x"
    assert library.parse(["read"]).url == "nats://127.0.0.1:4222"
