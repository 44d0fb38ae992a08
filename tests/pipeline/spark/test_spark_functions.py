"""The SQL functions on random rows, compared with the broker's own functions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from broker.pipeline.spark import functions
from broker.protocol import headers as blocks
from broker.protocol.subject import matches

TOKENS = ["a", "b", "*", ">", "a*", ">a", "", "é", "😀", "(", "[a]", "\\E", "\\Q", "\\", "$", "^", "a\n", "|", "a+",
          "'", '"', "%", "_", "{2}", "?"]
PIECES = [b"NATS/1.0", b"\r\n", b"X: 1\r\n", b"X:2\r\n", b"x: 3\r\n", b"Y:  a: b \r\n", b":e\r\n", b"nocolon\r\n",
          b"\r", b"\n", b"Z:\r\n", "É: ü\r\n".encode(), b"X", b":", b" ", b"\r\n\r\n", b"\x00", b"\xff\xfe", b"\xe4"]
NAMES = ["X", "x", "Y", "Z", "É", "nocolon", ""]


def _subject(rng: random.Random) -> str:
    return ".".join(rng.choice(TOKENS) for _ in range(rng.randrange(1, 5)))


def _pattern(rng: random.Random, subject: str) -> str:
    """Return a pattern that often matches."""
    tokens = subject.split(".")
    for i in range(len(tokens)):
        chance = rng.random()
        if chance < 0.3:
            tokens[i] = "*"
        elif chance < 0.4:
            tokens[i:] = [">"]
            break
    return ".".join(tokens) if rng.random() < 0.8 else _subject(rng)


def test_subjects_match_as_in_the_broker(spark: Any) -> None:
    """Patterns are in a column, literal, or in SQL; tokens are counted from either end."""
    rng = random.Random(7)
    rows = [(subject, _pattern(rng, subject)) for subject in (_subject(rng) for _ in range(3000))]
    frame = spark.createDataFrame(rows, "s string, p string")
    got = frame.select("s", "p", functions.subject_matches("s", frame.p), functions.subject_token("s", 2),
                       functions.subject_token("s", -1)).collect()
    assert len(got) == len(rows)
    for subject, pattern, matched, second, last in got:
        assert matched == matches(pattern.encode(), subject.encode()), (subject, pattern)
        assert [second, last] == [[*subject.split("."), None][1], subject.split(".")[-1]]
    assert 300 < sum(row[2] for row in got) < 2700
    frame.createOrReplaceTempView("subjects")
    for pattern in ("a.>", "*.a", "é.*.b", ">", "a\\E.*", "*.>", "a..b", "😀"):
        expected = sorted(subject for subject, _ in rows if matches(pattern.encode(), subject.encode()))
        assert sorted(row.s for row in frame.where(functions.subject_matches("s", pattern)).collect()) == expected
        found = spark.sql("SELECT s FROM subjects WHERE subject_matches(s, :pattern)", {"pattern": pattern}).collect()
        assert sorted(row.s for row in found) == expected


def test_header_blocks_are_read_as_the_broker_reads_them(spark: Any) -> None:
    """Blocks are of any bytes; a line that does not look like a header is ignored."""
    rng = random.Random(8)
    rows: list[tuple[bytes | None, str]] = [(None, "X")]
    for _ in range(3000):
        block = b"NATS/1.0\r\n" * (rng.random() < 0.8) + b"".join(rng.choices(PIECES, k=rng.randrange(9)))
        rows.append((block, rng.choice(NAMES)))
    frame = spark.createDataFrame(rows, "h binary, n string")
    got = frame.select("h", "n", functions.header("h", frame.n), functions.header("h", "X"),
                       functions.headers_list("h"), functions.headers_map("h")).collect()
    assert len(got) == len(rows)
    for block, name, value, x, listed, mapped in got:
        if block is None:
            assert [value, x, listed, mapped] == [None] * 4
            continue
        block = bytes(block)
        pairs = [(_text(one), _text(other)) for one, other in blocks.items(block)]
        assert value == _text(blocks.get(block, name.encode())), (block, name)
        assert x == _text(blocks.get(block, b"X")), block
        assert [tuple(pair) for pair in listed] == pairs, block
        assert mapped == {one: [b for a, b in pairs if a == one] for one, _ in pairs}, block
    assert sum(row[2] is not None for row in got) > 300


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def test_null_stays_null_and_token_0_is_an_error(spark: Any) -> None:
    functions.register_functions(spark)
    [row] = spark.sql("SELECT subject_matches(NULL, 'a'), subject_matches('a', NULL), subject_token('a.b', 3), "
                      "header(NULL, 'X'), header(CAST('NATS/1.0' AS BINARY), NULL)").collect()
    assert list(row) == [None] * 5
    with pytest.raises(ValueError, match="counted from 1"):
        functions.subject_token("s", 0)
