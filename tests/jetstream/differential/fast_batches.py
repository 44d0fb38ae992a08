"""Scenarios of fast-ingest batches, as data: see player.py for the steps. Each begins on a server without streams."""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

START, APPEND, COMMIT, END, PING = range(5)


def _msg(place: int, operation: int = APPEND, *headers: str, batch: str = "b", flow: int | str = 2, gap: str = "fail",
         subject: str = "s.a") -> str:
    """Return one message of a batch."""
    given = f"[{'; '.join(headers)}]" if headers else ""
    return f"into{given} F.{batch}.{flow}.{gap}.{place}.{operation}.$FI {subject} {batch}{place}"


def _msgs(first: int, last: int, **how: str) -> list[str]:
    return [_msg(place, START if place == 1 else APPEND, **how)  # type: ignore[arg-type]
            for place in range(first, last + 1)]


def _on(config: str, *steps: str) -> str:
    more = f", {config}" if config else ""
    return "\n".join((f'stream {{"allow_batched": true{more}}}', "fill 1 s.first", "sub f F.>", *steps, "rest f",
                      'consumer R {"ack_policy": "none"}', 'pull R all {"batch": 100, "no_wait": true}', "rest all",
                      "state"))


SCENARIOS: dict[str, str] = {
    "committed": _on("", *_msgs(1, 6), _msg(7, COMMIT)),
    "committed by its end": _on("", *_msgs(1, 3), _msg(4, END)),
    "one message": _on("", _msg(1, COMMIT), _msg(2, APPEND)),
    "not allowed": "\n".join(("stream", "sub f F.>", _msg(1, START), "rest f")),
    "patterns": _on("", *(f"into F.{tail} s.a x" for tail in (
        "$FI", "0.$FI", "1.0.$FI", "fail.1.0.$FI", "9.fail.1.0.$FI", "b.9.fail.1.5.$FI", "b.9.fail.1.x.$FI",
        "b.9.fail.0.0.$FI",
        "b.9.fail.x.0.$FI", "b.9.fail.2.0.$FI", "b.9.fail.1.1.$FI", "b.9.fail.1.3.$FI", "b.9.maybe.1.0.$FI",
        "b.x.fail.1.0.$FI",
        f"{'x' * 65}.9.fail.1.0.$FI", "d.9.fail.2.2.$FI"))),
    "the longest id": _on("", _msg(1, START, batch="x" * 64), _msg(2, COMMIT, batch="x" * 64)),
    "acks as the server likes": _on("", *_msgs(1, 12, flow="0")),
    "acks": _on("", *_msgs(1, 30, flow="8"), _msg(31, COMMIT, flow=8)),
    "two at a time": _on("", *(_msg(place, START if place == 1 else APPEND, batch=batch, flow=4)
                               for place in range(1, 12) for batch in "bc"), _msg(12, COMMIT, flow=4),
                               _msg(12, END, batch="c")),
    "a gap that fails": _on("", *_msgs(1, 3), *_msgs(6, 7), _msg(8, COMMIT)),
    "a gap that is fine": _on("", *_msgs(1, 3, gap="ok"), *_msgs(6, 7, gap="ok"), _msg(8, COMMIT, gap="ok")),
    "gaps before the end": _on("", *_msgs(1, 3, gap="ok"), _msg(9, END, gap="ok"), "get f 4", *_msgs(1, 3),
                               _msg(9, END)),
    "back": _on("", *_msgs(1, 3), _msg(2), "get f 3", *_msgs(1, 3, gap="ok"), _msg(3, gap="ok"), _msg(4, gap="ok")),
    "pings": _on("", *_msgs(1, 3), _msg(3, PING), _msg(2, PING), *_msgs(4, 6), _msg(9, PING), _msg(9, PING)),
    "pings over gaps": _on("", *_msgs(1, 3, gap="ok"), _msg(9, PING, gap="ok"), _msg(10, gap="ok"),
                           _msg(11, COMMIT, gap="ok")),
    "an error that fails": _on("", *_msgs(1, 3), _msg(4, APPEND, "Nats-Expected-Stream: T"), _msg(5)),
    "an error that is fine": _on("", *_msgs(1, 3, gap="ok"), _msg(4, APPEND, "Nats-Expected-Stream: T", gap="ok"),
                                 _msg(5, gap="ok"), _msg(6, COMMIT, "Nats-Expected-Last-Sequence: 99", gap="ok")),
    "an error at once": _on("", _msg(1, START, "Nats-Expected-Stream: T"),
                            _msg(1, START, "Nats-Expected-Stream: T", gap="ok"),
                            _msg(2, COMMIT, gap="ok")),
    "duplicates": _on("", "pub[Nats-Msg-Id: x] s.a 1", _msg(1, START, "Nats-Msg-Id: y"),
                      _msg(2, APPEND, "Nats-Msg-Id: x"),
                      _msg(3, APPEND, "Nats-Msg-Id: y"), _msg(4, COMMIT, "Nats-Msg-Id: x"),
                      "get f 4", _msg(1, COMMIT, "Nats-Msg-Id: x"), "get f 1", _msg(1, START, "Nats-Msg-Id: x"),
                      _msg(2, END)),
    "required API level": _on("", _msg(1, START, "Nats-Required-Api-Level: 1"),
                              _msg(2, APPEND, "Nats-Required-Api-Level: 99"),
                              _msg(3)),
    "single messages between": _on("", _msg(1, START), "fill 2 s.b", _msg(2), "fill 1 s.b", _msg(3, COMMIT)),
    "without acks": _on('"no_ack": true', *_msgs(1, 3), _msg(4, COMMIT), *_msgs(2, 3)),
    "limits": _on('"max_msgs": 3, "discard": "new"', *_msgs(1, 4), _msg(5, END)),
    "message size": _on('"max_msg_size": 20', *_msgs(1, 2), _msg(3, APPEND, "X: " + "y" * 30), _msg(3),
                        _msg(4, COMMIT)),
    "roll-ups": _on('"allow_rollup_hdrs": true',
                    *_msgs(1, 3), _msg(4, APPEND, "Nats-Rollup: sub"), _msg(5, COMMIT, "Nats-Rollup: all")),
    "one per subject": _on('"max_msgs_per_subject": 1', *_msgs(1, 3), _msg(4, COMMIT, subject="s.b")),
    "persisted later": _on('"persist_mode": "async"', *_msgs(1, 3), _msg(4, COMMIT)),
    "sealed meanwhile": _on("", *_msgs(1, 3), "get f 2",
                            'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_batched": true, '
                            '"sealed": true}',
                            _msg(4)),
    "no longer allowed": _on("", *_msgs(1, 3), "get f 2", 'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"]}',
                             _msg(4),
                             "get f 1", 'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_batched": true}',
                             _msg(4)),
    "with an atomic batch's headers": _on("", _msg(1, START, "Nats-Batch-Id: x", "Nats-Batch-Sequence: 1"),
                                          _msg(2, COMMIT)),
    "transformed": _on('"subject_transform": {"src": "s.*", "dest": "s.new.{{wildcard(1)}}"}', *_msgs(1, 3),
                       _msg(4, COMMIT)),
}

SHOWS: dict[str, tuple[str, ...]] = {
    "publish.fast": ("*",),
    "stream.batched": ("not allowed", "no longer allowed"),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
