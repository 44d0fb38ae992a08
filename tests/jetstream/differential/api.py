"""Requests to $JS.API, as data: each scenario is played to the real nats-server and to the broker.

A step is one line: a verb, a subject, a body.

    api STREAM.CREATE.S {"name": "S"}          a request to $JS.API.<subject>; its answer is compared
    api[Name: value] STREAM.INFO.S             the same with a header
    many DIRECT.GET.S {"seq": 1, "batch": 2}   a request with several answers, up to a status; all are compared
    pub s.a hello                              a JetStream publish; its PubAck is compared
    pub[Name: value] s.a hello                 with a header

Each scenario begins on servers without streams. Bodies are sent as written.
"""

from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]

_STREAM = 'api STREAM.CREATE.S {"name": "S", "subjects": ["s.>"], "allow_direct": true}'
_SIX = "\n".join([_STREAM, "pub s.0 zero", "pub s.1 one", "pub s.2 two", "pub[a: b] s.0 three", "pub s.1 four",
                  "pub s.2"])
_DURABLE = """api CONSUMER.CREATE.S.D {"stream_name": "S", "config": {"durable_name": "D", "ack_policy": "explicit"}}"""


def _creates(*configs: str) -> str:
    return "\n".join(f"api STREAM.CREATE.S {config}" for config in configs)


def _updates(first: str, *configs: str) -> str:
    return "\n".join([f"api STREAM.CREATE.S {first}", *(f"api STREAM.UPDATE.S {config}" for config in configs)])


def _consumers(*configs: str, stream: str = _STREAM) -> str:
    return "\n".join([stream, *(f'api CONSUMER.CREATE.S.C {{"stream_name": "S", "config": {config}}}'
                                for config in configs)])


def _alone(*configs: str) -> str:
    """Return streams of the same name, each deleted before the next."""
    lines = [_STREAM]
    for config in configs:
        lines += [f'api CONSUMER.CREATE.S.C {{"stream_name": "S", "config": {config}}}', "api CONSUMER.DELETE.S.C"]
    return "\n".join(lines)


SCENARIOS: dict[str, str] = {
    # ---- the envelope
    "account info": "api INFO\napi INFO anything\n" + _SIX + "\napi INFO",
    "unknown subjects": "\n".join(f"api {subject}" for subject in (
        "BOGUS", "STREAM.BOGUS", "STREAM.INFO", "STREAM.INFO.a.b", "CONSUMER.DURABLE.CREATE.S", "META.LEADER.STEPDOWN",
        "ACCOUNT.PURGE.x", "SERVER.REMOVE", "STREAM.TEMPLATE.NAMES")),
    "clusters only": "\n".join(f"api {subject}" for subject in (
        "STREAM.LEADER.STEPDOWN.S", "STREAM.PEER.REMOVE.S", "STREAM.PEER.EVACUATE.S", "STREAM.CANCEL_MOVE.S",
        "CONSUMER.LEADER.STEPDOWN.S.C")),
    "nobody home": _STREAM.replace("true", "false") + """
        api DIRECT.GET.S {"seq": 1}
        api DIRECT.GET.NONE {"seq": 1}
        api DIRECT.GET.S.s.a
        api CONSUMER.MSG.NEXT.S.C
        api CONSUMER.MSG.NEXT.NONE.C 1
        api CONSUMER.RESET.S.C""",
    "required level": _STREAM + """
        api[Nats-Required-Api-Level: 5] STREAM.INFO.S
        api[Nats-Required-Api-Level: 6] STREAM.INFO.S
        api[Nats-Required-Api-Level: x] STREAM.NAMES
        api[Nats-Required-Api-Level: 6] STREAM.CREATE.T {"name": "T"}
        api[Nats-Required-Api-Level: 6] DIRECT.GET.S {"seq": 1}
        api[Nats-Required-Api-Level: 6] CONSUMER.PAUSE.S.C
        api[Nats-Required-Api-Level: 0] INFO""",
    "wrong types": _creates(
        '{"name": 1}', '{"name": "S", "max_msgs": "x"}', '{"name": "S", "max_age": 1.5}',
        '{"name": "S", "max_msgs": 1e3}', '{"name": "S", "max_msgs": 99999999999999999999}',
        '{"name": "S", "max_msg_size": 99999999999}', '{"name": "S", "max_msgs": true}',
        '{"name": "S", "max_msgs": [1]}', '{"name": "S", "max_msgs": {}}', '{"name": "S", "first_seq": -1}',
        '{"name": "S", "sealed": "x"}', '{"name": "S", "subjects": "x"}', '{"name": "S", "subjects": [1]}',
        '{"name": "S", "metadata": {"a": 1}}', '{"name": "S", "metadata": []}', '{"name": "S", "placement": 1}',
        '{"name": "S", "consumer_limits": {"max_ack_pending": "x"}}', '{"name": "S", "sources": {"x": 1}}',
        '{"name": "S", "pedantic": 1}'),
    "unknown fields": _creates(
        '{"name": "S", "bogus": 1}', '{"name": "S", "placement": {"x": 1}}', '{"name": "S", "sources": [{"x": 1}]}',
        '{"name": "S", "mirror": {"x": 1}}', '{"name": "S", "x\\u00e9": 1}',
        '{"name": "S", "consumer_limits": {"": 1}}'),
    "closed sets": _creates(
        '{"name": "S", "retention": "bogus"}', '{"name": "S", "retention": 1}', '{"name": "S", "retention": null}',
        '{"name": "S", "retention": "Limits"}', '{"name": "S", "discard": "x"}', '{"name": "S", "storage": "x"}',
        '{"name": "S", "storage": null}', '{"name": "S", "compression": "zstd"}', '{"name": "S", "persist_mode": "x"}',
        '{"name": "S", "persist_mode": ["x",1]}'),
    "no JSON": _creates(
        "x", "[]", "1", '"x"', "null", "", '{"name": "S",', '{"name": "S"} x', '{"name": "S"}}', '{"name": "S" "b":1}',
        '{"name": "S", }', '{name: "S"}', "{'name': 1}", '{"name": "a\\qb"}', '{"name": "\\u12x4"}', "tru", "trux",
        "[1, 2", "[1 2]", '{"name": S}', "-", "-x", '{"a": 01}', '{"a": 1.}', '{"a": 1e}', '{"a": NaN}'),
    "names without case": """
        api STREAM.CREATE.S {"NAME": "S", "Storage": "memory", "DISCARD": "NEW", "max_MSGS": 7}""",
    "two values in one body": """
        api STREAM.CREATE.S {"name": "T"} {"name": "S"}""",
    "bodies that are no objects": _STREAM + """
        api STREAM.INFO.S x
        api STREAM.INFO.S [
        api STREAM.NAMES x
        api STREAM.NAMES []
        api STREAM.NAMES {"x": 1}
        api STREAM.NAMES {"offset": "x"}
        api STREAM.LIST {"offset": "x"}
        api STREAM.PURGE.S x
        api STREAM.PURGE.S {"keep": -1}
        api STREAM.DELETE.S x
        api STREAM.DELETE.S {"a": 1}
        api STREAM.DELETE.S []
        api CONSUMER.NAMES.S x
        api CONSUMER.LIST.S {"x": 1}
        api CONSUMER.INFO.S.C x
        api CONSUMER.DELETE.S.C x
        api STREAM.DELETE.S { }""",

    # ---- streams
    "create": _creates('{"name": "S"}', '{"name": "S"}', '{"name": "S", "max_msgs": 1}',
                       '{"name": "S", "max_msgs": -1}')
        + "\napi STREAM.INFO.S\napi STREAM.LIST\napi STREAM.NAMES",
    "create with everything": """
        api STREAM.CREATE.S {"name": "S", "description": "d", "subjects": ["a", "b.*"], "max_consumers": 3,
            "max_msgs": 4, "max_bytes": 5000, "max_age": 6000000000, "max_msgs_per_subject": 7, "max_msg_size": 800,
            "discard": "new", "storage": "memory", "num_replicas": 1, "no_ack": true, "duplicate_window": 1000000000,
            "placement": {"cluster": "c", "tags": ["t"]}, "compression": "s2", "first_seq": 9, "allow_direct": true,
            "discard_new_per_subject": true, "deny_delete": true, "deny_purge": true,
            "consumer_limits": {"inactive_threshold": 10000000000, "max_ack_pending": 11}, "metadata": {"b": "1",
            "a": "2"}}
        api STREAM.INFO.S
        api STREAM.DELETE.S
        api STREAM.INFO.S""",
    "create asynchronous": """
        api STREAM.CREATE.S {"name": "S", "persist_mode": "async"}
        api STREAM.UPDATE.S {"name": "S"}
        api STREAM.CREATE.T {"name": "T", "persist_mode": "async", "storage": "memory"}""",
    "stream names": """
        api STREAM.CREATE.S {"name": "T"}
        api STREAM.CREATE.S {}
        api STREAM.CREATE.a/b {"name": "a/b"}
        api STREAM.CREATE.a\\b {"name": "a\\\\b"}
        api STREAM.CREATE.S {"name": "S", "description": "LONG"}""".replace("LONG", "d" * 5000),
    "limits that cannot be": _creates(
        '{"name": "S", "num_replicas": 3}', '{"name": "S", "num_replicas": 6}', '{"name": "S", "num_replicas": -1}',
        '{"name": "S", "max_age": -1}', '{"name": "S", "max_age": 1}', '{"name": "S", "duplicate_window": -1}',
        '{"name": "S", "duplicate_window": 5}', '{"name": "S", "max_age": 100000000, "duplicate_window": 200000000}',
        '{"name": "S", "discard_new_per_subject": true}',
        '{"name": "S", "discard_new_per_subject": true, "discard": "new"}',
        '{"name": "S", "deny_purge": true, "allow_rollup_hdrs": true}', '{"name": "S", "sealed": true}',
        '{"name": "S", "mirror_direct": true}', '{"name": "S", "placement": {"preferred": "x"}}'),
    "limits put right": _creates('{"name": "S", "max_msgs": -5, "max_bytes": 0, "max_consumers": -2, '
                                 '"max_msg_size": -7, "max_msgs_per_subject": -3, "max_age": 1000000000}'),
    "pedantic": _creates(
        '{"name": "S", "pedantic": true, "max_msgs": -5}', '{"name": "S", "pedantic": true, "max_bytes": -5}',
        '{"name": "S", "pedantic": true, "max_consumers": -5}', '{"name": "S", "pedantic": true, "max_msg_size": -5}',
        '{"name": "S", "pedantic": true, "max_age": 1000000000}', '{"name": "S", "pedantic": true}'),
    "subjects": _creates(
        '{"name": "S", "subjects": ["a..b"]}', '{"name": "S", "subjects": [""]}', '{"name": "S", "subjects": ["a b"]}',
        '{"name": "S", "subjects": [">.a"]}', '{"name": "S", "subjects": ["a", "a"]}',
        '{"name": "S", "subjects": ["a.*", "a.b"]}', '{"name": "S", "subjects": [">"]}',
        '{"name": "S", "subjects": ["$JS.>"]}', '{"name": "S", "subjects": ["$JS.EVENT.>"]}',
        '{"name": "S", "subjects": ["$SYS.x"]}', '{"name": "S", "subjects": ["a.>", "*.b"]}'),
    "key-value bucket": """
        api STREAM.CREATE.KV_B {"name": "KV_B", "subjects": ["$KV.B.>"], "allow_direct": true,
            "allow_rollup_hdrs": true, "deny_delete": true, "discard": "new", "max_msgs_per_subject": 3,
            "max_msg_size": -1, "duplicate_window": 120000000000, "num_replicas": 1}
        pub $KV.B.a 1
        pub[Nats-Expected-Last-Subject-Sequence: 1] $KV.B.a 2
        pub[Nats-Expected-Last-Subject-Sequence: 1] $KV.B.a 3
        pub[Nats-Expected-Last-Subject-Sequence: 0] $KV.B.b 4
        pub[KV-Operation: DEL] $KV.B.b
        many DIRECT.GET.KV_B.$KV.B.a
        many DIRECT.GET.KV_B.$KV.B.b
        api STREAM.INFO.KV_B {"subjects_filter": ">"}
        pub[Nats-Rollup: sub] $KV.B.a
        api STREAM.INFO.KV_B {"subjects_filter": ">"}
        api CONSUMER.CREATE.KV_B {"stream_name": "KV_B", "config": {"deliver_policy": "last_per_subject",
            "filter_subject": "$KV.B.>", "deliver_subject": "d", "headers_only": true, "mem_storage": true,
            "idle_heartbeat": 5000000000, "flow_control": true}}
        api STREAM.UPDATE.KV_B {"name": "KV_B", "subjects": ["$KV.B.>"], "deny_delete": true}""",
    "no-ack of everything": """
        api STREAM.CREATE.S {"name": "S", "subjects": ["all.>"], "no_ack": true}
        api STREAM.INFO.S""",
    "overlap": _STREAM + """
        api STREAM.CREATE.T {"name": "T", "subjects": ["s.a"]}
        api STREAM.CREATE.T {"name": "T", "subjects": ["*.a"]}
        api STREAM.CREATE.T {"name": "T", "subjects": ["t"]}
        api STREAM.UPDATE.T {"name": "T", "subjects": ["t", "s.b"]}
        api STREAM.UPDATE.T {"name": "T", "subjects": ["u"]}
        api STREAM.NAMES {"subject": "s.a"}
        api STREAM.NAMES {"subject": ">"}
        api STREAM.NAMES {"subject": "none"}
        api STREAM.LIST {"subject": "u"}""",
    "metadata": """
        api STREAM.CREATE.S {"name": "S", "metadata": {"_nats.ver": "x", "_nats.level": "9", "_nats.req.level": "7",
            "a": "b"}}
        api STREAM.CREATE.S {"name": "S", "metadata": {"a": "b"}}
        api STREAM.CREATE.S {"name": "S", "metadata": {"a": "c"}}
        api STREAM.LIST
        api STREAM.UPDATE.S {"name": "S", "metadata": {"c": "d"}}""",
    "paging": _STREAM + """
        api STREAM.CREATE.A {"name": "A"}
        api STREAM.CREATE.B {"name": "B"}
        api STREAM.NAMES {"offset": 1}
        api STREAM.NAMES {"offset": 9}
        api STREAM.NAMES {"offset": -1}
        api STREAM.LIST {"offset": 2}
        api STREAM.LIST {"offset": 9}""",
    "nothing there": """
        api STREAM.NAMES
        api STREAM.LIST
        api STREAM.INFO.S
        api STREAM.UPDATE.S {"name": "S"}
        api STREAM.DELETE.S
        api STREAM.PURGE.S
        api STREAM.MSG.GET.S {"seq": 1}
        api STREAM.MSG.DELETE.S {"seq": 1}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {}}
        api CONSUMER.INFO.S.C
        api CONSUMER.NAMES.S
        api CONSUMER.LIST.S
        api CONSUMER.DELETE.S.C
        api CONSUMER.PAUSE.S.C
        api CONSUMER.UNPIN.S.C {"group": "g"}""",
    "update": _updates(
        '{"name": "S", "subjects": ["s"], "description": "d", "max_msgs": 5, "allow_direct": true}',
        '{"name": "S", "subjects": ["s"]}', '{"name": "S", "subjects": ["t", "u"], "max_age": 9000000000}',
        '{"name": "T"}', '{"name": "S", "storage": "memory"}', '{"name": "S", "num_replicas": 2}',
        '{"name": "S", "bogus": 1}', "x", '{"name": "S", "max_age": 1}', '{"name": "S", "first_seq": 50}',
        '{"name": "S", "compression": "s2", "max_consumers": 4}', '{"name": "S", "retention": "workqueue"}'),
    "updates that only go one way": _updates(
        '{"name": "S", "deny_delete": true, "deny_purge": true}', '{"name": "S", "deny_purge": true}',
        '{"name": "S", "deny_delete": true}', '{"name": "S", "deny_delete": true, "deny_purge": true, "max_msgs": 1}'),
    "seal": _updates('{"name": "S"}', '{"name": "S", "sealed": true, "allow_rollup_hdrs": true}', '{"name": "S"}')
        + "\n" + """pub S x
        api STREAM.PURGE.S
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.DELETE.S""",
    "limits shrink": _SIX + """
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_msgs": 3}
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 1}
        api STREAM.INFO.S {"subjects_filter": ">"}
        api STREAM.UPDATE.S {"name": "S", "subjects": ["t"]}
        api STREAM.INFO.S {"deleted_details": true}""",
    "first sequence": """
        api STREAM.CREATE.F {"name": "F", "first_seq": 100}
        api STREAM.INFO.F {"deleted_details": true}
        pub F x
        api STREAM.INFO.F""",
    "state": _SIX + """
        api STREAM.INFO.S
        api STREAM.MSG.DELETE.S {"seq": 3}
        api STREAM.INFO.S
        api STREAM.INFO.S {"deleted_details": true}
        api STREAM.INFO.S {"subjects_filter": "s.*"}
        api STREAM.INFO.S {"subjects_filter": "s.0"}
        api STREAM.INFO.S {"subjects_filter": "s.0", "offset": 1}
        api STREAM.INFO.S {"subjects_filter": "s.>", "offset": 1}
        api STREAM.INFO.S {"subjects_filter": "none"}
        api STREAM.PURGE.S
        api STREAM.INFO.S""",
    "state of a memory stream": _SIX.replace('"name"', '"storage": "memory", "name"') + """
        api STREAM.MSG.DELETE.S {"seq": 3}
        api STREAM.INFO.S {"deleted_details": true, "subjects_filter": ">"}
        api INFO
        api STREAM.PURGE.S
        api STREAM.INFO.S""",
    "purge": _SIX + """
        api STREAM.PURGE.S {"seq": 2, "keep": 1}
        api STREAM.PURGE.S {"filter": "s.0", "keep": 1}
        api STREAM.PURGE.S {"filter": "none"}
        api STREAM.PURGE.S {"seq": 3}
        api STREAM.INFO.S {"subjects_filter": ">"}
        api STREAM.PURGE.S {"filter": "s.*", "seq": 5}
        api STREAM.PURGE.S {"keep": 1}
        api STREAM.PURGE.S {}
        api STREAM.PURGE.S
        api STREAM.INFO.S""",
    "purge forbidden": """
        api STREAM.CREATE.S {"name": "S", "deny_purge": true, "deny_delete": true}
        api STREAM.PURGE.S
        api STREAM.MSG.DELETE.S {"seq": 1}""",
    "snapshot": _STREAM + """
        api STREAM.SNAPSHOT.S
        api STREAM.SNAPSHOT.S {"deliver_subject": "x.*"}
        api STREAM.SNAPSHOT.NONE {"deliver_subject": "x"}
        api STREAM.RESTORE.S""",

    # ---- messages
    "message get": _SIX + """
        api STREAM.MSG.GET.S
        api STREAM.MSG.GET.S {}
        api STREAM.MSG.GET.S {"seq": 4}
        api STREAM.MSG.GET.S {"seq": 4, "no_hdr": true}
        api STREAM.MSG.GET.S {"seq": 6}
        api STREAM.MSG.GET.S {"seq": 7}
        api STREAM.MSG.GET.S {"seq": 0}
        api STREAM.MSG.GET.S {"last_by_subj": "s.1"}
        api STREAM.MSG.GET.S {"last_by_subj": "s.*"}
        api STREAM.MSG.GET.S {"last_by_subj": "none"}
        api STREAM.MSG.GET.S {"next_by_subj": "s.0"}
        api STREAM.MSG.GET.S {"next_by_subj": "s.0", "seq": 2}
        api STREAM.MSG.GET.S {"next_by_subj": "s.>", "seq": 5}
        api STREAM.MSG.GET.S {"next_by_subj": "s.0", "seq": 5}
        api STREAM.MSG.GET.S {"start_time": "2020-01-01T00:00:00Z"}
        api STREAM.MSG.GET.S {"start_time": "2100-01-01T00:00:00Z"}
        api STREAM.MSG.GET.S {"start_time": "2020-01-01T00:00:00Z", "next_by_subj": "s.2"}""",
    "message get that cannot be": _SIX + """
        api STREAM.MSG.GET.S {"seq": "1"}
        api STREAM.MSG.GET.S {"seq": 1, "x": 1}
        api STREAM.MSG.GET.S {"start_time": "x"}
        api STREAM.MSG.GET.S {"start_time": 5}
        api STREAM.MSG.GET.S {"start_time": "2020-13-01T00:00:00Z"}
        api STREAM.MSG.GET.S {"start_time": "2020-01-01"}
        api STREAM.MSG.GET.S {"seq": 1, "last_by_subj": "s"}
        api STREAM.MSG.GET.S {"seq": 1, "start_time": "2020-01-01T00:00:00Z"}
        api STREAM.MSG.GET.S {"last_by_subj": "s", "start_time": "2020-01-01T00:00:00Z"}
        api STREAM.MSG.GET.S {"last_by_subj": "s", "next_by_subj": "s"}
        api STREAM.MSG.GET.S {"seq": 1, "batch": 2}
        api STREAM.MSG.GET.S {"seq": 1, "max_bytes": 2}""",
    "message delete": _SIX + """
        api STREAM.MSG.DELETE.S
        api STREAM.MSG.DELETE.S {"seq": 2}
        api STREAM.MSG.DELETE.S {"seq": 2}
        api STREAM.MSG.DELETE.S {"seq": 1, "no_erase": true}
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.MSG.DELETE.S {"seq": 7}
        api STREAM.MSG.DELETE.S {"seq": 0}
        api STREAM.MSG.DELETE.S {"seq": 6}
        api STREAM.MSG.GET.S {"seq": 2}
        api STREAM.MSG.GET.S {"last_by_subj": "s.1"}
        api STREAM.INFO.S {"deleted_details": true}""",
    "message delete in memory": _SIX.replace('"name"', '"storage": "memory", "name"') + """
        api STREAM.MSG.DELETE.S {"seq": 2}
        api STREAM.MSG.DELETE.S {"seq": 2}
        api STREAM.MSG.DELETE.S {"seq": 7}
        api STREAM.MSG.DELETE.S {"seq": 0}
        api STREAM.INFO.S {"deleted_details": true}""",
    "direct get": _SIX + """
        many DIRECT.GET.S {"seq": 4}
        many DIRECT.GET.S {"seq": 6}
        many DIRECT.GET.S {"seq": 4, "no_hdr": true}
        many DIRECT.GET.S {"seq": 9}
        many DIRECT.GET.S {"last_by_subj": "s.*"}
        many DIRECT.GET.S {"last_by_subj": "s.0"}
        many DIRECT.GET.S {"last_by_subj": "none"}
        many DIRECT.GET.S {"next_by_subj": "s.1", "seq": 3}
        many DIRECT.GET.S {"next_by_subj": "s.1"}
        many DIRECT.GET.S {"start_time": "2020-01-01T00:00:00Z"}
        many DIRECT.GET.S {"start_time": "2100-01-01T00:00:00Z"}
        many DIRECT.GET.S.s.0
        many DIRECT.GET.S.s.*
        many DIRECT.GET.S.s.0 {}
        many DIRECT.GET.S.s.0 {"no_hdr": true}
        many DIRECT.GET.S.none""",
    "direct get that cannot be": _SIX + """
        many DIRECT.GET.S
        many DIRECT.GET.S x
        many DIRECT.GET.S {}
        many DIRECT.GET.S {"seq": "1"}
        many DIRECT.GET.S {"seq": 1, "bogus": 1}
        many DIRECT.GET.S {"seq": 1, "last_by_subj": "s"}
        many DIRECT.GET.S {"last_by_subj": "s", "batch": 2}
        many DIRECT.GET.S {"batch": 2}
        many DIRECT.GET.S.s.0 x
        many DIRECT.GET.S.s.0 {"seq": 1}
        many DIRECT.GET.S.s.0 {"batch": 1}
        many DIRECT.GET.S {"multi_last": ["s"], "next_by_subj": "s"}
        many DIRECT.GET.S {"multi_last": ["s"], "last_by_subj": "s"}
        many DIRECT.GET.S {"multi_last": ["s"], "up_to_seq": 1, "up_to_time": "2020-01-01T00:00:00Z"}""",
    "direct get of batches": _SIX + """
        api STREAM.MSG.DELETE.S {"seq": 2}
        many DIRECT.GET.S {"seq": 1, "batch": 3}
        many DIRECT.GET.S {"seq": 1, "batch": 100}
        many DIRECT.GET.S {"seq": 1, "batch": 100, "no_hdr": true}
        many DIRECT.GET.S {"seq": 2, "batch": 1}
        many DIRECT.GET.S {"seq": 100, "batch": 2}
        many DIRECT.GET.S {"next_by_subj": "s.0", "batch": 10}
        many DIRECT.GET.S {"next_by_subj": "s.*", "seq": 4, "batch": 2}
        many DIRECT.GET.S {"start_time": "2020-01-01T00:00:00Z", "batch": 2}
        many DIRECT.GET.S {"seq": 1, "batch": 10, "max_bytes": 10}
        many DIRECT.GET.S {"seq": 1, "batch": -1}""",
    "direct get of several subjects": _SIX + """
        many DIRECT.GET.S {"multi_last": ["s.*"]}
        many DIRECT.GET.S {"multi_last": ["s.0", "s.1"]}
        many DIRECT.GET.S {"multi_last": ["s.*"], "up_to_seq": 4}
        many DIRECT.GET.S {"multi_last": ["s.*"], "up_to_seq": 100}
        many DIRECT.GET.S {"multi_last": ["s.*"], "up_to_time": "2100-01-01T00:00:00Z"}
        many DIRECT.GET.S {"multi_last": ["s.*"], "up_to_time": "2020-01-01T00:00:00Z"}
        many DIRECT.GET.S {"multi_last": ["s.*"], "batch": 2}
        many DIRECT.GET.S {"multi_last": ["s.*"], "seq": 5}
        many DIRECT.GET.S {"multi_last": ["s.*"], "max_bytes": 1}
        many DIRECT.GET.S {"multi_last": ["none"]}
        many DIRECT.GET.S {"multi_last": ["s.*"], "no_hdr": true}""",

    # ---- consumers
    "four ways to create": _STREAM + """
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"name": "NAMED"}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"durable_name": "D"}}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {}}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"name": "other"}}
        api CONSUMER.CREATE.S.D {"stream_name": "S", "config": {"durable_name": "D"}}
        api CONSUMER.CREATE.S.E {"stream_name": "S", "config": {"durable_name": "D"}}
        api CONSUMER.CREATE.S.F.s.a {"stream_name": "S", "config": {"durable_name": "F", "filter_subject": "s.a"}}
        api CONSUMER.CREATE.S.F.s.a {"stream_name": "S", "config": {"durable_name": "F", "filter_subject": "s.b"}}
        api CONSUMER.CREATE.S.F.s.a {"stream_name": "S", "config": {"durable_name": "F"}}
        api CONSUMER.CREATE.S.F.s.a {"stream_name": "S", "config": {"durable_name": "F", "filter_subjects": ["s.a"]}}
        api CONSUMER.DURABLE.CREATE.S.G {"stream_name": "S", "config": {"durable_name": "G"}}
        api CONSUMER.DURABLE.CREATE.S.G {"stream_name": "S", "config": {}}
        api CONSUMER.DURABLE.CREATE.S.G {"stream_name": "S", "config": {"durable_name": "H"}}
        api CONSUMER.DURABLE.CREATE.S.G.H {"stream_name": "S", "config": {"durable_name": "G"}}
        api CONSUMER.NAMES.S""",
    "create requests that cannot be": _STREAM + """
        api CONSUMER.CREATE.S.C
        api CONSUMER.CREATE.S.C {}
        api CONSUMER.CREATE.S.C x
        api CONSUMER.CREATE.S.C {"stream_name": "T", "config": {}}
        api CONSUMER.CREATE.S.C {"stream_name": 1, "config": {}}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": 1}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"x": 1}}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "x": {}}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {}, "action": "x"}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {}, "action": 1}
        api CONSUMER.CREATE.S.a/b {"stream_name": "S", "config": {}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"name": "a/b"}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"name": "a b"}}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"name": "a.b"}}
        api CONSUMER.CREATE.NONE.C {"stream_name": "NONE", "config": {}}""",
    "consumer fields of wrong types": _consumers(
        '{"deliver_policy": "x"}', '{"ack_policy": "x"}', '{"ack_policy": 1}', '{"replay_policy": null}',
        '{"priority_policy": "x"}', '{"ack_wait": "x"}', '{"ack_wait": 0.5}', '{"backoff": ["x"]}', '{"backoff": 1}',
        '{"opt_start_time": "x"}', '{"opt_start_time": 1}', '{"opt_start_seq": -1}', '{"durable_name": 1}',
        '{"filter_subjects": {}}', '{"max_batch": 1.0}', '{"headers_only": "true"}', '{"rate_limit_bps": -1}'),
    "consumer defaults": _alone(
        "{}", '{"ack_policy": "explicit"}', '{"ack_policy": "all", "ack_wait": 1000000000}', '{"deliver_subject": "d"}',
        '{"deliver_subject": "d", "ack_policy": "explicit", "deliver_group": "g"}', '{"deliver_policy": "undefined"}',
        '{"ack_policy": "explicit", "backoff": [1000000000, 2000000000]}',
        '{"ack_policy": "explicit", "backoff": [1000000000, 2000000000], "max_deliver": 2}',
        '{"max_deliver": -7, "max_waiting": -1, "max_ack_pending": -9, "max_batch": -1, "max_expires": -1, '
        '"max_bytes": -1, "inactive_threshold": -1}', '{"ack_policy": "none", "max_ack_pending": 5}',
        '{"inactive_threshold": 60000000000, "description": "d", "metadata": {"a": "b"}, "mem_storage": true}',
        '{"filter_subjects": ["s.a", "s.b"], "headers_only": true, "replay_policy": "original", "num_replicas": 1}',
        '{"deliver_subject": "d", "flow_control": true, "idle_heartbeat": 1000000000, "rate_limit_bps": 1000}'),
    "consumers that cannot be": _consumers(
        '{"num_replicas": 3}', '{"num_replicas": -1}', '{"backoff": [-1], "ack_policy": "explicit"}',
        '{"ack_wait": -1}',
        '{"ack_policy": "explicit", "backoff": [1000000000, 2000000000], "max_deliver": 1}',
        '{"deliver_subject": "d.*"}', '{"deliver_subject": "d..e"}', '{"deliver_subject": "s.a"}',
        '{"deliver_subject": "d", "max_waiting": 1}', '{"deliver_subject": "d", "max_ack_pending": 1}',
        '{"deliver_subject": "d", "idle_heartbeat": 1}', '{"rate_limit_bps": 1}', '{"idle_heartbeat": 1000000000}',
        '{"flow_control": true}', '{"deliver_subject": "d", "flow_control": true}', '{"max_expires": 1}',
        '{"direct": true}', '{"filter_subject": "a", "filter_subjects": ["b"]}', '{"filter_subject": "a..b"}',
        '{"filter_subjects": [""]}', '{"filter_subjects": ["a.*", "a.b"]}', '{"filter_subjects": ["a", "a"]}',
        '{"filter_subjects": ["a b"]}', '{"sample_freq": "x"}', '{"sample_freq": "-1"}', '{"sample_freq": "50%%"}',
        '{"priority_groups": ["a"]}', '{"priority_timeout": 1}', '{"priority_policy": "overflow"}',
        '{"priority_policy": "overflow", "priority_groups": [""]}',
        '{"priority_policy": "overflow", "priority_groups": ["a b"]}',
        '{"priority_policy": "overflow", "priority_groups": ["a"], "deliver_subject": "d"}'),
    "where consumers cannot start": _consumers(
        '{"deliver_policy": "all", "opt_start_seq": 1}', '{"opt_start_time": "2020-01-01T00:00:00Z"}',
        '{"deliver_policy": "last", "opt_start_seq": 1}', '{"deliver_policy": "new", "opt_start_seq": 1}',
        '{"deliver_policy": "new", "opt_start_time": "2020-01-01T00:00:00Z"}', '{"deliver_policy": "last_per_subject"}',
        '{"deliver_policy": "last_per_subject", "opt_start_seq": 1}', '{"deliver_policy": "by_start_sequence"}',
        '{"deliver_policy": "by_start_time"}',
        '{"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z", "opt_start_seq": 1}',
        '{"deliver_policy": "by_start_sequence", "opt_start_time": "2020-01-01T00:00:00Z", "opt_start_seq": 1}'),
    "where consumers start": "\n".join([_SIX, *(
        f'api CONSUMER.CREATE.S.C{i} {{"stream_name": "S", "config": {config}}}' for i, config in enumerate((
            "{}", '{"deliver_policy": "last"}', '{"deliver_policy": "new"}', '{"filter_subject": "s.1"}',
            '{"deliver_policy": "last", "filter_subject": "s.0"}', '{"filter_subject": "none"}',
            '{"deliver_policy": "last_per_subject", "filter_subject": "s.*"}',
            '{"deliver_policy": "last_per_subject", "filter_subjects": ["s.0", "s.1"]}',
            '{"deliver_policy": "by_start_sequence", "opt_start_seq": 4}',
            '{"deliver_policy": "by_start_sequence", "opt_start_seq": 40}',
            '{"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}',
            '{"deliver_policy": "by_start_time", "opt_start_time": "2100-01-01T00:00:00Z"}',
            '{"filter_subjects": ["s.0", "s.2"]}')))]),
    "pedantic consumers": "\n".join([_STREAM, *(
        f'api CONSUMER.CREATE.S.C {{"stream_name": "S", "config": {config}, "pedantic": true}}' for config in (
            '{"max_deliver": -7}', '{"max_waiting": -1}', '{"max_ack_pending": -9}', '{"max_batch": -1}',
            '{"max_expires": -1}', '{"max_bytes": -1}', '{"inactive_threshold": -1}', '{"idle_heartbeat": -1}',
            '{"ack_policy": "explicit", "backoff": [1000000000]}', "{}"))]),
    "actions": _STREAM + """
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"durable_name": "C"}, "action": "update"}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"durable_name": "C"}, "action": "create"}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"durable_name": "C"}, "action": "create"}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"name": "C", "max_deliver": 3}, "action": "create"}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"name": "C", "max_deliver": 3}, "action": "update"}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"durable_name": "C", "max_deliver": 4}}
        api CONSUMER.CREATE.S.E {"stream_name": "S", "config": {}, "action": "create"}
        api CONSUMER.CREATE.S.E {"stream_name": "S", "config": {}, "action": "create"}
        api CONSUMER.CREATE.S.E {"stream_name": "S", "config": {"inactive_threshold": 5000000000}, "action": "create"}
        api CONSUMER.CREATE.S {"stream_name": "S", "config": {"name": "E", "description": "x"}}""",
    "consumer updates": _consumers(
        '{"durable_name": "C", "ack_policy": "explicit"}', '{"durable_name": "C", "ack_policy": "none"}',
        '{"durable_name": "C", "ack_policy": "explicit", "deliver_policy": "new"}',
        '{"durable_name": "C", "ack_policy": "explicit", "replay_policy": "original"}',
        '{"durable_name": "C", "ack_policy": "explicit", "mem_storage": true}',
        '{"durable_name": "C", "ack_policy": "explicit", "deliver_subject": "d"}',
        '{"durable_name": "C", "ack_policy": "explicit", "max_waiting": 7}',
        '{"durable_name": "C", "ack_policy": "explicit", "opt_start_seq": 1, "deliver_policy": "by_start_sequence"}',
        '{"durable_name": "C", "ack_policy": "explicit", "description": "d", "ack_wait": 1000000000, "max_deliver": 5, '
        '"filter_subject": "s.a", "sample_freq": "10%", "max_ack_pending": 7, "headers_only": true, "max_batch": 8, '
        '"max_expires": 9000000, "max_bytes": 10, "inactive_threshold": 90000000000, "metadata": {"a": "b"}}',
        '{"durable_name": "C", "ack_policy": "explicit", "backoff": [1000000000, 2000000000]}',
        '{"durable_name": "C", "ack_policy": "explicit", "pause_until": "2100-01-01T00:00:00Z"}')
        + "\napi CONSUMER.INFO.S.C\napi CONSUMER.LIST.S",
    "push consumer updates": _consumers(
        '{"durable_name": "C", "deliver_subject": "d"}', '{"durable_name": "C", "deliver_subject": "e"}',
        '{"durable_name": "C"}', '{"durable_name": "C", "deliver_subject": "d", "idle_heartbeat": 5000000000}',
        '{"durable_name": "C", "deliver_subject": "d", "flow_control": true, "idle_heartbeat": 5000000000}',
        '{"durable_name": "C", "deliver_subject": "d", "deliver_group": "g"}'),
    "limits for consumers": """
        api STREAM.CREATE.S {"name": "S", "max_consumers": 2, "consumer_limits": {"max_ack_pending": 5,
            "inactive_threshold": 60000000000}}
        api CONSUMER.CREATE.S.A {"stream_name": "S", "config": {"ack_policy": "explicit", "max_ack_pending": 6}}
        api CONSUMER.CREATE.S.A {"stream_name": "S", "config": {"inactive_threshold": 61000000000}}
        api CONSUMER.CREATE.S.A {"stream_name": "S", "config": {"ack_policy": "explicit"}}
        api CONSUMER.CREATE.S.B {"stream_name": "S", "config": {"durable_name": "B", "max_ack_pending": 1}}
        api CONSUMER.CREATE.S.C {"stream_name": "S", "config": {"durable_name": "C"}}
        api CONSUMER.CREATE.S.A {"stream_name": "S", "config": {}, "pedantic": true}
        api STREAM.UPDATE.S {"name": "S", "max_consumers": 2, "consumer_limits": {"max_ack_pending": 2}}
        api STREAM.INFO.S""",
    "consumer lists": _STREAM + "\n" + _DURABLE + """
        api CONSUMER.CREATE.S.A {"stream_name": "S", "config": {"durable_name": "A"}}
        api CONSUMER.NAMES.S
        api CONSUMER.LIST.S
        api CONSUMER.NAMES.S {"offset": 1}
        api CONSUMER.LIST.S {"offset": 9}
        api STREAM.INFO.S
        api INFO
        api CONSUMER.DELETE.S.A {}
        api CONSUMER.DELETE.S.A
        api CONSUMER.NAMES.S
        api CONSUMER.DELETE.S.D
        api CONSUMER.NAMES.S""",
    "pause": _STREAM + "\n" + _DURABLE + """
        api CONSUMER.PAUSE.S.D {"pause_until": "2100-01-01T00:00:00Z"}
        api CONSUMER.INFO.S.D
        api CONSUMER.PAUSE.S.D {"pause_until": "2020-01-01T00:00:00Z"}
        api CONSUMER.INFO.S.D
        api CONSUMER.PAUSE.S.D
        api CONSUMER.PAUSE.S.D {"pause_until": "0001-01-01T00:00:00Z"}
        api CONSUMER.PAUSE.S.D {"pause_until": "x"}
        api CONSUMER.PAUSE.S.D {"x": 1}
        api CONSUMER.PAUSE.S.NONE {"pause_until": "2100-01-01T00:00:00Z"}
        api CONSUMER.CREATE.S.E {"stream_name": "S", "config": {"name": "E", "pause_until": "2100-01-01T00:00:00Z"}}
        api CONSUMER.INFO.S.E
        api CONSUMER.CREATE.S.F {"stream_name": "S", "config": {"name": "F", "pause_until": "0001-01-01T00:00:00Z"}}
        api CONSUMER.INFO.S.F""",
    "reset": _SIX + "\n" + _DURABLE + """
        api CONSUMER.RESET.S.D
        api CONSUMER.RESET.S.D {"seq": 5}
        api CONSUMER.INFO.S.D
        api CONSUMER.RESET.S.D x
        api CONSUMER.RESET.S.D {"seq": 2, "bogus": 1}
        api CONSUMER.CREATE.S.N {"stream_name": "S", "config": {"deliver_policy": "new", "durable_name": "N"}}
        api CONSUMER.RESET.S.N {"seq": 2}
        api CONSUMER.CREATE.S.Q {"stream_name": "S", "config": {"deliver_policy": "by_start_sequence",
            "opt_start_seq": 3, "durable_name": "Q"}}
        api CONSUMER.RESET.S.Q {"seq": 2}
        api CONSUMER.RESET.S.Q {"seq": 4}""",
    "unpin": _STREAM + "\n" + _DURABLE + """
        api CONSUMER.UNPIN.S.D
        api CONSUMER.UNPIN.S.D {"group": "g"}
        api CONSUMER.UNPIN.S.D {"group": ""}
        api CONSUMER.UNPIN.S.D {"group": "a b"}
        api CONSUMER.UNPIN.S.D {"bogus": "g"}
        api CONSUMER.UNPIN.S.NONE {"group": "g"}""",
    "pulling": _SIX + "\n" + _DURABLE + """
        api CONSUMER.CREATE.S.P {"stream_name": "S", "config": {"durable_name": "P", "deliver_subject": "d"}}
        api CONSUMER.MSG.NEXT.S.P
        many CONSUMER.MSG.NEXT.S.D {"batch": 2, "no_wait": true}
        api CONSUMER.INFO.S.D
        many CONSUMER.MSG.NEXT.S.D {"batch": 10, "no_wait": true}
        many CONSUMER.MSG.NEXT.S.D {"batch": 1, "no_wait": true}
        api[Nats-Required-Api-Level: 9] CONSUMER.MSG.NEXT.S.D 1
        api CONSUMER.MSG.NEXT.S.D {"batch": 1, "expires": 1000, "idle_heartbeat": 900}
        api CONSUMER.MSG.NEXT.S.D {x""",
    "publishing": _SIX + """
        pub[Nats-Msg-Id: a] s.0 again
        pub[Nats-Msg-Id: a] s.0 again
        pub[Nats-Expected-Stream: T] s.0 x
        pub[Nats-Expected-Last-Sequence: 3] s.0 x
        pub[Nats-Expected-Last-Msg-Id: b] s.0 x
        pub[Nats-Expected-Last-Subject-Sequence: 1] s.0 x
        pub[Nats-Rollup: all] s.0 x
        api STREAM.INFO.S""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "api.clusters_only": ("clusters only",),
    "api.consumer_action": ("actions",),
    "api.consumer_create": ("four ways to create", "create requests that cannot be"),
    "api.consumer_delete": ("nothing there",),
    "api.consumer_info": ("consumer lists", "pause"),
    "api.consumer_names": ("consumer lists",),
    "api.consumer_pause": ("pause",),
    "api.consumer_reset": ("reset",),
    "api.consumer_unpin": ("unpin",),
    "api.direct_batch": ("direct get of batches", "direct get of several subjects"),
    "api.direct_get": ("direct get", "direct get that cannot be"),
    "api.info": ("account info",),
    "api.levels": ("required level", "metadata"),
    "api.msg_delete": ("message delete", "message delete in memory"),
    "api.msg_get": ("message get", "message get that cannot be"),
    "api.msg_next": ("pulling",),
    "api.nobody": ("nobody home", "nothing there"),
    "api.pedantic": ("pedantic", "pedantic consumers"),
    "api.stream_create": ("create", "create with everything", "create asynchronous"),
    "api.stream_delete": ("bodies that are no objects", "nothing there"),
    "api.stream_info": ("state",),
    "api.stream_list": ("paging", "create"),
    "api.stream_names": ("stream names", "paging"),
    "api.stream_purge": ("purge", "purge forbidden"),
    "api.stream_update": ("update",),
    "api.strict_json": ("wrong types", "unknown fields", "closed sets", "no JSON", "names without case",
                        "two values in one body", "bodies that are no objects", "create requests that cannot be",
                        "consumer fields of wrong types"),
    "api.unknown": ("unknown subjects",),
    "cluster.raft": ("clusters only",),
    "consumer.defaults": ("consumer defaults", "consumers that cannot be"),
    "consumer.deliver_policy": ("where consumers start", "where consumers cannot start"),
    "consumer.description": ("consumer defaults", "actions"),
    "consumer.durable": ("four ways to create",),
    "consumer.ephemeral": ("four ways to create",),
    "consumer.pause_until": ("pause",),
    "consumer.updates": ("consumer updates", "push consumer updates"),
    "deliver.status_503": ("nobody home",),
    "deliver.direct_statuses": ("direct get that cannot be", "direct get of batches", "direct get of several subjects"),
    "kv.bucket": ("key-value bucket",),
    "publish.pub_ack": ("publishing",),
    "stream.allow_direct": ("direct get",),
    "stream.compression": ("create with everything", "closed sets"),
    "stream.consumer_limits": ("limits for consumers",),
    "stream.defaults": ("limits that cannot be", "limits put right", "closed sets"),
    "stream.deny": ("purge forbidden", "create with everything"),
    "stream.description": ("metadata", "create with everything"),
    "stream.discard_new_per_subject": ("create with everything",),
    "stream.first_seq": ("first sequence",),
    "stream.max_msgs": ("limits shrink",),
    "stream.name": ("limits that cannot be", "wrong types"),
    "stream.no_ack": ("no-ack of everything",),
    "stream.num_replicas": ("limits that cannot be",),
    "stream.persist_mode": ("create asynchronous", "closed sets"),
    "stream.placement": ("create with everything",),
    "stream.same_again": ("create",),
    "stream.sealed": ("seal",),
    "stream.shown": ("create with everything", "state", "state of a memory stream"),
    "stream.storage": ("state of a memory stream", "message delete in memory"),
    "stream.subjects": ("subjects", "overlap"),
    "stream.updates": ("update", "updates that only go one way"),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
