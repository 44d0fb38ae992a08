"""The first steps of a new user: the README's clients, run unchanged, and the broker of ``make run``."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio

from tests.docs.snippets import snippets
from tests.docs.typed_python import run_python
from tests.harness import BrokerProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
NATS_CLI = {"retention": "limits", "max_consumers": -1, "max_msgs_per_subject": -1, "max_msgs": -1, "max_bytes": -1,
            "max_age": 0,
            "max_msg_size": -1, "storage": "file", "discard": "old", "num_replicas": 1,
            "duplicate_window": 120_000_000_000,
            "sealed": False, "deny_delete": False, "deny_purge": False, "allow_rollup_hdrs": False,
            "allow_direct": True, "mirror_direct": False}
"""The request of `nats stream add --defaults`, without name and subjects."""


def in_readme(language: str) -> list[str]:
    return [snippet.text for snippet in snippets(README) if snippet.language == language]


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerProcess]:
    async with BrokerProcess("--store", f"file://{tmp_path / 'store'}") as broker:
        yield broker


async def test_both_first_clients_on_one_broker(broker: BrokerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """The two clients work in either order, because their streams do not overlap."""
    [first] = [snippet for snippet in in_readme("python") if "get_last_msg" in snippet]
    [commands] = [snippet for snippet in in_readme("sh") if "nats stream add" in snippet]
    _, _, _, stream, *rest = shlex.split(commands.splitlines()[0])
    subjects = rest[rest.index("--subjects") + 1].split(",")
    names: dict[str, Any] = {}
    for _ in range(2):
        await run_python(first.replace("nats://127.0.0.1:4222", broker.url), names)
        assert "b'hello'" in capsys.readouterr().out
        client = names["js"]._nc
        answer = await client.request(f"$JS.API.STREAM.CREATE.{stream}",
                                      json.dumps({"name": stream, "subjects": subjects, **NATS_CLI}).encode())
        assert "error" not in json.loads(answer.data)
        published = shlex.split(commands.splitlines()[1])[-2]
        assert (await client.jetstream().publish(published, b"hello")).stream == stream
        await client.close()


async def test_the_embedded_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's broker within a program serves a client."""
    monkeypatch.chdir(tmp_path)
    [snippet] = [snippet for snippet in in_readme("python") if "async with Broker(" in snippet]
    names: dict[str, Any] = {"nats": nats}
    await run_python(snippet, names)
    assert (tmp_path / "streams").is_dir()


@pytest.mark.parametrize("words", [(), ("HOST=192.0.2.7", "PORT=5000")])
def test_make_run_listens_at_its_address(words: tuple[str, ...]) -> None:
    """The broker listens on this machine only, because it needs no login, and the shown address is its address."""
    lines = subprocess.run(["make", "-n", "run", *words], capture_output=True, text=True, timeout=60, cwd=ROOT,
                           check=True).stdout.splitlines()
    shown = next(found for line in lines if (found := re.search(r"nats://([\d.]+):(\d+)", line)))
    command = shlex.split(next(line for line in lines if "bin/jetblock -" in line))
    assert command[command.index("-a") + 1] == shown[1]
    assert command[command.index("-p") + 1] == shown[2]
    assert words or (shown[1], shown[2]) == ("127.0.0.1", "4222")


def test_keys_that_security_calls_absent_are_refused(tmp_path: Path) -> None:
    """Each key that docs/SECURITY.md calls absent is refused by name."""
    from broker.config.flags import read_flags
    from broker.config.load import load
    from broker.config.settings import ConfigError

    text = " ".join((ROOT / "docs/SECURITY.md").read_text().split())
    [said] = re.findall(r"asks for a feature that jetblock does not have \((.*?)\) is refused", text)
    keys = re.findall(r"`(\w+)`", said)
    assert keys
    for key in keys:
        (tmp_path / "x.conf").write_text(f"{key} {{ }}")
        with pytest.raises(ConfigError, match=f'"{key}" .*jetblock'):
            load(read_flags(["-c", str(tmp_path / "x.conf")]), {})
