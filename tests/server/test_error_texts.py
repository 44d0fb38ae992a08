"""Each -ERR that a client can get: with one configuration file both servers send the same bytes, which have the
text."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.harness import BrokerProcess, NatsServerProcess, ServerProcess
from tests.server.dialogue import Transcript, play
from tests.server.error_texts import ELSEWHERE, SHOWN, UNREACHABLE, Group

ROOT = Path(__file__).resolve().parents[2]


def configure(path: Path, text: str) -> None:
    path.write_text(text)


async def transcripts(process: type[ServerProcess], group: Group, path: Path) -> dict[str, Transcript]:
    """Return the server's answers in each dialogue of the group."""
    configure(path, group.config)
    async with process("-c", str(path), monitor=False) as server:
        async def reload() -> None:
            configure(path, group.then)
            server.send_signal(signal.SIGHUP)
            await server.wait_line("Reloaded server configuration")

        return {text: await play(server.port, steps, reload, pings="ping_interval" in group.config)
                for text, steps in group.texts.items() if steps}


ANY_ORDER = "permissions that shrink"
"""nats-server visits a connection's subscriptions in the order of a Go map."""


def _sorted(transcript: Transcript) -> list[tuple[str, list[bytes]]]:
    return [(wire, sorted(data.splitlines())) for wire, data in transcript]


@pytest.mark.shows("core.max_sub_tokens")
@pytest.mark.parametrize("name", SHOWN)
async def test_texts_of_errors(name: str, tmp_path: Path) -> None:
    """Both servers answer with the same bytes, which have all texts of the group."""
    group = SHOWN[name]
    ours = await transcripts(BrokerProcess, group, tmp_path / "x.conf")
    theirs = await transcripts(NatsServerProcess, group, tmp_path / "x.conf")
    if name == ANY_ORDER:
        assert [_sorted(ours[text]) for text in ours] == [_sorted(theirs[text]) for text in theirs]
    else:
        assert ours == theirs
    everything = b"".join(data for transcript in theirs.values() for _, data in transcript)
    for text, steps in group.texts.items():
        received = b"".join(data for _, data in theirs[text]) if steps else everything
        assert b"-ERR '%b'\r\n" % text.encode() in received, text


def test_every_text_is_accounted_for() -> None:
    """No text is listed both as shown and as impossible; the named tests exist and contain the text."""
    shown = {text for group in SHOWN.values() for text in group.texts}
    assert not shown & (ELSEWHERE.keys() | UNREACHABLE.keys())
    for text, where in ELSEWHERE.items():
        path, _, test = where.partition("::")
        source = (ROOT / path).read_text()
        assert f"def {test}(" in source
        assert text.partition(".")[0] in source
