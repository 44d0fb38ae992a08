"""The headers that staged messages may have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client

from broker.jetstream.stream.publish.checks import TABLE
from broker.protocol import headers as header_block
from broker.storage.staging.headers import ACTED_UPON, MSG_ID, MSG_ID_BLOCK, first_flaw, flaw

names = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1, max_size=12)
values = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=20)


@given(st.lists(st.tuples(names, values), max_size=6))
@settings(max_examples=60, deadline=None)
async def test_a_block_without_flaw_is_parsed_by_a_client_library(pairs: list[tuple[str, str]]) -> None:
    """Shows that nats-py finds each name, without an error."""
    block = header_block.build([(name.encode(), value.encode()) for name, value in pairs])
    if flaw(block) is None:
        parsed = await Client()._process_headers(block)
        assert set(parsed or ()) == {name for name, _ in pairs}
    else:
        assert {name.encode() for name, _ in pairs} & ACTED_UPON


@pytest.mark.parametrize(("block", "why"), [
    (b"X: y", "no header block"), (b"NATS/1.0\r\nX: y\r\n", "no header block"),
    (b"NATS/1.0\r\n\r\nX: y\r\n\r\n", "no header block"),
    (b"NATS/1.0\nX: y\n\n", "no header block"), (b"nats/1.0\r\nX: y\r\n\r\n", "no header block"),
    (b"NATS/1.0\r\nX\r\n\r\n", "no header block"), (b"NATS/1.0\r\n: y\r\n\r\n", "no header block"),
    (b"NATS/1.0\r\nX : y\r\n\r\n", "no header block"), (b"NATS/1.0\r\nX: y\r\n z\r\n\r\n", "no header block"),
    (b"NATS/1.0\r\nX: y\nZ: z\r\n\r\n", "no header block"), (b"NATS/1.0\r\nX: y\rZ\r\n\r\n", "no header block"),
    (b"NATS/1.0\r\nGr\xc3\xb6\xc3\x9fe: y\r\n\r\n", "no header block"),
    (b"NATS/1.0\r\nX: y\r\n\r\nand more\r\n\r\n", "no header block"),
    # A status: libraries take 100 for a heartbeat, 404 for the end of a pull request. A publish loses it.
    (b"NATS/1.0 100 Idle Heartbeat\r\n\r\n", "no header block"), (b"NATS/1.0 404\r\nX: y\r\n\r\n", "no header block"),
    (b"NATS/1.0\r\nX: \xff\r\n\r\n", "not UTF-8"),
    (b"NATS/1.0\r\nX: y\r\nNats-Rollup: all\r\n\r\n", "Nats-Rollup"), (b"NATS/1.0\r\nNats-TTL:5s\r\n\r\n", "Nats-TTL")])
def test_flaws(block: bytes, why: str) -> None:
    """Shows each reason, for a single message and for the one of three messages that has it."""
    assert why in str(flaw(block))
    sound = header_block.build([(b"X", b"y"), (MSG_ID, b"7")])
    found = first_flaw([0, len(sound), len(block)], [b"payload", sound + b"payload", block + b"payload"],
                       [b"", b"7", b""])
    assert found is not None
    assert found[0] == 2
    assert why in found[1]


@pytest.mark.parametrize(("block", "msg_id"), [
    (b"", b"1"), (MSG_ID_BLOCK % b"1", b""), (MSG_ID_BLOCK % b"1", b"2"), (header_block.build([(b"X", b"1")]), b"1"),
    (MSG_ID_BLOCK % b"1\r\nNats-TTL: 5s", b"1\r\nNats-TTL: 5s"), (MSG_ID_BLOCK % b"\xff", b"\xff")])
def test_a_message_has_the_id_that_its_block_lists(block: bytes, msg_id: bytes) -> None:
    """Shows ids that only the duplicate window would have, and ids that only a reader would find."""
    assert first_flaw([len(block)], [block + b"payload"], [msg_id]) is not None


def test_messages_without_flaw() -> None:
    """Shows no header, an id alone, an id among others, the first of two, an empty one, and a block without headers."""
    rows = [(b"", b""), (MSG_ID_BLOCK % b"1", b"1"), (MSG_ID_BLOCK % "größe".encode(), "größe".encode()),
            (header_block.build([(b"X", b""), (MSG_ID, b"2"), (MSG_ID, b"3")]), b"2"), (MSG_ID_BLOCK % b"", b""),
            (header_block.build(), b""), (header_block.build([(b"Nats-Stream", b"S")]), b"")]
    blocks, ids = zip(*rows, strict=True)
    assert first_flaw([*map(len, blocks)], [block + b"x" for block in blocks], ids) is None


def test_every_header_that_a_stream_acts_upon_is_refused() -> None:
    """Shows that each header that a check of a published message reads is refused, except the id."""
    read = {name for rule in TABLE for name in rule.headers or ()}
    assert read - {MSG_ID} <= ACTED_UPON
