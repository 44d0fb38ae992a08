"""Options: valid values in each spelling, and errors that name the valid values."""

from __future__ import annotations

import os
import re

import pytest

from broker.pipeline.errors import BadOption
from broker.pipeline.plan.options import OPTIONS, VIEWS, Options
from broker.pipeline.plan.selection import Selection

BASE = {"store": "s3://bucket/prefix", "stream": "ORDERS"}


def refused(given: dict[str, str], *, streaming: bool = False) -> str:
    with pytest.raises(BadOption) as raised:
        Options.parse(given, streaming=streaming)
    return str(raised.value)


def test_defaults() -> None:
    """The defaults of a query with only store and stream."""
    options = Options.parse(BASE)
    assert options == Options(store="s3://bucket/prefix", stream="ORDERS")
    assert (options.account, options.view, options.headers, options.targetpartitionbytes, options.prefetch,
            options.failondataloss, options.startingoffsets) == ("$G", "messages", "raw", 64 << 20, 3, True, "earliest")
    assert options.selection() == Selection()
    assert hash(options)


def test_every_option_is_a_field_and_every_field_an_option() -> None:
    assert set(OPTIONS) == set(Options.__dataclass_fields__)
    assert all(name == option.name.lower() and option.about for name, option in OPTIONS.items())


def test_names_in_any_case() -> None:
    """Names are written as in SQL or Python, and as Spark passes them."""
    given = {"STORE": "s3://bkt", "Stream": "S", "startSeq": "5", "endseq": "9", "asOf": "seq:7"}
    options = Options.parse(given)
    assert (options.store, options.stream, options.startseq, options.endseq,
            options.asof) == ("s3://bkt", "S", 5, 9, "seq:7")


def test_the_selection_by_options() -> None:
    """Bounds of sequences are inclusive; of the bounds of times, only the first one."""
    options = Options.parse({**BASE, "subjects": r"orders.*.created, alarm.>,with\,comma", "startSeq": "10",
                             "endSeq": "20", "startTime": "2026-11-21T14:00:00Z", "endTime": "1795269600000001000"})
    assert options.selection() == Selection(
        subjects=(b"orders.*.created", b"alarm.>", b"with,comma"), first_seq=10, last_seq=20,
        first_ns=1795269600000000000, last_ns=1795269600000000999)
    assert Options.parse({**BASE, "view": "subjects",
                          "subjects": "a"}).selection() == Selection(subjects=(b"a",), view="subjects")


@pytest.mark.parametrize(("given", "store"), [
    ("s3://bucket", "s3://bucket"), (" s3://bucket/a/b ", "s3://bucket/a/b"), ("file:///data/x", "file:///data/x"),
    ("file:/data/x", "file:///data/x"), ("file://data/../y", f"file://{os.getcwd()}/y"),
    ("file:///data/x/", "file:///data/x"),
])
def test_a_store_s_url_means_the_same_in_every_process(given: str, store: str) -> None:
    """Executors have working directories of their own. The argument of ``load`` is the store, too."""
    assert Options.parse({"store": given, "stream": "s"}).store == store
    assert Options.parse({"path": given, "stream": "s"}).store == store
    assert Options.parse({"path": given, "store": given, "stream": "s"}).store == store


@pytest.mark.parametrize(("name", "value", "reason"), [
    ("store", "/data/x", "option store='/data/x': write file:///data/x"),
    ("store", "s3a://bucket/x", "write s3://bucket/x"),
    ("store", "http://h", "no store of the kind 'http'"),
    ("store", "memory://", "a store in memory is within one process"),
    ("store", "s3://b?x=y", "s3:// takes no options"),
    ("stream", " , ", "write a stream's name, several separated by commas"),
    ("stream", "orders.>", r"contain no >: \* stands for any characters"),
    ("account", "", "write an account's name"),
    ("view", "message", "option view='message': allowed are messages, subjects, .*; did you mean messages?"),
    ("subjects", "orders..x", "'orders..x' is no NATS subject"),
    ("subjects", "a.>.b,c", "'a.>.b' is no NATS subject"),
    ("subjects", "two words", "'two words' is no NATS subject: .* no white space"),
    ("subjects", ",", "write NATS subjects"),
    ("startSeq", "0", "option startSeq='0': write a sequence, from 1 to"),
    ("startSeq", "-1", "write a sequence"),
    ("endSeq", "ten", "option endSeq='ten': write a sequence"),
    ("endSeq", "9" * 20, "write a sequence"),
    ("startTime", "yesterday", "option startTime='yesterday': 'yesterday' is no time: write 2026-11-21T14:00:00Z"),
    ("endTime", "2026-02-30", "'2026-02-30' is no time: "),
    ("asOf", "last week",
     r"option asOf='last week': write a position as `jetblock inspect` prints it .*, seq:N, or a time"),
    ("headers", "json", "option headers='json': allowed are raw, parsed"),
    ("targetPartitionBytes", "lots", "option targetPartitionBytes='lots': write a size from 1 byte up, as 64m"),
    ("targetPartitionBytes", "0", "write a size"),
    ("targetPartitionBytes", "-5m", "write a size"),
    ("targetPartitionBytes", "1.5g", "write a size"),
    ("prefetch", "0", "write a number of reads, from 1 to 64"),
    ("pushdown", "yes", "option pushdown='yes': allowed are true and false"),
])
def test_errors_of_wrong_values_name_valid_ones(name: str, value: str, reason: str) -> None:
    text = refused({**BASE, name: value})
    assert re.search(reason, text), text


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("64m", 64 << 20), ("64MB", 64 << 20), ("64 MiB", 64 << 20),
                                            ("512k", 512 << 10), ("2G", 2 << 30), ("1000000", 1_000_000),
                                            ("1t", 1 << 40)])
def test_sizes(text: str, size: int) -> None:
    assert Options.parse({**BASE, "targetPartitionBytes": text}).targetpartitionbytes == size


@pytest.mark.parametrize(("name", "meant"), [
    ("subject", "subjects"), ("streams", "stream"), ("startSequence", "startSeq"), ("starTime", "startTime"),
    ("as_of", "asOf"), ("url", None), ("maxMessagePerTrigger", "maxMessagesPerTrigger"), ("endOffset", None),
    ("targetPartitionSize", "targetPartitionBytes"), ("failOnDataLos", "failOnDataLoss"), ("header", "headers")])
def test_unknown_options_are_named_with_the_nearest(name: str, meant: str | None) -> None:
    text = refused({**BASE, name: "x"})
    assert f"no option '{name}'" in text
    assert (f"did you mean {meant}?" in text) if meant else True
    assert "there are: store, account, stream, view, subjects, startSeq" in text


def test_all_unknown_options_are_named_at_once() -> None:
    """Each option is named in the spelling of the query."""
    text = refused({**BASE, "Subjcts": "a", "startingOffset": "x", "zzz": "1"})
    assert re.search(r"no option 'Subjcts': did you mean subjects\?; no option 'startingOffset': did you mean "
                     r"startingOffsets\?; no option 'zzz'; there are: ", text), text


def test_all_errors_are_reported_at_once() -> None:
    text = refused({"stream": "s", "startSeq": "x", "prefetch": "y"})
    for part in ("option store is needed", "option startSeq='x'", "option prefetch='y'"):
        assert part in text


@pytest.mark.parametrize(("given", "reason"), [
    ({"path": "s3://other"}, "name two stores: leave one out"),
    ({"view": "streams", "subjects": "a"},
     "option subjects has no meaning for view=streams, only for messages and subjects"),
    ({"view": "blocks", "headers": "raw"}, "option headers has no meaning for view=blocks, only for messages"),
    ({"view": "consumers", "asOf": "seq:5"}, "option asOf has no meaning for view=consumers"),
    ({"startingOffsets": "latest"}, "option startingOffsets is for streaming queries: a batch query has startSeq"),
    ({"maxBytesPerTrigger": "1m"}, "option maxBytesPerTrigger is for streaming queries: leave it out"),
])
def test_contradictions(given: dict[str, str], reason: str) -> None:
    assert reason in refused({**BASE, **given})


@pytest.mark.parametrize("given", [{"startSeq": "11", "endSeq": "10"}, {"startSeq": "1", "endSeq": "0"},
                                   {"startTime": "2026-01-02", "endTime": "2026-01-02"},
                                   {"startTime": "2026-01-02", "endTime": "2026-01-01"}])
def test_an_empty_range_selects_nothing(given: dict[str, str]) -> None:
    """Bounds are often computed: the last batch's end is the next one's start."""
    assert Options.parse({**BASE, **given}).selection().nothing


@pytest.mark.parametrize("given", [{}, {"provider": "jetblock", "owner": "me", "option.store": "s3://bkt"}])
def test_tables_are_refused_with_what_works_instead(given: dict[str, str]) -> None:
    """Spark passes, for CREATE TABLE, no options if there are columns, and the table's properties if there are none."""
    text = refused(given)
    assert "CREATE TEMPORARY VIEW … USING jetblock OPTIONS (store '…', stream '…')" in text
    assert "the jar, with which tables persist (jetblock pipeline jar)" in text
    assert "did you mean" not in text


@pytest.mark.parametrize(("given", "reason"), [
    ({"endSeq": "5"}, "option endSeq is for batch queries: a streaming query begins at startingOffsets"),
    ({"asOf": "seq:5"}, "option asOf is for batch queries"),
    ({"view": "subjects"}, "option view=subjects: a streaming query reads messages"),
    ({"maxMessagesPerTrigger": "0"}, "write a number of messages, from 1"),
    ({"failOnDataLoss": "maybe"}, "option failOnDataLoss='maybe': allowed are true and false"),
    ({"startingOffsets": ""}, "write earliest, latest, a sequence"),
])
def test_streaming_queries(given: dict[str, str], reason: str) -> None:
    assert reason in refused({**BASE, **given}, streaming=True)


def test_streaming_options() -> None:
    options = Options.parse({**BASE, "startingOffsets": "latest", "maxMessagesPerTrigger": "1000",
                              "maxBytesPerTrigger": "64m", "failOnDataLoss": "FALSE", "subjects": "a.>",
                             "headers": "parsed"}, streaming=True)
    assert (options.startingoffsets, options.maxmessagespertrigger, options.maxbytespertrigger,
            options.failondataloss) == ("latest", 1000, 64 << 20, False)


@pytest.mark.parametrize("view", VIEWS)
def test_the_streams_of_a_view(view: str) -> None:
    """The views of streams and consumers cover all streams unless some are named; the others require the option."""
    given = {"store": "s3://bkt", "view": view}
    if view in ("streams", "consumers"):
        assert Options.parse(given).stream == "*"
    else:
        assert "option stream is needed" in refused(given)
    assert Options.parse({**given, "stream": "a*,b"}).stream == "a*,b"


@pytest.mark.parametrize("given", [{"store": "s3://key:secret@bucket"}, {"store": "s3a://key:secret@bucket/x"},
                                   {"path": "http://key:secret@host", "store": "s3://bkt"}])
def test_secrets_are_not_repeated(given: dict[str, str]) -> None:
    """The URL of a store may contain secrets."""
    assert "secret" not in refused({"stream": "s", **given})
