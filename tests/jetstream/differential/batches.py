"""Scenarios of atomic batches, as data: see player.py for the steps. Each begins on a server without streams."""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]


def _msg(subject: str, place: int, *headers: str, batch: str = "b", commit: str = "") -> str:
    """Return one message of a batch."""
    given = [f"Nats-Batch-Id: {batch}", f"Nats-Batch-Sequence: {place}", *headers]
    if commit:
        given.append(f"Nats-Batch-Commit: {commit}")
    return f"pub[{'; '.join(given)}] {subject} {batch}{place}"


def _batch(*msgs: str | tuple[str, ...], batch: str = "b") -> str:
    """Return a whole batch, of subjects and further headers; the last message commits it."""
    rows = [(one,) if isinstance(one, str) else one for one in msgs]
    return "\n".join(_msg(subject, place, *headers, batch=batch, commit="1" if place == len(rows) else "")
                     for place, (subject, *headers) in enumerate(rows, 1))


_READ = """consumer R {"ack_policy": "none"}
    pull R all {"batch": 100, "no_wait": true}
    rest all"""

_SUBJECT = "Nats-Expected-Last-Subject-Sequence"


def _on(config: str, *steps: str) -> str:
    more = f", {config}" if config else ""
    # nats-server counts differently in memory, and lists sequence 0 as deleted in a stream that never had a message.
    state = () if "memory" in config else ("state",)
    return "\n".join((f'stream {{"allow_atomic": true{more}}}', "fill 1 s.first",
                      "sub ev $JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>", *steps, "rest ev", _READ, *state))


SCENARIOS: dict[str, str] = {
    "committed": _on("", "fill 2 s.a", _batch("s.a", "s.b", "s.a"), "fill 1 s.a", _batch("s.c", batch="one")),
    "committed by its end": _on("", _msg("s.a", 1), _msg("s.b", 2, "X: y"), _msg("s.nothing", 3, commit="eob")),
    "in memory": _on('"storage": "memory"', _batch("s.a", "s.b"), _msg("s.a", 1), _msg("s.a", 2, commit="eob")),
    "nothing but its end": _on("", _msg("s.a", 1, commit="eob")),
    "not allowed": f"stream\n{_batch('s.a', 's.b')}",
    "only a sequence, only a commit": _on("", "pub[Nats-Batch-Sequence: 1] s.a 1", "pub[Nats-Batch-Commit: 1] s.a 2",
                                          "pub[Nats-Batch-Id: ] s.a 3"),
    "no place, or none that is one": _on("", "pub[Nats-Batch-Id: b] s.a 1",
                                         "pub[Nats-Batch-Id: b; Nats-Batch-Sequence: x] s.a 1",
                                         "pub[Nats-Batch-Id: b; Nats-Batch-Sequence: ] s.a 1",
                                         "pub[Nats-Batch-Id: b; Nats-Batch-Sequence: 0] s.a 1"),
    "ids": _on("", _batch("s.a", batch="x" * 64), _batch("s.a", batch="x" * 65)),
    "gaps": _on("", _msg("s.a", 2), _msg("s.a", 1), _msg("s.a", 3), _msg("s.a", 2, commit="1"), _msg("s.a", 1),
                _msg("s.a", 1),
                _msg("s.a", 2, commit="1")),
    "unknown commits": _on("", _msg("s.a", 1), _msg("s.a", 2, commit="2"), _msg("s.a", 2, commit="1"),
                           _msg("s.a", 1, commit="yes"),
                           "pub[Nats-Batch-Id: b; Nats-Batch-Sequence: 1; Nats-Batch-Commit: ] s.a x"),
    "two at a time": _on("", _msg("s.a", 1), _msg("s.b", 1, batch="c"), "fill 1 s.d",
                         _msg("s.b", 2, batch="c", commit="1"),
                         _msg("s.a", 2, commit="1")),
    "required API level": _on("", _msg("s.a", 1, "Nats-Required-Api-Level: 0"),
                              _msg("s.a", 2, "Nats-Required-Api-Level: 1", commit="1"),
                              _msg("s.a", 1), _msg("s.a", 2, "Nats-Required-Api-Level: 99"),
                              _msg("s.a", 2, commit="1")),
    "sealed": _on("", _msg("s.a", 1),
                  'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_atomic": true, "sealed": true}',
                  _msg("s.a", 2, commit="1")),
    "no longer allowed": _on("", _msg("s.a", 1), 'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"]}',
                             _msg("s.a", 2),
                             'api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "allow_atomic": true}',
                             _msg("s.a", 2)),
    "message size": _on('"max_msg_size": 100', _msg("s.a", 1), _msg("s.a", 2, "X: " + "y" * 100),
                        _msg("s.a", 2, commit="1")),
    "without acks": _on('"no_ack": true', _batch("s.a", "s.b")),
    "fifty": _on("", *(_msg("s.a", 1, batch=f"b{i}") for i in range(51)),
                *(_msg("s.a", 2, batch=f"b{i}", commit="1") for i in (0, 50)),
                 _msg("s.a", 1, batch="b50")),
    "too many messages": _on("", _msg("s.a", 1001), _msg("s.a", 1001, commit="eob"), _msg("s.a", 1002, commit="eob")),
    "message ids": _on("", "pub[Nats-Msg-Id: a] s.a 1", _batch(("s.a", "Nats-Msg-Id: b"), ("s.a", "Nats-Msg-Id: a")),
                       _batch(("s.a", "Nats-Msg-Id: b"), ("s.a", "Nats-Msg-Id: b")),
                       _batch(("s.a", "Nats-Msg-Id: b"), ("s.a", "Nats-Msg-Id: c")), "pub[Nats-Msg-Id: c] s.a 1",
                       "pub[Nats-Expected-Last-Msg-Id: c] s.a x"),
    "last sequence": _on("", "fill 3 s.a", _batch(("s.a", "Nats-Expected-Last-Sequence: 4"), "s.a"),
                         _batch(("s.a", "Nats-Expected-Last-Sequence: 4"), "s.a"),
                         _batch("s.a", ("s.a", "Nats-Expected-Last-Sequence: 7")),
                         _batch("s.a", ("s.a", "Nats-Expected-Last-Sequence: 5"))),
    "last sequence of subjects": _on(
        "", "fill 2 s.a", "fill 1 s.b", _batch(("s.a", f"{_SUBJECT}: 3"), ("s.b", f"{_SUBJECT}: 4"),
                                               ("s.c", f"{_SUBJECT}: 0")),
        _batch(("s.a", f"{_SUBJECT}: 3"), "s.b"), _batch(("s.a", f"{_SUBJECT}: 5"), ("s.a", f"{_SUBJECT}: 8")),
        _batch("s.a", ("s.a", f"{_SUBJECT}: 8")), _batch(("s.d", f"{_SUBJECT}: 5", f"{_SUBJECT}-Subject: s.a"), "s.a"),
        _batch("s.a", ("s.d", f"{_SUBJECT}: 5", f"{_SUBJECT}-Subject: s.a")),
        _batch("s.a", ("s.d", f"{_SUBJECT}-Subject: s.a")),
        _batch(("s.d", f"{_SUBJECT}: 9", f"{_SUBJECT}-Subject: s.x.>"),
               ("s.e", f"{_SUBJECT}: 0", f"{_SUBJECT}-Subject: s.x.>"))),
    "expectations of wildcards": _on(
        "", "fill 3 s.x.#", "fill 2 s.y.#", _batch(("s.d", f"{_SUBJECT}: 4", f"{_SUBJECT}-Subject: s.x.>"),
                                                   ("s.e", f"{_SUBJECT}: 6", f"{_SUBJECT}-Subject: s.y.*"),
                                                   ("s.f", f"{_SUBJECT}: 4", f"{_SUBJECT}-Subject: s.x.*"))),
    "stream and last id": _on("", _batch(("s.a", "Nats-Expected-Stream: S"), "s.a"),
                              _batch("s.a", ("s.a", "Nats-Expected-Stream: T")),
                              _batch("s.a", ("s.a", "Nats-Expected-Last-Msg-Id: T"))),
    "headers that are not allowed": _on(
        "", *(_batch("s.a", ("s.a", header)) for header in (
            "Nats-TTL: 1s", "Nats-TTL: x", "Nats-Incr: 1", "Nats-Incr: x", "Nats-Rollup: sub",
            "Nats-Schedule: @every 1s", "Nats-Stream-Source: S 1 > > s"))),
    "which comes first": _on("", "fill 1 s.a", *(_batch(("s.a", *headers.split("; "))) for headers in (
        "Nats-Expected-Last-Msg-Id: x; Nats-Expected-Stream: T", f"Nats-Expected-Last-Sequence: 7; {_SUBJECT}: 8",
        "Nats-Rollup: sub; Nats-Expected-Last-Sequence: 7", "Nats-Incr: 1; Nats-Expected-Stream: T",
        "Nats-Stream-Source: S 1 > > s; Nats-Expected-Last-Sequence: 7"))),
    "roll-ups": _on('"allow_rollup_hdrs": true', "fill 3 s.a", "fill 2 s.b",
                    _batch("s.c", ("s.a", "Nats-Rollup: sub"), "s.a"), "state",
                    _batch("s.b", ("s.b", "Nats-Rollup: sub")), _batch("s.c", ("s.b", "Nats-Rollup: all")),
                    _batch("s.c", ("s.b", "Nats-Rollup: bogus")),
                    _batch(("s.c", "Nats-Rollup: sub"), ("s.b", "Nats-Rollup: sub"), "s.c")),
    "a roll-up of all": _on('"allow_rollup_hdrs": true', "fill 3 s.a",
                            _batch(("s.b", "Nats-Rollup: all"), "s.a", "s.b", "s.c")),
    "a roll-up of all, then of one": _on('"allow_rollup_hdrs": true', "fill 3 s.a", "fill 3 s.b",
                                         _batch(("s.b", "Nats-Rollup: all"), ("s.a", "Nats-Rollup: sub"), "s.a")),
    "roll-ups, one per subject": _on('"allow_rollup_hdrs": true, "max_msgs_per_subject": 1', "fill 1 s.a", "fill 1 s.b",
                                     _batch("s.c", ("s.a", "Nats-Rollup: sub"), "s.a", "s.b")),
    "one per subject": _on('"max_msgs_per_subject": 1', "fill 1 s.a", "fill 1 s.b",
                           _batch("s.a", "s.a", "s.c", "s.b", "s.a")),
    "limits": _on('"max_msgs": 3', "fill 1 s.a", _batch("s.b", "s.c", "s.d", "s.e")),
    "limits of both kinds": _on('"max_msgs": 3, "max_msgs_per_subject": 1', "fill 1 s.a", "fill 1 s.b", "fill 1 s.c",
                                _batch("s.d", "s.b", "s.e", "s.c")),
    "discard new": _on('"max_msgs": 5, "discard": "new"', "fill 2 s.a", _batch("s.b", "s.c", "s.d"),
                       _batch("s.b", "s.c"),
                       _batch("s.b")),
    "discard new by bytes": _on('"max_bytes": 440, "discard": "new"', "fill 2 s.a",
                                _batch("s.b", "s.c", "s.d", "s.e"), _batch("s.b")),
    "discard new by subject": _on(
        '"max_msgs_per_subject": 2, "discard": "new", "discard_new_per_subject": true, "allow_rollup_hdrs": true',
        "fill 1 s.a", _batch("s.a", "s.a"), _batch("s.a", "s.b"), _batch("s.b", "s.a"),
        _batch(("s.a", "Nats-Rollup: sub"), "s.b")),
    "discard new, one per subject": _on('"max_msgs_per_subject": 1, "max_msgs": 3, "discard": "new"', "fill 1 s.a",
                                        "fill 1 s.b",
                                        _batch("s.a"), _batch("s.b", "s.c")),
    "time to live": _on('"allow_msg_ttl": true, "subject_delete_marker_ttl": 1000000000',
                        _batch(("s.a", "Nats-TTL: 10s"), ("s.b", "Nats-TTL: x")),
                        _batch(("s.a", "Nats-TTL: 5s"), "s.b")),
    "transformed and published again": _on(
        '"subject_transform": {"src": "s.*", "dest": "s.new.{{wildcard(1)}}"}, '
        '"republish": {"src": "s.>", "dest": "again.>"}',
        "sub again again.>", "fill 1 s.a", _batch("s.a", "s.b", "s.a"), "get again 4",
        _batch("s.a", ("s.a", f"{_SUBJECT}: 1")), _batch(("s.a", f"{_SUBJECT}: 5"), "s.c"), "get again 2"),
    "a deleted stream": _on("", _msg("s.a", 1), "api STREAM.DELETE.S", 'stream {"allow_atomic": true}',
                            _msg("s.a", 2, commit="1"),
                            "fill 1 s.a"),
    "with async persistence": 'stream {"allow_atomic": true, "persist_mode": "async"}',
    "on a mirror": 'stream\napi STREAM.CREATE.M {"name": "M", "mirror": {"name": "S"}, "allow_atomic": true}',
    "beside a consumer": 'stream {"allow_atomic": true}\nconsumer C {"filter_subject": "s.b"}\n'
                         + _batch("s.a", "s.b", "s.c",
                                  "s.b") + '\ninfo C\npull C p {"batch": 5, "no_wait": true}\nrest p\ninfo C',
}

SHOWS: dict[str, tuple[str, ...]] = {
    "publish.async": ("with async persistence",),
    "publish.atomic": ("committed*", "in memory", "nothing but its end", "only a sequence, only a commit",
                       "no place, or none that is one", "ids", "gaps", "unknown commits", "two at a time",
                       "message ids", "last sequence*", "expectations of wildcards", "roll-ups*", "a roll-up of all*",
                       "beside a consumer"),
    "publish.atomic_limits": ("fifty", "too many messages"),
    "publish.order": ("which comes first",),
    "publish.required_level": ("required API level",),
    "publish.transformed": ("transformed and published again",),
    "stream.atomic": ("not allowed", "no longer allowed", "on a mirror"),
    "stream.republish": ("transformed and published again",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
