"""``jetblock report``: the figures, hostile names, empty and damaged stores, many streams."""

from __future__ import annotations

import asyncio
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import nats
import pytest

from broker.base.html_page import Bar, bar_chart, facts_table, page, rows_table, split_chart
from broker.cli import run
from broker.inspect.problems import Problem
from broker.inspect.survey import Extent, Survey
from broker.maintenance import report_cli
from broker.maintenance.report import STREAMS_LISTED, report_page
from broker.maintenance.report_cli import main
from broker.storage.state.consumer import ConsumerState
from broker.storage.state.stream import StreamState
from jetblock import Broker

HOSTILE = '<script>alert(1)</script>&"\'\x1b[31m\u202e'
NOW = 1_800_000_000_000_000_000
DAY = 86_400 * 10**9


class Page(HTMLParser):
    """The tags and the text of a page; raises if tags are not closed in order."""

    VOID = frozenset({"meta"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


async def _filled(folder: Path) -> None:
    async with Broker(folder) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        await js.add_stream(name="LIMITED", subjects=["limited"], max_msgs=3)
        for number in range(20):
            await js.publish(f"orders.{number % 3}", b"x" * 1000)
            await js.publish("limited", b"y" * 1000)
        await (await js.pull_subscribe("orders.>", durable="billing")).fetch(5, timeout=30)
        await client.close()


async def test_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the streams, consumers, sizes, and what to do; it is whole, and loads nothing."""
    await _filled(tmp_path / "store")
    monkeypatch.chdir(tmp_path)
    status = await asyncio.to_thread(main, [f"file://{tmp_path / 'store'}", "--verify"])
    assert status == 0
    assert re.fullmatch(r"jetblock-report.html: [\d.]+ KiB, 0 problems\n", capsys.readouterr().out)
    text = (tmp_path / "jetblock-report.html").read_text()
    found = Page(text)
    for expected in ("$G/ORDERS", "$G/LIMITED", "billing", "all read", "Problems: 0", "Streams: 2",
                     "1 stream without max_age", "No stream is an hour old"):
        assert expected in found.text, expected
    assert "$G/LIMITED" not in re.search(r"1 stream without[^.]*", found.text)[0]  # type: ignore[index]
    assert not {"script", "link", "img", "iframe", "form"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name in ("src", "href") or name.startswith("on")]


def _survey(streams: list[StreamState], problems: list[Problem] | None = None) -> Any:
    return _with_streams(Survey("file:///" + HOSTILE, None, [], Extent(3, 4096), problems or []), streams)


def _with_streams(survey: Survey, streams: list[StreamState]) -> Any:
    """A survey whose streams are given; they belong to no shard that the page shows."""
    shard = SimpleNamespace(view=SimpleNamespace(state=SimpleNamespace(opening=None, position=None)))
    return SimpleNamespace(url=survey.url, format=None, shards=[], stream_runs=survey.stream_runs,
                           problems=survey.problems, repairs=[], extent=survey.stream_runs,
                           streams=[(shard, stream) for stream in streams])


def _stream(name: str, msgs: int = 5, **config: Any) -> StreamState:
    stream = StreamState(1, "A", name, {"name": name, **config}, NOW - 10 * DAY)
    stream.msgs, stream.bytes, stream.last_seq = msgs, 1000 * msgs, msgs
    stream.first_time_ns, stream.last_time_ns = NOW - 9 * DAY, NOW - DAY
    return stream


def test_hostile_names() -> None:
    """Names, reasons and URLs are text: no tag, no attribute, and no escape sequence or direction mark comes from them.
    """
    stream = _stream(HOSTILE, retention="workqueue")
    stream.offline = HOSTILE
    consumer = ConsumerState(HOSTILE, {}, NOW)
    consumer.last_active_ns = NOW - 40 * DAY
    stream.consumers[HOSTILE] = consumer
    text = report_page(_survey([stream], [Problem(HOSTILE, HOSTILE, HOSTILE, HOSTILE)]), None, NOW)
    found = Page(text)
    assert "script" not in found.tags
    assert text.count("<script") == 0
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<script>alert(1)</script>" in found.text
    assert "1 consumer inactive for 30 days" in found.text
    assert "1 stream cannot be used" in found.text


@pytest.mark.parametrize("times", [
    (0, 0), (1, NOW), (NOW, NOW), (NOW, 1 << 62), ((1 << 62) - 1, 1 << 62), (NOW + DAY, NOW + 2 * DAY)])
def test_any_times(times: tuple[int, int]) -> None:
    """Messages without a time, of one instant, of two centuries, or of the future give a page."""
    stream = _stream("S")
    stream.first_time_ns, stream.last_time_ns = times
    assert "A/S" in Page(report_page(_survey([stream]), None, NOW)).text


def test_ten_thousand_streams() -> None:
    """The page has the largest streams and says how many there are; it takes a second and half a megabyte at most."""
    streams = [_stream(f"S{number}", number) for number in range(10_000)]
    began = time.process_time()
    text = report_page(_survey(streams), None, NOW)
    assert time.process_time() - began < 10
    assert len(text) < 500_000
    assert f"The first {STREAMS_LISTED} of 10 000" in Page(text).text
    assert "and 9 995 more" in text


def test_an_empty_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A store that was only opened gives a page without figures; no store at all gives one sentence and status 2."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        assert run(["report", f"file://{tmp_path / 'none'}"]) == 2
        assert not list(tmp_path.glob("*.html"))
    assert "Traceback" not in capsys.readouterr().err
    assert "There are no messages." in Page(report_page(_survey([]), None, NOW)).text


async def test_a_damaged_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged object is on the page, with what it means and the remedy, and the status is 1."""
    await _filled(tmp_path / "store")
    segments = sorted((tmp_path / "store").rglob("log/*"), key=lambda path: -path.stat().st_size)
    data = bytearray(segments[0].read_bytes())
    data[len(data) // 2] ^= 0xFF
    segments[0].write_bytes(data)
    output = tmp_path / "page.html"
    words = [f"file://{tmp_path / 'store'}", "--verify", "--output", str(output)]
    assert await asyncio.to_thread(main, words) == 1
    found = Page(output.read_text())
    assert segments[0].name in found.text
    assert "jetblock fsck says what is lost" in found.text


def test_the_page_replaces_the_old_one_in_one_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that cannot be written leaves the old one, no temporary file, and one sentence."""
    old = tmp_path / "page.html"
    old.write_text("old")
    with patch.object(Path, "replace", side_effect=OSError(28, "No space left on device")), pytest.raises(OSError):
        report_cli._write("new", str(old))
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert old.read_text() == "old"
    report_cli._write("new", str(old))
    assert old.read_text() == "new"
    with pytest.raises(OSError):
        report_cli._write("new", str(tmp_path / "no" / "page.html"))


def test_charts() -> None:
    """Charts stay within their frame for single, equal, huge and zero values."""
    for values in ([0], [5], [1, 1 << 60], [3] * 60):
        bars = [Bar(at, str(at), value, "about") for at, value in enumerate(values)]
        svg = bar_chart(bars, len(bars), labels=5, unit=str, about="x")
        for x, y, width, height in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"',
                                              svg):
            assert float(x) + float(width) <= 901
            assert float(y) + float(height) <= 175
    assert bar_chart([], 0, labels=1, unit=str, about="x") == "<p>There are no messages.</p>"
    assert split_chart([], about="x") == "<p>None.</p>"
    Page(page("t", "h", facts_table({HOSTILE: HOSTILE}) + rows_table(["a"], [[HOSTILE]], ["a"])))
