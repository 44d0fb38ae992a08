"""Subject transforms, republishing, mirrors and sources, as data: see player.py for the steps."""


from __future__ import annotations

__all__ = ["SCENARIOS", "SHOWS"]


def _creates(*configs: str) -> str:
    """Return streams of one name, each deleted before the next."""
    return "\n".join(f"api STREAM.CREATE.S {config}\napi STREAM.DELETE.S" for config in configs)


def _transforms(*pairs: tuple[str, str]) -> str:
    return _creates(*(f'{{"name": "S", "subject_transform": {{"src": "{src}", "dest": "{dest}"}}}}'
                      for src, dest in pairs))


SCENARIOS: dict[str, str] = {
    "transform": """stream {"subject_transform": {"src": "s.*.*", "dest": "t.{{wildcard(2)}}.{{partition(5,1)}}.$1"},
            "max_msgs_per_subject": 1, "allow_rollup_hdrs": true}
        pub s.a.b 1
        pub s.a.b 2
        pub s.c 3
        pub[Nats-Msg-Id: x] s.d.e 4
        pub[Nats-Msg-Id: x] s.d.e 5
        pub[Nats-Expected-Last-Subject-Sequence: 2] s.a.b 6
        pub[Nats-Rollup: sub] s.d.e 7
        fill 4 s.#.x
        state
        msgs S
        consumer C {"filter_subject": "t.>"}
        pull C box {"batch": 20, "no_wait": true}
        get box 7
        api STREAM.MSG.GET.S {"last_by_subj": "s.c"}""",
    "transform comes and goes": """stream
        pub s.a 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "", "dest": "x.>"}}
        pub s.a 2
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.*", "dest": "y.$1"}}
        pub s.a 3
        pub s.a.b 4
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.a",
            "dest": "z.{{partition(9)}}.{{partition(6,3)}}"}}
        pub s.a 5
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"]}
        pub s.a 6
        msgs S
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.*", "dest": "y.$2"}}""",
    "transforms that cannot be": _transforms(
        ("a..b", "x"), ("a.*", "x.*"), ("a.*", "x.$2"), ("a.*", "x.{{wildcard(2)}}"), ("a.*", "x.{{bogus(1)}}"),
        ("a.*", "x.{{wildcard()}}"), ("a.*", "x.{{wildcard(a)}}"), ("a.*", "x.{{wildcard(1,2)}}"),
        ("a.*", "x.{{partition()}}"), ("a.*", "x.{{partition(2147483648,1)}}"), ("a.*", "x.{{partition(3,x)}}"),
        ("a.*", "x.{{split(1)}}"), ("a.*", "x.{{split(1, -)}}"), ("a.*", "x.{{split(1,-,-)}}"),
        ("a.*", "x.{{splitfromleft(1)}}"), ("a.*", "x.{{splitfromright(1,2,3)}}"), ("a.*", "x.{{slicefromleft(1,x)}}"),
        ("a.*", "x.{{slicefromright(9,1)}}"), ("a.*", "x.{{left(1,2)}}"), ("a.*", "x.{{right(1,2)}}"),
        ("a.*", "x.{{random(1,2)}}"), ("a.*", "x.{{random()}}"), ("a", "x.$1"), ("a", "x.{{split(1,-)}}"), ("a", "x.>"),
        ("a.>", "x"), ("a", "x..y"), ("a", "x.>.y"), ("a", "x y"), ("", "x"), ("a", ""), ("a.*", "x.{{}}"),
        ("a.*", "$x.$0")),

    "republish": """sub box r.>
        stream {"republish": {"src": "s.*", "dest": "r.$1"}}
        pub s.a 1
        pub[X: y; Nats-Msg-Id: 7] s.a two
        pub[Nats-Msg-Id: 7] s.a again
        pub s.b 3
        pub s.b.c 4
        fill 4 s.a
        get box 7
        rest box
        state""",
    "republish headers only": """sub box r.>
        stream {"republish": {"dest": "r.>", "headers_only": true}, "allow_rollup_hdrs": true}
        pub s.a payload
        pub[X: y] s.a
        pub[Nats-Rollup: sub] s.a last
        get box 3
        msgs S""",
    "republish what was transformed": """sub box t.>
        stream {"subject_transform": {"src": "s.>", "dest": "t.>"}, "republish": {"src": ">", "dest": ">"}}
        pub s.a 1
        get box 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.>", "dest": "t.>"}}
        pub s.a 2
        rest box
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "republish": {"src": "s.x", "dest": "t.x"}}
        pub s.x 3
        get box 1""",
    "republish into another stream": """stream {"republish": {"src": "s.>", "dest": "other.>"}}
        make T {"subjects": ["other.>"], "republish": {"dest": "end.>"}}
        sub box end.>
        pub s.a 1
        pub s.b 2
        get box 2
        msgs T""",
    "republishing that cannot be": _creates(*(f'{{"name": "S", "subjects": ["s.>"], {more}}}' for more in (
        '"republish": {"src": ">", "dest": ">"}', '"republish": {"src": "s.a", "dest": "s.b"}',
        '"republish": {"src": "s.*", "dest": "t.$2"}', '"republish": {"src": "s.*", "dest": "t.*"}',
        '"republish": {"src": "s..a", "dest": "t"}', '"republish": {"dest": ""}', '"republish": {}',
        '"pedantic": true, "republish": {"dest": "t.>"}', '"republish": {"src": "s.*", "dest": "t.{{left(1,2)}}"}',
        '"pedantic": true, "republish": {"src": ">", "dest": ">"}, "subject_transform": {"src": "s.>", "dest": "t.>"}',
        '"republish": {"src": ">", "dest": ">"}, "subject_transform": {"src": "s.a", "dest": "t.a"}'))),

    "mirror": """stream
        fill 3 s.a
        pub[X: y; Nats-Msg-Id: 7; Nats-Expected-Last-Sequence: 3; Nats-Expected-Stream: S] s.b with headers
        pub[Nats-Expected-Last-Sequence: 4] s.b only expectations
        make M {"mirror": {"name": "S"}}
        grown M 5
        msgs M
        fill 2 s.c
        grown M 7
        api STREAM.MSG.DELETE.S {"seq": 6}
        pub s.d 8
        grown M 8
        api STREAM.MSG.GET.M {"seq": 6}
        api STREAM.PURGE.S
        pub s.e 9
        grown M 9
        api STREAM.MSG.GET.M {"seq": 1}
        api STREAM.PURGE.M
        pub s.e 10
        grown M 10
        msgs M
        api STREAM.DELETE.M
        api STREAM.INFO.S""",
    "mirror with gaps": """stream
        fill 6 s.a
        api STREAM.MSG.DELETE.S {"seq": 1}
        api STREAM.MSG.DELETE.S {"seq": 3}
        api STREAM.MSG.DELETE.S {"seq": 6}
        make M {"mirror": {"name": "S"}}
        grown M 5
        msgs M
        pub s.a 7
        grown M 7
        make E {"mirror": {"name": "S", "opt_start_seq": 5}}
        grown E 7
        msgs E
        make L {"mirror": {"name": "S"}, "max_msgs": 2}
        grown L 7
        msgs L""",
    "mirror of a stream that begins late": """stream {"first_seq": 1000}
        make M {"mirror": {"name": "S"}}
        pub s.a 1
        grown M 1000
        make N {"mirror": {"name": "S", "opt_start_seq": 1}}
        grown N 1000
        make P {"mirror": {"name": "S", "opt_start_time": "2020-01-01T00:00:00Z"}}
        grown P 1000
        make Q {"mirror": {"name": "S", "opt_start_time": "2099-01-01T00:00:00Z"}}
        grown Q 1000
        pub s.a 2
        grown Q 1001
        msgs Q""",
    "mirror filters": """stream
        fill 3 s.a
        pub s.b.x 4
        fill 2 s.a
        pub s.b.y 7
        make M {"mirror": {"name": "S", "filter_subject": "s.b.*"}}
        grown M 7
        msgs M
        pub s.a 8
        pub s.b.z 9
        grown M 9
        make T {"mirror": {"name": "S", "subject_transforms": [{"src": "s.b.*", "dest": "t.$1"}, {"src": "s.a",
            "dest": ""}]}}
        grown T 9
        msgs T
        make U {"mirror": {"name": "S", "subject_transforms": [{"src": "s.b.*", "dest": "t.$1"}]},
            "subject_transform": {"src": "t.*", "dest": "u.$1"}}
        grown U 9
        msgs U""",
    "mirror becomes a stream": """stream
        fill 3 s.a
        make M {"mirror": {"name": "S"}}
        grown M 3
        api STREAM.UPDATE.M {"name": "M", "mirror": {"name": "T"}}
        api STREAM.UPDATE.M {"name": "M", "mirror": {"name": "S"}, "subjects": ["m.>"]}
        api STREAM.UPDATE.M {"name": "M", "subjects": ["m.>"]}
        pub m.a 4
        pub s.a 5
        msgs M
        api STREAM.UPDATE.M {"name": "M", "subjects": ["m.>"], "mirror": {"name": "S"}}
        api STREAM.UPDATE.S {"name": "S", "mirror": {"name": "M"}}""",
    "consumers of a mirror": """make T {"subjects": ["t.*"]}
        pub t.a 1
        pub t.b 2
        api STREAM.CREATE.S {"name": "S", "mirror": {"name": "T"}}
        grown S 2
        consumer C {"filter_subject": "t.b"}
        pull C box {"batch": 2, "expires": 2000ms}
        get box 1
        pub t.b 3
        get box 1
        ack box 1
        info C
        api STREAM.NAMES {"subject": "t.b"}
        api STREAM.LIST""",
    "mirror of what is not there": """make M {"mirror": {"name": "S"}}
        api STREAM.DELETE.M""",
    "mirror of a mirror": """stream {"allow_direct": true}
        fill 3 s.a
        make M {"mirror": {"name": "S"}}
        make N {"mirror": {"name": "M"}}
        grown N 3
        msgs N""",
    "mirrors that cannot be": _creates(*(f'{{"name": "S", {more}}}' for more in (
        '"mirror": {"name": "T"}, "subjects": ["a"]', '"mirror": {"name": "T"}, "sources": [{"name": "U"}]',
        '"mirror": {"name": "T"}, "first_seq": 5', '"mirror": {"name": "a.b"}', '"mirror": {"name": ""}',
        '"mirror": {}',
        '"mirror": {"name": "T"}, "allow_msg_counter": true', '"mirror": {"name": "T"}, "allow_atomic": true',
        '"mirror": {"name": "T"}, "allow_batched": true', '"mirror": {"name": "T"}, "allow_msg_schedules": true',
        '"mirror": {"name": "S"}', '"mirror": {"name": "T", "filter_subject": "a..b"}',
        '"mirror": {"name": "T", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}',
        '"mirror": {"name": "T", "subject_transforms": [{"src": "a..b", "dest": "b"}]}',
        '"mirror": {"name": "T", "subject_transforms": [{"src": "a.*", "dest": "b.$2"}]}',
        '"mirror": {"name": "T", "subject_transforms": [{"src": "a.*", "dest": "b"}, {"src": "a.b", "dest": "c"}]}',
        '"mirror": {"name": "T", "external": {"api": "$JS.API", "deliver": ""}}',
        '"mirror": {"name": "T", "external": {"api": "$JS.x.>", "deliver": ""}}',
        '"mirror": {"name": "T", "external": {"api": "", "deliver": "a.*"}}',
        '"mirror": {"name": "T", "consumer": {"name": "a.b", "deliver_subject": "x"}}',
        '"mirror": {"name": "T", "consumer": {"name": "C", "deliver_subject": "x.*"}}',
        '"mirror": {"name": "T", "opt_start_seq": 1, "consumer": {"name": "C", "deliver_subject": "x"}}',
        '"mirror": {"name": "T"}, "subject_delete_marker_ttl": 1000000000', '"mirror_direct": true'))),

    "mirror by a named consumer": """stream
        fill 3 s.a
        consumer C {"deliver_subject": "d", "ack_policy": "flow_control", "flow_control": true,
            "idle_heartbeat": 1000ms, "max_ack_pending": 100}
        make M {"mirror": {"name": "S", "consumer": {"name": "C", "deliver_subject": "d"}}}
        grown M 3
        msgs M
        pub[X: y; Nats-Expected-Last-Sequence: 3] s.b 4
        api STREAM.MSG.DELETE.S {"seq": 2}
        pub s.c 5
        grown M 5
        msgs M
        api STREAM.UPDATE.M {"name": "M", "mirror": {"name": "S"}}
        api STREAM.DELETE.M""",
    "sources by named consumers": """stream
        make T {"subjects": ["t.*"]}
        fill 3 s.a
        pub s.b 4
        consumer C {"deliver_subject": "d", "ack_policy": "flow_control", "flow_control": true,
            "idle_heartbeat": 1000ms, "max_ack_pending": 100, "filter_subject": "s.a"}
        make D {"sources": [{"name": "S", "consumer": {"name": "C", "deliver_subject": "d"}}, {"name": "T"}],
            "subjects": ["own"]}
        grown D 3
        pub t.a 5
        grown D 4
        pub s.b 6
        pub s.a 7
        grown D 5
        msgs D
        make E {"sources": [{"name": "S", "consumer": {"name": "C", "deliver_subject": "e"},
            "subject_transforms": [{"src": "s.*", "dest": "e.$1"}]}]}""",
    "named consumers that do not fit": """stream
        consumer C {"deliver_subject": "d", "ack_policy": "none"}
        make M {"mirror": {"name": "S", "consumer": {"name": "C", "deliver_subject": "d"}}}
        failed M
        make D {"sources": [{"name": "S", "consumer": {"name": "C", "deliver_subject": "d"}}]}
        failed D
        make E {"sources": [{"name": "S", "consumer": {"name": "C", "deliver_subject": "d"}}, {"name": "S",
            "consumer": {"name": "C", "deliver_subject": "e"}}]}""",

    "sources": """stream
        make T {"subjects": ["t.*"]}
        fill 3 s.a
        pub[X: y; Nats-Msg-Id: 7; Nats-Expected-Stream: T] t.b with headers
        make D {"sources": [{"name": "S"}, {"name": "T", "filter_subject": "t.b"}], "subjects": ["d.*"]}
        grown D 4
        pub d.x own
        pub t.a not this
        pub s.c more
        grown D 6
        api STREAM.PURGE.S
        pub s.d after
        grown D 7
        state""",
    "one source": """stream
        fill 3 s.a
        pub[Nats-Msg-Id: 7; Nats-Expected-Last-Sequence: 3] s.b four
        make D {"sources": [{"name": "S", "subject_transforms": [{"src": "s.a", "dest": "d.{{partition(3)}}"},
            {"src": "s.b", "dest": ""}]}]}
        grown D 4
        msgs D
        make E {"sources": [{"name": "D"}]}
        grown E 4
        msgs E
        make F {"sources": [{"name": "S", "opt_start_seq": 3}], "duplicate_window": 100000000}
        grown F 2
        msgs F
        pub[Nats-Stream-Source: x 1] s.a forged""",
    "sources and duplicates": """stream
        make T {"subjects": ["t.*"]}
        make D {"sources": [{"name": "S"}], "duplicate_window": 10000000000}
        pub[Nats-Msg-Id: 1] s.a one
        grown D 1
        pub[Nats-Msg-Id: 2] s.a two
        grown D 2
        tell STREAM.UPDATE.D {"name": "D", "sources": [{"name": "S"}, {"name": "T"}], "duplicate_window": 10000000000}
        pub[Nats-Msg-Id: 2] t.a two again
        pub[Nats-Msg-Id: 3] t.a three
        grown D 3
        msgs D""",
    "sources come and go": """stream
        make T {"subjects": ["t.*"]}
        make D {"sources": [{"name": "S"}]}
        pub s.a 1
        grown D 1
        tell STREAM.UPDATE.D {"name": "D", "sources": [{"name": "T"}]}
        pub s.a 2
        pub t.a 3
        grown D 2
        tell STREAM.UPDATE.D {"name": "D", "sources": [{"name": "T"}, {"name": "S"}]}
        grown D 3
        msgs D""",
    "sources with limits": """stream
        fill 6 s.a
        make D {"sources": [{"name": "S"}], "max_msgs": 3}
        grown D 6
        msgs D
        make E {"sources": [{"name": "S"}], "max_msgs_per_subject": 1}
        grown E 6
        msgs E""",
    "sources that cannot be": """make T {"max_msg_size": 10}
        """ + _creates(*(f'{{"name": "S", {more}}}' for more in (
        '"sources": [{"name": ""}]', '"sources": [{}]', '"sources": [null]', '"sources": [{"name": "a.b"}]',
        '"sources": [{"name": "T"}, {"name": "T"}]', '"sources": [{"name": "T"}], "allow_msg_schedules": true',
        '"sources": [{"name": "T", "filter_subject": "a"}, {"name": "T", "filter_subject": "a"}]',
        '"sources": [{"name": "T", "filter_subject": "a..b"}]', '"sources": [{"name": "S"}]',
        '"sources": [{"name": "S", "filter_subject": "other"}]', '"sources": [{"name": "T"}], "max_msg_size": 5',
        '"sources": [{"name": "T", "filter_subject": "a", "subject_transforms": [{"src": "a", "dest": "b"}]}]',
        '"sources": [{"name": "T", "subject_transforms": [{"src": "a..b", "dest": "b"}]}]',
        '"sources": [{"name": "T", "subject_transforms": [{"src": "a.*", "dest": "b.{{bogus()}}"}]}]',
        '"sources": [{"name": "T", "subject_transforms": [{"src": "a.*", "dest": "b"}, {"src": "a.b", "dest": "c"}]}]',
        '"sources": [{"name": "T", "external": {"api": "$JS.API", "deliver": "x"}}]',
        '"sources": [{"name": "T", "external": {"api": "a..b", "deliver": "x"}}]',
        '"sources": [{"name": "T", "external": {"api": "x", "deliver": "a.>"}}]',
        '"sources": [{"name": "T", "consumer": {"name": "C", "deliver_subject": ""}}]'))),
    "cycles": """make A {"sources": [{"name": "B"}], "subjects": ["a"]}
        make B {"sources": [{"name": "A"}]}
        make B {"sources": [{"name": "A", "filter_subject": "b"}], "subjects": ["b"]}
        make C {"mirror": {"name": "A"}}
        api STREAM.UPDATE.A {"name": "A", "subjects": ["a"], "sources": [{"name": "C"}]}""",
}

SHOWS: dict[str, tuple[str, ...]] = {
    "copy.cycles": ("cycles",),
    "copy.info": ("mirror", "sources"),
    "copy.mirror": ("mirror", "mirrors that cannot be", "mirror of a mirror", "consumers of a mirror"),
    "copy.mirror_filter": ("mirror filters",),
    "copy.mirror_gaps": ("mirror with gaps", "mirror of a stream that begins late"),
    "copy.mirror_promote": ("mirror becomes a stream",),
    "copy.missing": ("mirror of what is not there",),
    "copy.source_duplicates": ("sources and duplicates",),
    "copy.source_options": ("sources", "sources that cannot be"),
    "copy.source_updates": ("sources come and go",),
    "copy.own_consumer": ("*named consumer*",),
    "copy.sources": ("sources", "one source", "sources with limits", "sources that cannot be"),
    "publish.transformed": ("transform",),
    "stream.republish": ("republish*",),
    "stream.subject_transform": ("transform*",),
}
"""The features that scenarios show, for docs/COMPATIBILITY.md, with names of scenarios (``*`` as in file names)."""
