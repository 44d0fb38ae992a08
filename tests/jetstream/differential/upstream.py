"""Subject transforms, republishing, mirrors and sources, as data: see player.py for the steps."""

from __future__ import annotations

__all__ = ["SCENARIOS"]


def _creates(*configs: str) -> str:
    """Streams under one name, each deleted before the next."""
    return "\n".join(f"api STREAM.CREATE.S {config}\napi STREAM.DELETE.S" for config in configs)


def _transforms(*pairs: tuple[str, str]) -> str:
    return _creates(*(f'{{"name": "S", "subject_transform": {{"src": "{src}", "dest": "{dest}"}}}}' for src, dest in pairs))


SCENARIOS: dict[str, str] = {
    "transform": """stream {"subject_transform": {"src": "s.*.*", "dest": "t.{{wildcard(2)}}.{{partition(5,1)}}.$1"}, "max_msgs_per_subject": 1, "allow_rollup_hdrs": true}
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
        api STREAM.MSG.GET.S {"last_by_subj": "s.c"}""",  # noqa: E501  # one request
    "transform comes and goes": """stream
        pub s.a 1
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "", "dest": "x.>"}}
        pub s.a 2
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.*", "dest": "y.$1"}}
        pub s.a 3
        pub s.a.b 4
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.a", "dest": "z.{{partition(9)}}.{{partition(6,3)}}"}}
        pub s.a 5
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"]}
        pub s.a 6
        msgs S
        api STREAM.UPDATE.S {"name": "S", "subjects": ["s.>"], "subject_transform": {"src": "s.*", "dest": "y.$2"}}""",  # noqa: E501
    "transforms that cannot be": _transforms(
        ("a..b", "x"), ("a.*", "x.*"), ("a.*", "x.$2"), ("a.*", "x.{{wildcard(2)}}"), ("a.*", "x.{{bogus(1)}}"),
        ("a.*", "x.{{wildcard()}}"), ("a.*", "x.{{wildcard(a)}}"), ("a.*", "x.{{wildcard(1,2)}}"),
        ("a.*", "x.{{partition()}}"), ("a.*", "x.{{partition(2147483648,1)}}"), ("a.*", "x.{{partition(3,x)}}"),
        ("a.*", "x.{{split(1)}}"), ("a.*", "x.{{split(1, -)}}"), ("a.*", "x.{{split(1,-,-)}}"),
        ("a.*", "x.{{splitfromleft(1)}}"), ("a.*", "x.{{splitfromright(1,2,3)}}"), ("a.*", "x.{{slicefromleft(1,x)}}"),
        ("a.*", "x.{{slicefromright(9,1)}}"), ("a.*", "x.{{left(1,2)}}"), ("a.*", "x.{{right(1,2)}}"),
        ("a.*", "x.{{random(1,2)}}"), ("a.*", "x.{{random()}}"), ("a", "x.$1"), ("a", "x.{{split(1,-)}}"), ("a", "x.>"),
        ("a.>", "x"), ("a", "x..y"), ("a", "x.>.y"), ("a", "x y"), ("", "x"), ("a", ""), ("a.*", "x.{{}}"), ("a.*", "$x.$0")),

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
}
