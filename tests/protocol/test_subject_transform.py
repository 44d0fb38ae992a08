"""Subject transforms: a table played to the real nats-server, too (as account mappings), errors, and properties."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_left
from pathlib import Path

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg

from broker.protocol.subject_transform import SubjectTransform, TransformError, check_mapping, make_transform
from tests.harness import NatsServerProcess

MAPPINGS = [
    ("plain", "other.place", ["plain"]),
    ("w.*.*", "w2.{{wildcard(2)}}.x.{{wildcard(1)}}", ["w.a.b", "w.1.é"]),
    ("d.*.*", "d2.$2.$1.$2", ["d.a.b"]),
    ("zero.*", "z2.$0.{{ Wildcard( 1 ) }}", ["zero.a"]),
    ("dollar.*", "$x.$.$1x.{{a.$1", ["dollar.a"]),
    ("full.>", "f2.>", ["full.a", "full.a.b.c"]),
    ("mixed.*.>", "m2.$1.y.>", ["mixed.a.b", "mixed.a.b.c"]),
    ("p.*.*", "p2.{{partition(10,1,2)}}.$1", ["p.a.b", "p.1.2", "p.x.yyyyyyyyyyyyyyyyyyyy"]),
    ("q.*.*", "q2.{{Partition( 7,  2 )}}.{{partition(0,1)}}.{{partition(5)}}", ["q.a.b", "q.long-token.é", "q.3.4"]),
    ("negative.*", "n2.{{partition(-3,1)}}.{{partition(1,0)}}", ["negative.a", "negative.b"]),
    ("sfl.*", "sfl2.{{splitfromleft(1,3)}}", ["sfl.abcdef", "sfl.abc", "sfl.ab"]),
    ("sfr.*", "sfr2.{{SplitFromRight(1,2)}}.{{splitFromRight(1,0)}}.{{splitFromRight(1,-1)}}",
     ["sfr.abcdef", "sfr.ab"]),
    ("ifl.*", "ifl2.{{SliceFromLeft(1,3)}}", ["ifl.abcdefgh", "ifl.abcdef", "ifl.abc", "ifl.abcd"]),
    ("ifr.*", "ifr2.{{sliceFromRight(1,3)}}.end", ["ifr.abcdefgh", "ifr.abcdef", "ifr.abcd", "ifr.a"]),
    ("split.*", "split2.{{split(1,-)}}", ["split.a-b-c", "split.-a--b-", "split.a", "split.a-"]),
    ("each.*", "each2.{{split(1,)}}", ["each.abc", "each.é1"]),
    ("wide.*", "wide2.{{Split(1, ab)}}.$1", ["wide.xabyabz"]),
    ("left.*", "left2.{{left(1,2)}}.{{Left(1,9)}}", ["left.abcdef", "left.a"]),
    ("right.*", "right2.{{Right(1,2)}}.{{right(1,0)}}", ["right.abcdef", "right.ab"]),
    ("rnd.*", "rnd2.{{random(1)}}.{{Random(0)}}", ["rnd.a"]),
    ("rest.*.>", "rest2.{{wildcard(1)}}.{{partition(3)}}.>", ["rest.a.b.c"]),
]

ERRORS = [
    ("a.*", "b.{{wildcard(2)}}", "wildcard index out of range in {{wildcard(2)}}: [2]"),
    ("a.*", "b.$3", "wildcard index out of range in $3: [3]"),
    ("a", "b.$1", "wildcard index out of range in $1"),
    ("a", "b.{{split(1,-)}}", "wildcard index out of range in {{split(1,-)}}"),
    ("a.*", "b.{{bogus(1)}}", "unknown function in {{bogus(1)}}"),
    ("a.*", "b.{{wildcard()}}", "not enough arguments passed to the function in {{wildcard()}}"),
    ("a.*", "b.{{wildcard(x)}}", "function argument is invalid or in the wrong format in {{wildcard(x)}}"),
    ("a.*", "b.{{wildcard(1,2)}}", "too many arguments passed to the function in {{wildcard(1,2)}}"),
    ("a.*", "b.{{partition()}}", "function argument is invalid or in the wrong format in {{partition()}}"),
    ("a.*", "b.{{partition(2147483648,1)}}",
     "function argument is invalid or in the wrong format in {{partition(2147483648,1)}}"),
    ("a.*", "b.{{partition(3,x)}}", "function argument is invalid or in the wrong format in {{partition(3,x)}}"),
    ("a.*", "b.{{splitfromleft(1)}}", "not enough arguments passed to the function in {{splitfromleft(1)}}"),
    ("a.*", "b.{{slicefromright(1,2,3)}}", "too many arguments passed to the function in {{slicefromright(1,2,3)}}"),
    ("a.*", "b.{{split(1)}}", "not enough arguments passed to the function in {{split(1)}}"),
    ("a.*", "b.{{random(1,2)}}", "not enough arguments passed to the function in {{random(1,2)}}"),
    ("a.*", "b..c", "invalid transform"),
    ("a.*", "b.>.c", "invalid transform in c"),
    ("a.*", "b c", "invalid transform"),
]
"""Errors for streams; the differential scenarios of jetstream compare the texts with nats-server's."""


def transformed(src: str, dest: str, subject: str) -> str | None:
    made = SubjectTransform(src.encode(), dest.encode()).match(subject.encode())
    return None if made is None else made.decode()


@pytest.mark.shows("core.mapping_functions")
async def test_mappings_are_those_of_nats_server(tmp_path: Path) -> None:
    """Each subject of the table is published to a nats-server that has the table as mappings, and arrives as ours
    predicts."""
    entries = "\n".join(f'  "{src}": "{dest}"' for src, dest, _ in MAPPINGS)
    config = tmp_path / "server.conf"
    config.write_text(f"mappings {{\n{entries}\n}}\n")
    async with NatsServerProcess("-c", str(config)) as server:
        client = await nats.connect(server.url)
        arrived: dict[str, str] = {}
        everything = asyncio.Event()
        wanted = [(src, dest, subject) for src, dest, subjects in MAPPINGS for subject in subjects]

        async def note(msg: Msg) -> None:
            arrived[msg.data.decode()] = msg.subject
            if len(arrived) == len(wanted):
                everything.set()

        await client.subscribe(">", cb=note)
        for _, _, subject in wanted:
            await client.publish(subject, subject.encode())
        await asyncio.wait_for(everything.wait(), 30)
        await client.close()
    assert {subject: transformed(src, dest, subject) for src, dest, subject in wanted} == arrived


@pytest.mark.parametrize(("src", "dest", "text"), ERRORS)
def test_errors(src: str, dest: str, text: str) -> None:
    with pytest.raises(TransformError, match=re.escape(f"invalid mapping destination: {text}") + "$"):
        check_mapping(src.encode(), dest.encode())


@pytest.mark.parametrize(("src", "dest"), [("a.*", "b.*"), ("a.>", "b"), ("a", "b.>"), ("a..b", "c"), (">.a", "b"),
                                           ("a.*", "b.>")])
def test_invalid_subjects(src: str, dest: str) -> None:
    with pytest.raises(TransformError, match=r"^invalid subject$"):
        check_mapping(src.encode(), dest.encode())


def test_no_destination_is_no_transform() -> None:
    check_mapping(b"a.*", b"")
    assert make_transform(b"a.*", b"") is None


def test_unmatched_subjects_do_not_change() -> None:
    transform = SubjectTransform(b"a.*", b"b.$1")
    assert [transform.match(subject) for subject in (b"a", b"a.b.c", b"b.a", b"a.*", b"a..b", b"a.>")] == [None] * 6
    assert SubjectTransform(b"", b">").match(b"any.thing") == b"any.thing"
    assert SubjectTransform(b"", b"x.>").match(b"any.thing") == b"x.any.thing"


def test_random_is_below_its_bound() -> None:
    transform = SubjectTransform(b"a.*", b"{{random(3)}}.{{random(-2)}}")
    assert {transform.match(b"a.x") for _ in range(500)} == {b"%d.%d" % (i, j) for i in range(3) for j in range(2)}


tokens = st.text("ab-é", min_size=1, max_size=9)


@given(st.lists(tokens, min_size=1, max_size=4), st.randoms(use_true_random=False), st.booleans())
def test_strict_transforms_can_be_undone(words: list[str], rng: object, rest: bool) -> None:
    """The reverse of any permutation of all wildcards restores the subject."""
    order = list(range(1, len(words) + 1))
    rng.shuffle(order)  # type: ignore[attr-defined]
    tail = ".>" if rest else ""
    transform = SubjectTransform(("a" + ".*" * len(words) + tail).encode(),
                                 ("b." + ".".join(f"${n}" for n in order) + tail).encode(), strict=True)
    subject = ".".join(["a", *words, *(["x", "y"] if rest else [])]).encode()
    there = transform.match(subject)
    assert there is not None
    assert transform.reverse().match(there) == subject


@pytest.mark.parametrize(("src", "dest", "text"), [
    ("a.*.*", "b.$1", "not using all of the token wildcard(s) in b.$1"),
    ("a.*", "b.{{partition(3,1)}}", "the only mapping function allowed for import transforms is {{Wildcard()}} in "
                                    "{{partition(3,1)}}")])
def test_strict_errors(src: str, dest: str, text: str) -> None:
    with pytest.raises(TransformError, match=re.escape(text) + "$"):
        SubjectTransform(src.encode(), dest.encode(), strict=True)


@given(tokens, st.integers(-3, 12),
       st.sampled_from(["splitFromLeft", "splitFromRight", "sliceFromLeft", "sliceFromRight"]))
def test_cutting_loses_nothing(token: str, size: int, function: str) -> None:
    """The pieces without the dots are the token; all slices but one have the size."""
    made = SubjectTransform(b"a.*", f"b.{{{{{function}(1,{size})}}}}".encode()).match(f"a.{token}".encode())
    assert made is not None
    pieces = made.split(b".")[1:]
    assert b"".join(pieces) == token.encode()
    assert all(pieces)
    if size > 0 and function.startswith("slice") and len(token.encode()) > size:
        assert sorted({len(piece) for piece in pieces})[-1] == size
        assert sum(len(piece) < size for piece in pieces) <= 1


@given(st.lists(tokens, min_size=2, max_size=2), st.integers(1, 50))
def test_partitions_depend_on_their_tokens_alone(words: list[str], buckets: int) -> None:
    one, two = (f"a.{words[0]}.{other}".encode() for other in (words[1], "x"))
    transform = SubjectTransform(b"a.*.*", f"{{{{partition({buckets},1)}}}}".encode())
    number = transform.match(one)
    assert number == transform.match(two)
    assert number is not None
    assert 0 <= int(number) < buckets


@pytest.mark.parametrize(("dest", "size"), [
    (b".".join([b"$1"] * 100), 65_535), (b"x.>", 65_535), (b"{{split(1,)}}." + b"y" * 100 + b".$1", 65_535)])
def test_a_made_subject_has_a_bound(dest: bytes, size: int) -> None:
    """The longest result that fits is made; with one byte more the result is b""."""
    src = b">" if dest.endswith(b">") else b"*"
    transform = SubjectTransform(src, dest)
    fits = bisect_left(range(1, size + 1), True, key=lambda count: not transform.match(b"t" * count))
    longest = transform.match(b"t" * fits)
    assert longest is not None
    assert size - 200 < len(longest) <= size
    assert transform.match(b"t" * (fits + 1)) == b""
    assert transform.apply(b"t" * 9 * fits) == b""


def test_partitions_hash_so_many_bytes() -> None:
    """A partition of a long token is made, 2000 are not; without a wildcard each hashes the whole subject."""
    many = SubjectTransform(b"a.*", b".".join([b"{{partition(9,1)}}"] * 2000))
    assert many.match(b"a.b") is not None
    assert many.match(b"a." + b"b" * 40) == b""
    whole = SubjectTransform(b"a.*", b".".join([b"{{partition(9)}}"] * 1000) + b".$1")
    assert whole.match(b"a." + b"b" * 60)
    assert whole.match(b"a." + b"b" * 70) == b""
