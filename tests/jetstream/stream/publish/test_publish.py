"""Publishing into a stream: PubAcks, headers, refusals, in nats-server's order of checks."""

from __future__ import annotations

from typing import Any

import pytest

from broker.storage.log.settings import LogSettings
from tests.jetstream.stream.world import World, ask, everything, pub, publish, read_all, turns


def error(err_code: int, description: str, code: int = 400) -> dict[str, Any]:
    return {"error": {"code": code, "err_code": err_code, "description": description}, "stream": "S", "seq": 0}


async def test_a_run_is_acknowledged_in_order_and_read_back() -> None:
    """A run of publishes without headers gets one PubAck each, and is read back by gets and by chunks."""
    world = World()
    stream = world.stream()
    replies = publish(world, stream, *(pub(b"S.a", b"%d" % i) for i in range(1, 301)))
    assert stream.last_seq == 300
    assert world.bus.order == []
    await world.settle()
    assert world.bus.order == replies
    assert world.bus.replies[replies[6]] == [b'{"stream":"S","seq":7}']
    expected = [(i, b"S.a", b"%d" % i) for i in range(1, 301)]
    assert await everything(stream) == expected
    assert await read_all(stream) == expected
    assert (stream.first_seq, stream.last_seq, stream.msgs, stream.safe_seq) == (1, 300, 300, 300)
    await world.close()


async def test_replies_keep_the_order_of_decisions() -> None:
    """PubAcks, refusals and duplicates of one run are sent in the order of its publishes, once it is persisted."""
    world = World()
    stream = world.stream(max_msg_size=10)
    run = [pub(b"S.a", b"1", Nats_Msg_Id="x"), pub(b"S.a", b"far too long for it"), pub(b"S.a", b"2"),
           pub(b"S.a", b"3", Nats_Expected_Stream="T"), pub(b"S.a", b"", reply=b"")]
    publish(world, stream, *run)
    assert world.bus.order == []
    await world.settle()
    assert world.bus.order == [msg[1] for msg in run[:4]]
    assert stream.last_seq == 2
    await world.close()


@pytest.mark.shows("publish.pub_ack")
async def test_pub_ack_bytes() -> None:
    """The exact bytes of a PubAck, a duplicate's PubAck, and a refusal."""
    world = World()
    world.domain = "hub"
    stream = world.stream()
    first, again, bad = (pub(b"S.a", b"", Nats_Msg_Id="x"), pub(b"S.a", b"", Nats_Msg_Id="x"),
                         pub(b"S.a", b"", Nats_Expected_Last_Sequence="9"))
    publish(world, stream, first, again, bad)
    await world.settle()
    assert world.bus.replies[first[1]] == [b'{"stream":"S","domain":"hub","seq":1}']
    assert world.bus.replies[again[1]] == [b'{"stream":"S","domain":"hub","seq":1,"duplicate": true}']
    assert world.bus.replies[bad[1]] == [
        b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"S","seq":0}']
    await world.close()


REFUSALS = [
    # request, config, headers, payload, expected
    ("wrong stream", {}, {"Nats_Expected_Stream": "T"}, b"", error(10060, "expected stream does not match")),
    ("wrong last seq", {}, {"Nats_Expected_Last_Sequence": "7"}, b"", error(10071, "wrong last sequence: 2")),
    ("last seq that is no number", {}, {"Nats_Expected_Last_Sequence": "x"}, b"",
     error(10071, "wrong last sequence: 2")),
    ("wrong last subject seq", {}, {"Nats_Expected_Last_Subject_Sequence": "1"}, b"",
     error(10071, "wrong last sequence: 2")),
    ("last seq of another subject", {}, {"Nats_Expected_Last_Subject_Sequence": "2",
                                         "Nats_Expected_Last_Subject_Sequence_Subject": "S.b"}, b"",
     error(10071, "wrong last sequence: 1")),
    ("last seq of a pattern", {}, {"Nats_Expected_Last_Subject_Sequence": "1",
                                   "Nats_Expected_Last_Subject_Sequence_Subject": "S.*"}, b"",
     error(10071, "wrong last sequence: 2")),
    ("subject without sequence", {}, {"Nats_Expected_Last_Subject_Sequence_Subject": "S.b"}, b"",
     error(10193, "missing sequence for expected last sequence per subject")),
    ("wrong last id", {}, {"Nats_Expected_Last_Msg_Id": "z"}, b"", error(10070, "wrong last msg ID: two")),
    ("roll-up not allowed", {}, {"Nats_Rollup": "sub"}, b"", error(10111, "rollup not permitted", 500)),
    ("roll-up of nothing known", {"allow_rollup_hdrs": True}, {"Nats_Rollup": "week"}, b"",
     error(10111, 'rollup value invalid: "week"', 500)),
    ("too large", {"max_msg_size": 40}, {}, b"x" * 41, error(10054, "message size exceeds maximum allowed")),
    ("headers count", {"max_msg_size": 40}, {"X": "y" * 40}, b"", error(10054, "message size exceeds maximum allowed")),
    ("headers too large", {}, {"X": "y" * 66_000}, b"", error(10097, "header size exceeds maximum allowed of 64k")),
    ("time to live", {}, {"Nats_TTL": "10s"}, b"", error(10166, "per-message TTL is disabled")),
    ("no time to live", {}, {"Nats_TTL": "soon"}, b"", error(10165, "invalid per-message TTL")),
    ("counter", {}, {"Nats_Incr": "1"}, b"", error(10168, "message counters is disabled")),
    ("no counter", {}, {"Nats_Incr": "one"}, b"", error(10171, "message counter increment is invalid")),
    ("schedule", {}, {"Nats_Schedule": "@every 5s"}, b"", error(10188, "message schedules is disabled")),
    ("scheduler alone", {}, {"Nats_Scheduler": "S.b"}, b"", error(10212, "message schedules invalid scheduler")),
    ("source", {}, {"Nats_Stream_Source": "T 1"}, b"", error(10227, None)),  # type: ignore[arg-type]
    ("atomic batch", {}, {"Nats_Batch_Id": "b"}, b"", error(10174, "atomic publish is disabled")),
    ("order: stream before sequence", {}, {"Nats_Expected_Stream": "T", "Nats_Expected_Last_Sequence": "7"}, b"",
     error(10060, "expected stream does not match")),
    ("order: sequence before duplicate", {}, {"Nats_Msg_Id": "one", "Nats_Expected_Last_Sequence": "7"}, b"",
     error(10071, "wrong last sequence: 2")),
    ("order: last id before roll-up", {}, {"Nats_Expected_Last_Msg_Id": "z", "Nats_Rollup": "sub"}, b"",
     error(10070, "wrong last msg ID: two")),
    ("order: duplicate before last id", {}, {"Nats_Msg_Id": "one", "Nats_Expected_Last_Msg_Id": "z"}, b"",
     {"stream": "S", "seq": 1, "duplicate": True}),
]


@pytest.mark.parametrize("config, headers, payload, expected", [row[1:] for row in REFUSALS],
                         ids=[row[0] for row in REFUSALS])
async def test_refusals(config: dict[str, Any], headers: dict[str, str], payload: bytes,
                        expected: dict[str, Any]) -> None:
    """Refusals have nats-server's code and text, and take no sequence."""
    world = World()
    stream = world.stream(**config)
    await ask(world, stream, pub(b"S.b", Nats_Msg_Id="one"))
    await ask(world, stream, pub(b"S.a", Nats_Msg_Id="two"))
    answer = await ask(world, stream, pub(b"S.a", payload, **headers))
    if "error" in expected:
        assert answer["error"]["err_code"] == expected["error"]["err_code"]
        if expected["error"]["description"] is not None:
            assert answer == expected
    else:
        assert answer == expected
    assert stream.last_seq == 2
    await world.close()


ACCEPTED = [
    ("right expectations", {}, {"Nats_Expected_Stream": "S", "Nats_Expected_Last_Sequence": "2",
                                "Nats_Expected_Last_Subject_Sequence": "2", "Nats_Expected_Last_Msg_Id": "two"}),
    ("empty values say nothing", {}, {"Nats_Expected_Last_Sequence": "", "Nats_Msg_Id": "", "Nats_Rollup": ""}),
    ("another subject's last", {}, {"Nats_Expected_Last_Subject_Sequence": "0",
                                    "Nats_Expected_Last_Subject_Sequence_Subject": "S.none"}),
    ("other headers", {}, {"X": "Nats-Rollup: sub"}),
    ("roll-up in any case", {"allow_rollup_hdrs": True}, {"Nats_Rollup": "SUB"}),
]


@pytest.mark.parametrize("config, headers", [row[1:] for row in ACCEPTED], ids=[row[0] for row in ACCEPTED])
async def test_accepted(config: dict[str, Any], headers: dict[str, str]) -> None:
    """Messages whose expectations are true, or that have none, are stored with their headers unchanged."""
    world = World()
    stream = world.stream(**config)
    await ask(world, stream, pub(b"S.b", Nats_Msg_Id="one"))
    await ask(world, stream, pub(b"S.a", Nats_Msg_Id="two"))
    msg = pub(b"S.a", b"payload", **headers)
    assert await ask(world, stream, msg) == {"stream": "S", "seq": 3}
    kept = await stream.get(3)
    assert kept is not None
    assert (kept.hlen, kept.body) == (msg[2], msg[3])
    await world.close()


async def test_discard_new() -> None:
    """Discard new refuses messages that do not fit, but not replacements, unless it is configured to refuse them."""
    world = World()
    stream = world.stream(max_msgs=2, discard="new")
    for _ in range(2):
        assert "error" not in await ask(world, stream, pub(b"S.a"))
    assert await ask(world, stream, pub(b"S.b")) == error(10077, "maximum messages exceeded", 503)

    stream = world.stream("T", max_msgs=2, max_msgs_per_subject=1, discard="new")
    replies = publish(world, stream, pub(b"T.a", b"1"), pub(b"T.b", b"2"), pub(b"T.a", b"3"), pub(b"T.c", b"4"))
    await world.settle()
    assert [world.bus.answer(reply).get("seq") for reply in replies] == [1, 2, 3, 0]
    assert [msg[0] for msg in await everything(stream)] == [2, 3]

    stream = world.stream("U", max_msgs_per_subject=1, discard="new", discard_new_per_subject=True)
    replies = publish(world, stream, pub(b"U.a"), pub(b"U.a"), pub(b"U.b"))
    await world.settle()
    assert [world.bus.answer(reply)["seq"] for reply in replies] == [1, 0, 2]
    assert world.bus.answer(replies[1])["error"]["description"] == "maximum messages per subject exceeded"

    stream = world.stream("V", max_bytes=100, discard="new")
    assert (await ask(world, stream, pub(b"V.a", b"x" * 68)))["error"]["description"] == "maximum bytes exceeded"
    assert "error" not in await ask(world, stream, pub(b"V.a", b"x" * 67))
    await world.close()


async def test_a_message_larger_than_max_bytes_is_acknowledged_and_removed() -> None:
    """Discard old stores first and then trims, so a single message over max_bytes is acknowledged and removed."""
    world = World()
    stream = world.stream(max_bytes=100)
    assert await ask(world, stream, pub(b"S.a", b"x" * 200)) == {"stream": "S", "seq": 1}
    assert (stream.msgs, stream.size_bytes, stream.first_seq, stream.last_seq) == (0, 0, 2, 1)
    await world.close()


async def test_sealed_and_no_ack() -> None:
    """A sealed stream refuses; a stream with no_ack sends no answers, not even refusals."""
    world = World()
    stream = world.stream()
    await ask(world, stream, pub(b"S.a"))
    world.update(stream, sealed=True)
    assert await ask(world, stream, pub(b"S.a")) == error(10109, "invalid operation on sealed stream")
    quiet = world.stream("Q", no_ack=True)
    replies = publish(world, quiet, pub(b"Q.a"), pub(b"Q.a", b"", Nats_Expected_Stream="T"))
    await world.settle()
    assert quiet.msgs == 1
    assert not any(reply in world.bus.replies for reply in replies)
    await world.close()


async def test_batches_are_disabled() -> None:
    """A publish of a fast-ingest batch gets an error, and its neighbours in the run are stored."""
    world = World()
    stream = world.stream()
    replies = publish(world, stream, pub(b"S.a"), pub(b"S.a", reply=b"_I.u.10.ok.1.0.$FI"), pub(b"S.a"))
    await world.settle()
    assert [world.bus.answer(reply)["seq"] for reply in replies] == [1, 0, 2]
    assert world.bus.answer(replies[1])["error"]["err_code"] == 10205
    await world.close()


async def test_status_and_request_info_are_not_stored() -> None:
    """A status line and the server's own request headers do not reach the stream; other headers do."""
    world = World()
    stream = world.stream()
    with_status = b"NATS/1.0 503 No\r\nA: b\r\n\r\n"
    only_status = b"NATS/1.0 503\r\n\r\n"
    info = b"NATS/1.0\r\nNats-Request-Info: {}\r\nA: b\r\n\r\n"
    publish(world, stream, *((b"S.a", b"", len(block), block + b"x") for block in (with_status, only_status, info)))
    await world.settle()
    kept = [await stream.get(seq) for seq in (1, 2, 3)]
    assert [msg.headers for msg in kept if msg] == [b"NATS/1.0\r\nA: b\r\n\r\n", b"", b"NATS/1.0\r\nA: b\r\n\r\n"]
    assert [msg.payload for msg in kept if msg] == [b"x"] * 3
    await world.close()


@pytest.mark.parametrize("ids_in_blocks", [False, True])
async def test_duplicates_over_a_restart_and_out_of_the_window(ids_in_blocks: bool) -> None:
    """An id is known during its window, also after a restart, and not after the window."""
    world = World(settings=LogSettings(segment_count=2))
    stream = world.stream(duplicate_window=1_000_000_000)
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="x")) == {"stream": "S", "seq": 1}
    world.clock.advance(600_000_000)
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="y")) == {"stream": "S", "seq": 2}
    stream = await world.restart(stream, ids_in_blocks=ids_in_blocks)
    assert await ask(world, stream, pub(b"S.b", Nats_Msg_Id="x")) == {"stream": "S", "seq": 1, "duplicate": True}
    assert await ask(world, stream, pub(b"S.a", Nats_Expected_Last_Msg_Id="y")) == {"stream": "S", "seq": 3}
    world.clock.advance(500_000_000)
    assert await ask(world, stream, pub(b"S.b", Nats_Msg_Id="x")) == {"stream": "S", "seq": 4}
    assert await ask(world, stream, pub(b"S.b", Nats_Msg_Id="y")) == {"stream": "S", "seq": 2, "duplicate": True}
    await world.close()


async def test_ids_of_many_blocks_are_read_side_by_side() -> None:
    """The first publish with an id waits for a few round trips to the store if no checkpoint has the ids.

    The window's blocks cost one get each, about two dozen in flight at a time, and no get of an index.
    """
    world = World()
    stream = world.stream()
    for i in range(100):
        await ask(world, stream, pub(b"S.a", Nats_Msg_Id=f"id-{i}"))
    stream = await world.restart(stream, ids_in_blocks=True)
    under_way = most = calls = 0
    get = world.store.get

    async def counted(*args: Any, **kwargs: Any) -> bytes:
        nonlocal under_way, most, calls
        under_way += 1
        calls += 1
        most = max(most, under_way)
        await turns(3)
        under_way -= 1
        return await get(*args, **kwargs)

    world.store.get = counted  # type: ignore[method-assign]
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="id-42")) == {"stream": "S", "seq": 43, "duplicate": True}
    assert calls == 100
    assert 16 <= most <= 32
    assert await ask(world, stream, pub(b"S.a", Nats_Msg_Id="id-100")) == {"stream": "S", "seq": 101}
    await world.close()


@pytest.mark.parametrize("ids_in_blocks", [False, True])
async def test_the_last_id_is_the_last_messages(ids_in_blocks: bool) -> None:
    """Expected-Last-Msg-Id compares with the last message, which may have no id, also after a restart."""
    world = World()
    stream = world.stream()
    publish(world, stream, pub(b"S.a", Nats_Msg_Id="x"), pub(b"S.a"))
    answer = await ask(world, stream, pub(b"S.a", Nats_Expected_Last_Msg_Id="x"))
    assert answer == error(10070, "wrong last msg ID: ")
    stream = await world.restart(stream, ids_in_blocks=ids_in_blocks)
    answer = await ask(world, stream, pub(b"S.a", Nats_Expected_Last_Msg_Id="x"))
    assert answer == error(10070, "wrong last msg ID: ")
    await world.close()


async def test_too_many_ids() -> None:
    """Beyond the window's memory bound new ids are refused; messages without an id are not."""
    world = World()
    stream = world.stream()
    stream.dedupe.bytes_max = 400
    for i in range(3):
        assert "error" not in await ask(world, stream, pub(b"S.a", Nats_Msg_Id=str(i)))
    assert (await ask(world, stream, pub(b"S.a", Nats_Msg_Id="3")))["error"]["err_code"] == 10167
    assert (await ask(world, stream, pub(b"S.a", Nats_Msg_Id="2")))["duplicate"]
    assert "error" not in await ask(world, stream, pub(b"S.a"))
    await world.close()


async def test_times_never_decrease() -> None:
    """A message's time is the later one of now and the last message's time, whatever the clock does."""
    world = World()
    stream = world.stream()
    await ask(world, stream, pub(b"S.a"))
    world.clock.leap(-3_600_000_000_000)
    await ask(world, stream, pub(b"S.a"))
    world.clock.leap(7_200_000_000_000)
    await ask(world, stream, pub(b"S.a"))
    times = [msg.time_ns for seq in (1, 2, 3) if (msg := await stream.get(seq)) is not None]
    assert times[0] == times[1] < times[2]
    await world.close()
