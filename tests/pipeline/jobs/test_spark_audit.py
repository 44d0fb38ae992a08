"""The job ``audit``: its tables and its page tell what a stream has, and what it lacks."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broker.cli import run
from broker.pipeline.errors import BadOption, PipelineError
from broker.pipeline.jobs import audit as audit_module
from broker.pipeline.jobs.target import Target
from broker.storage.objectstore.file import FileStore
from jetblock.spark import audit
from tests.pipeline.stores import T0, Owner

SECOND_NS = 10**9


def with_id(name: str) -> bytes:
    return f"NATS/1.0\r\nNats-Msg-Id: {name}\r\n\r\n".encode()


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A store with the stream S, which has each kind of finding, and the empty stream E.

    Sequences: 1-10, 14-17, 18 with the time of 17, 30, and 31 to 33 whose last one is removed.
    """
    (tmp_path / "store").mkdir()
    store = FileStore(tmp_path / "store")
    owner = Owner(store)
    await owner.start()
    await owner.make("E")
    stream = await owner.make("S")
    stream.append([(b"S.x", with_id("a") if n in (0, 5) else b"", b"." * n) for n in range(10)], after_ns=SECOND_NS)
    await owner.log.persisted()
    stream.append([(b"S.x", with_id("<b>"), b"four"), (b"S.y", b"", b"x" * 1000)] * 2, gap=3, after_ns=SECOND_NS)
    await owner.log.persisted()
    stream.append([(b"S.x", with_id("a"), b"8 bytes.")], after_ns=0)
    await owner.log.persisted()
    stream.append([(b"S.x", b"", b"")], gap=11, after_ns=3600 * SECOND_NS)
    stream.append([(b"S.x", b"", b"end")] * 3, after_ns=0)
    await owner.log.persisted()
    stream.remove(33, 33)
    await owner.log.persisted()
    await owner.stop()
    await store.close()
    return f"file://{tmp_path}/store"


def rows(spark: Any, target: Path, table: str, *columns: str, order: str) -> list[tuple[Any, ...]]:
    found = spark.read.parquet(str(target / table)).orderBy(order).select(*columns).collect()
    return [tuple(row) for row in found]


class _Page(HTMLParser):
    """Counts elements, and collects the addresses of everything that a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]


async def test_the_tables(spark: Any, command_session: None, url: str, tmp_path: Path,
                          monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes tables with all findings, also those at the borders of what one task compares, and a page that
    shows them. They replace the tables of an earlier run."""
    monkeypatch.setattr(audit_module, "_CHUNK", 6)
    target = tmp_path / "out"
    Target(str(target)).record(spark, {"job": "audit", "store": url, "stream": "S", "account": "$G"})
    for name in audit_module.TABLES:
        (target / name).mkdir()
        pq.write_table(pa.table({"earlier": [1, 2, 3]}), target / name / "part-00000.snappy.parquet")
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert run(["pipeline", "audit", url, "S", str(target), "--json"]) == 0
    done = SimpleNamespace(**json.loads(capsys.readouterr().out))
    assert spark.conf.get("spark.sql.session.timeZone") == zone
    assert (done.messages, done.bytes, done.first_seq, done.last_seq) == (18, 45 + 2008 + 8 + 6, 1, 32)
    assert (done.gaps, done.missing, done.duplicate_ids, done.clock_steps) == (3, 15, 2, 1)
    assert rows(spark, target, "gaps", "first_seq", "last_seq", "missing", order="first_seq") == [
        (11, 13, 3), (19, 29, 11), (33, 33, 1)]
    assert rows(spark, target, "duplicates", "msg_id", "messages", "first_seq", "last_seq", "closest_ns",
                order="msg_id") == [("<b>", 2, 14, 16, 0), ("a", 3, 1, 18, 0)]
    assert rows(spark, target, "clock_steps", "first_seq", "last_seq", "messages", "held_ns", order="first_seq") == [
        (14, 18, 5, 3600 * SECOND_NS)]
    assert done.held_ns == 3600 * SECOND_NS
    assert rows(spark, target, "sizes", "from_bytes", "to_bytes", "messages", "bytes", order="from_bytes") == [
        (0, 1, 2, 0), (1, 2, 1, 1), (2, 4, 4, 11), (4, 8, 6, 30), (8, 16, 3, 25), (512, 1024, 2, 2000)]
    by_time = [(row.at, row.seconds, row.messages) for row in spark.read.parquet(str(target / "rates"))
               .selectExpr("unix_seconds(from_time) at", "*").orderBy("at").collect()]
    start = T0 // SECOND_NS // 60 * 60
    assert sum(messages for *_, messages in by_time) == 18
    assert {seconds for _, seconds, _ in by_time} == {60}
    assert by_time[0][0] in (start, start + 60)
    assert by_time[-1][0] - by_time[0][0] >= 3540
    _check_page(tmp_path / "out" / "audit.html", bars=6 + len(by_time))
    assert done.page == f"{target}/audit.html"


def _check_page(path: Path, bars: int) -> None:
    """The page has a bar for each row of both histograms, escapes what comes from messages, and loads nothing."""
    text = path.read_text("utf-8")
    page = _Page()
    page.feed(text)
    assert (page.counts["svg"], page.counts["rect"]) == (2, bars)
    assert (page.counts.get("script", 0), page.counts.get("b", 0), page.loads) == (0, 0, [])
    assert "&lt;b&gt;" in text
    assert re.search("missing sequences</th><td>15 in 3 gaps<", text)


@pytest.mark.soak
async def test_an_empty_stream(spark: Any, url: str, tmp_path: Path) -> None:
    """A stream without messages has empty tables; the page is written to the file that is named."""
    page = tmp_path / "page.html"
    done = audit(spark, store=url, stream="E", to=str(tmp_path / "empty"), page=str(page))
    assert (done.messages, done.gaps, done.first_seq) == (0, 0, None)
    assert "There are no messages." in page.read_text("utf-8")


async def test_refusals(spark: Any, url: str, tmp_path: Path) -> None:
    """Each refusal names the reason and overwrites nothing."""
    target = tmp_path / "out"
    with pytest.raises(BadOption, match="names 2 streams"):
        audit(spark, store=url, stream="*", to=str(target))
    with pytest.raises(BadOption, match="the page is a local file"):
        audit(spark, store=url, stream="S", to="s3a://bucket/out")
    with Target(str(target)).locked(), pytest.raises(PipelineError, match="another job writes there now"):
        audit(spark, store=url, stream="S", to=str(target))
    (target / "gaps").mkdir()
    (target / "gaps" / "mine").write_text("kept")
    with pytest.raises(BadOption, match="files that this job would overwrite"):
        audit(spark, store=url, stream="S", to=str(target))
    assert (target / "gaps" / "mine").read_text() == "kept"


@pytest.mark.soak
async def test_the_page_in_a_browser(spark: Any, url: str, tmp_path: Path) -> None:
    """Chromium shows the page: both charts have visible bars, the lists their rows, and text of messages stays text.
    Nothing else is loaded."""
    from tests.console.browsers import browser

    done = audit(spark, store=url, stream="S", to=str(tmp_path / "out"))
    async with browser() as page:
        loaded: list[str] = []
        page.on("request", lambda request: loaded.append(request.url))
        address = Path(done.page).as_uri()
        await page.goto(address)
        assert await page.locator("h1").inner_text() == "Stream S"
        bars = page.locator("svg rect")
        for number in range(await bars.count()):
            box = await bars.nth(number).bounding_box()
            assert box is not None
            assert box["width"] >= 1
            assert box["height"] >= 1
        assert await page.locator("svg").count() == 2
        assert await page.get_by_text("<b>", exact=True).count() == 1
        assert "15 in 3 gaps" in await page.locator("body").inner_text()
        assert loaded == [address]
