"""A message's size: nats-server's formula, and the sum of a block's messages."""

from __future__ import annotations

import pytest

from broker.storage.format.message_size import message_size, messages_size

HEADERS = b"NATS/1.0\r\n\r\n"

ROWS = [
    # subject, headers, payload, size
    (b"a", b"", b"", 31),
    (b"orders.eu", b"", b"hello", 44),
    (b"orders.eu", HEADERS, b"hello", 60),
    (b"orders.eu", HEADERS, b"", 55),
]


@pytest.mark.parametrize("subject, headers, payload, size", ROWS)
def test_one_message(subject: bytes, headers: bytes, payload: bytes, size: int) -> None:
    """Shows the size that nats-server computes."""
    assert message_size(subject, len(headers), headers + payload) == size


def test_messages_together() -> None:
    """Shows that the size of many messages is the sum of their sizes."""
    assert messages_size(0, 0, 0, 0) == 0
    assert messages_size(len(ROWS), sum(bool(row[1]) for row in ROWS), sum(len(row[0]) for row in ROWS),
                         sum(len(row[1] + row[2]) for row in ROWS)) == sum(row[3] for row in ROWS)
