"""The configuration of the nats-server in front: limits leave room for the worker, and errors have places."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import nats
import pytest

from broker.config.flags import read_flags
from broker.config.load import load
from broker.config.settings import ConfigError, Settings
from broker.config.syntax import Value, parse
from broker.front.accounts import limit_notices, linked_names
from broker.front.configuration import Link, front_lines, worker_settings
from broker.front.supervisor import configuration_errors
from tests.front.fronted import FrontedProcess

pytestmark = pytest.mark.shows("cluster.workers_configuration")

LINK = Link("w", 1, 2, "secret")
LIMITED = """
max_payload: 1000
accounts {
  A { jetstream: enabled, users: [ { user: a, password: a } ]
      limits { max_connections: 1, max_leafnodes: 0, max_payload: 900, max_subs: 40 } }
  B { users: [ { user: b, password: b } ], limits { max_conn: 1, max_leafs: 0, max_pay: 900 } }
  C { jetstream: enabled, users: [ { user: c, password: c } ], limits { max_connections: -1, max_payload: -1 } }
}
"""


def settings_of(text: str) -> Settings:
    """Return the settings of a file with this text."""
    return load(read_flags(["--workers", "1", "-js", "-c", "c.conf"]), {}, lambda _: text)


def plain(value: Value) -> object:
    """Return a parsed configuration without its places."""
    inner = value.value
    if isinstance(inner, dict):
        return {key: plain(item) for key, item in inner.items()}
    return [plain(item) for item in inner] if isinstance(inner, list) else inner


def test_limits_leave_room_for_the_worker() -> None:
    """One more connection, and larger messages, in accounts with JetStream alone."""
    settings = settings_of(LIMITED)
    accounts = linked_names(settings)
    lines = front_lines(settings, [LINK], accounts, pages_port=3, pages_path="/x", port=4)
    top = plain(parse("\n".join(text for text, _ in lines)))
    assert isinstance(top, dict)
    assert top["max_payload"] == 1333 + 65536
    limits = {name: account["limits"] for name, account in top["accounts"].items()}
    assert limits == {
        "A": {"max_connections": 2, "max_leafnodes": 1, "max_payload": 1200 + 65536, "max_subs": 40},
        "B": {"max_conn": 1, "max_leafs": 0, "max_pay": 900}, "C": {"max_connections": -1, "max_payload": -1}}
    worker = worker_settings(settings, LINK, accounts)
    assert worker.clients.max_payload == 1333 + 65536
    by_name = {account.name: account.max_payload for account in worker.accounts.configured}
    assert (by_name["A"], by_name["C"]) == (1200 + 65536, -1)
    assert [notice.partition(":")[0] for notice in limit_notices(settings)] == ["Account A"]


def test_the_largest_messages_stay_possible() -> None:
    """nats-server refuses a max_payload above max_pending."""
    settings = settings_of("max_payload: 64MB")
    lines = front_lines(settings, [LINK], linked_names(settings), pages_port=3, pages_path="/x", port=4)
    assert f'"max_payload": {64 << 20}' in [text for text, _ in lines]


async def test_errors_name_the_file_of_the_operator(tmp_path: Path) -> None:
    """An error of nats-server has its place in the file, or in one that it includes."""
    main = tmp_path / "c.conf"
    (tmp_path / "more.conf").write_text("# more\nmqtt { port: 1883\n  prot: 3 }\n")
    main.write_text('server_name: m\ninclude "more.conf"\n\ncluster { name: c\n  port: -1, ruotes: [] }\n')
    settings = load(read_flags(["--workers", "1", "-c", str(main)]), {})
    # Their order is that of a map in Go.
    assert set((await configuration_errors(settings)).splitlines()) == {
        f'{tmp_path}/more.conf:3:3: unknown field "prot"', f'{tmp_path}/c.conf:5:13: unknown field "ruotes"'}


@pytest.mark.parametrize(("text", "words"), [
    ("jetblock { own: [0, 1] }", "set jetblock { shards }"),
    ("jetblock { shards: 2, own: [0, 2] }", "own names shard 2, and the store has the shards 0 to 1"),
    ("jetblock { shards: 2, own: 0, workers: 2 }", "leave own out"),
    ("jetblock { shards: 2, workers: 3 }", "3 workers need a shard each, and shards is 2"),
    ("jetblock { workers: 2 }, no_system_account: true", "needs the system account"),
    ("jetblock { workers: 2 }, jetstream { sync_interval: 2m }", "leave sync_interval out"),
    ("jetblock { shards: 2, own: 1, store: 'memory://' }", "cannot reach a store in memory"),
    ("jetblock { shards: 2, own: 1 }, streaming { id: x }", "NATS Streaming needs all shards"),
])
def test_settings_that_several_owners_refuse(text: str, words: str) -> None:
    """A setting that only the one owner of a store can have is refused, and the error says what to do."""
    with pytest.raises(ConfigError, match=re.escape(words)):
        load(read_flags(["-js", "-c", "c.conf"]), {}, lambda _: text)


def test_workers_deal_out_the_shards() -> None:
    """Each shard is one worker's own, and one worker owns all as a broker alone does."""
    settings = load(read_flags(["--workers", "3", "-js"]), {"JETBLOCK_SHARDS": "8"})
    links = [Link(f"w{number}", 1, 1, "secret") for number in range(3)]
    made = [worker_settings(settings, link, ["$G"], number).storage for number, link in enumerate(links)]
    assert [one.own for one in made] == [(0, 3, 6), (1, 4, 7), (2, 5)]
    assert {one.shards for one in made} == {8}
    settings = load(read_flags(["--workers", "1", "-js"]), {"JETBLOCK_SHARDS": "8"})
    assert worker_settings(settings, links[0], ["$G"]).storage.own is None



async def test_large_answers(tmp_path: Path) -> None:
    """The largest message can be read in each way; an answer that is too large is lost, and the connection is not."""
    config = tmp_path / "c.conf"
    config.write_text(LIMITED)
    async with FrontedProcess("-c", str(config), "-sd", str(tmp_path / "js"), "-js",
                              environ={"AWS_SECRET_ACCESS_KEY": "bucket-key"}) as process:
        client = await nats.connect(process.url, user="a", password="a", allow_reconnect=False)
        js = client.jetstream(timeout=10)
        await js.add_stream(name="S", subjects=["s.>"], allow_direct=True)
        await js.publish("s.largest", b"x" * 900)
        for direct in (True, False):
            assert len((await js.get_msg("S", 1, direct=direct)).data) == 900
        for number in range(700):
            await client.publish(f"s.{number}.{'long' * 25}", b"")
        await js.publish("s.last", b"")
        inbox = client.new_inbox()
        await client.subscribe(inbox)
        await client.publish("$JS.API.STREAM.INFO.S", b'{"subjects_filter": ">"}', reply=inbox)
        await process.wait_line(r"A message of \d+ bytes to \"_INBOX\S+ cannot be sent: max_payload")
        assert (await js.stream_info("S")).state.messages == 702
        assert "Maximum Payload Violation" not in process.tail(1000)
        await client.close()
        if sys.platform == "linux":
            with open(f"/proc/{process.child('nats-server')}/environ", "rb") as environ:  # noqa: ASYNC230
                assert b"bucket-key" not in environ.read()
