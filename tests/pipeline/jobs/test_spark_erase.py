"""The job ``erase``: a query finds messages, and their bytes leave the store, with a report that can be verified."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import StreamConfig, StreamSource

import jetblock
from broker.cli import run
from broker.erasure.request import request
from broker.pipeline.errors import BadOption, PipelineError
from broker.pipeline.jobs.target import Target
from jetblock.spark import erase
from jetblock.testing import BrokerThread
from tests.runtime.test_erasure import files_with

pytestmark = pytest.mark.shows("auth.erasure")

SOON = {"storage.reader_grace_ns": 0, "storage.erase_delay_ns": 10_000_000, "storage.journal": False}
MESSAGES = 30


async def _fill(url: str) -> None:
    nc = await nats.connect(url)
    js = nc.jetstream()
    await js.add_stream(StreamConfig(name="S", subjects=["S.>"]))
    await js.add_stream(StreamConfig(name="COPY", mirror=StreamSource(name="S")))
    for i in range(1, MESSAGES + 1):
        await js.publish(f"S.{i % 3}.subject-{i:02}", b"payload-%02d" % i,
                         headers={"Customer": f"{i % 5}", "Nats-Msg-Id": f"id-{i:02}"})
    while (await js.stream_info("COPY")).state.messages < MESSAGES:  # noqa: ASYNC110 (a mirror reports no event)
        await asyncio.sleep(0.02)
    await nc.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that no test changes, with the stream S of messages 1 to 30, and a mirror."""
    folder = tmp_path_factory.mktemp("filled")
    with BrokerThread(folder, settings=SOON) as broker:
        asyncio.run(_fill(broker.url))
    return folder


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> str:
    """A stopped store with these streams."""
    shutil.copytree(filled, tmp_path / "store")
    return f"file://{tmp_path}/store"


def texts(seqs: Sequence[int]) -> list[bytes]:
    return [text % i for i in seqs for text in (b"payload-%02d", b"subject-%02d", b"id-%02d")]


def expect_erased(store: str, *seqs: int) -> None:
    """Check that these messages, and no others, are in neither stream and in no file."""
    left = [i for i in range(1, MESSAGES + 1) if i not in seqs]
    for stream in ("S", "COPY"):
        assert jetblock.scan(store, stream, columns=["seq"]).read_all()["seq"].to_pylist() == left
    assert files_with(Path(store.removeprefix("file://")), texts(seqs)) == {}


@pytest.mark.parametrize("selector", [
    {"subjects": "S.2.>", "where": "seq < 6 AND data LIKE 'payload%'"},
    pytest.param({"headers": ["Customer: 2", "Nats-Msg-Id"], "where": "msg_id IN ('id-02', 'id-05', 'id-12')",
                  "subjects": ["S.2.>"], "columns": {"seq": "id"}}, marks=pytest.mark.soak),
], ids=["subjects and SQL", "headers, ids and a table"])
def test_a_stopped_store(spark: Any, command_session: None, store: str, tmp_path: Path, selector: dict[str, Any],
                         capsys: pytest.CaptureFixture[str]) -> None:
    """Shows each kind of condition, the report and its proof; and that a second run, most often by the command, finds
    nothing to erase."""
    rows = None
    expected = [2, 5]
    if "columns" in selector:
        rows = spark.createDataFrame([(2,), (2,), (5,), (12,), (9000,)], "id INT")
        expected = [2]
    given = {"store": store, "stream": "S", "to": str(tmp_path / "reports"), **selector, "rows": rows}
    counted = erase(spark, **given, dry_run=True)
    assert (counted.chosen, counted.report) == (len(expected), "")
    done = erase(spark, **given)
    assert (done.chosen, done.messages, done.not_erased) == (len(expected), 2 * len(expected), ())
    assert done.deleted > 0
    expect_erased(store, *expected)
    assert run(["erase", store, "--verify", done.report, "--signed-by", done.signed_by]) == 0
    assert json.loads(Path(done.report).read_text())["chosen_by"] == "a query of Spark"
    assert "<h1>" in Path(done.page).read_text()
    if rows is not None:
        again = erase(spark, **given).to_json()
    else:
        capsys.readouterr()
        assert run(["pipeline", "erase", store, "S", given["to"], "--subjects", "S.2.>", "--where", selector["where"],
                    "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
    assert (again["chosen"], again["report"]) == (0, "")


def test_a_running_broker_and_an_interrupted_run(spark: Any, store: str, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that a run that ended before its report is finished by the next one, whose report has all objects and
    counts all messages, or says that it does not; that the broker erases; and that conditions of a table's message ids
    need no sequences."""
    folder = tmp_path / "store"
    ids = tmp_path / "ids.json"
    ids.write_text("".join(json.dumps({"msg_id": f"id-{i:02}"}) + "\n" for i in (3, 4, 30)))
    with BrokerThread(folder, settings=SOON) as broker:
        given = {"store": store, "stream": "S", "to": str(tmp_path / "reports"), "server": broker.url}

        def interrupted(*_: Any) -> Any:
            raise OSError("interrupted")

        with pytest.raises(PipelineError, match="cannot connect"):
            erase(spark, **given | {"server": "nats://127.0.0.1:1"}, source=str(ids), format="json")
        with monkeypatch.context() as patch:
            patch.setattr("broker.erasure.carrying_out.follow", interrupted)
            with pytest.raises(PipelineError, match="interrupted: run the job again"):
                erase(spark, **given, source=str(ids), format="json")
        with pytest.raises(BadOption, match=r"unfinished erasure of \$G/S"):
            erase(spark, **{**given, "stream": "COPY"}, where="seq = 1")
        done = erase(spark, **given, where="seq = 7")
        assert (done.chosen, done.messages, done.uncounted) == (4, 8, False)
        report = json.loads(Path(done.report).read_text())
        assert len(report["erasure"].split(",")) == 2
        assert {one["stream"]: one["sequences"] for one in report["streams"]} == {"S": "3-4,7,30", "COPY": "3-4,7,30"}
        assert report["messages"] == 8
        assert files_with(folder, texts([3, 4, 7, 30])) == {}

        async def unanswered(*given: Any) -> Any:
            await request(*given[:4])
            raise OSError("interrupted")

        with monkeypatch.context() as patch:
            patch.setattr("broker.erasure.carrying_out.request", unanswered)
            with pytest.raises(PipelineError, match="interrupted: run the job again"):
                erase(spark, **given, where="seq = 9")
        again = erase(spark, **given, where="seq = 10")
        assert (again.chosen, again.messages, again.uncounted) == (2, 2, True)
        assert "messages that are not counted" in json.loads(Path(again.report).read_text())["chosen_by"]
    expect_erased(store, 3, 4, 7, 9, 10, 30)
    assert run(["erase", store, "--verify", done.report]) == 0


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({}, "say which messages"),
    ({"where": "nothing = 1"}, "nothing"),
    ({"where": "seq = 1", "to": "s3://bucket/x"}, "local directory"),
    ({"where": "seq = 1", "server": "nats://127.0.0.1:1"}, "127.0.0.1:1"),
    ({"where": "seq = 1", "stream": "T"}, "T"),
    ({"where": "seq = 1", "columns": {"id": "x"}}, "a column names messages as seq, msg_id, subject"),
]


def test_mistakes_and_two_at_once(spark: Any, store: str, tmp_path: Path) -> None:
    """Shows that a mistake is named and erases nothing; and that a run is refused while another one uses its target,
    and while a broker has the store."""
    for number, (options, error) in enumerate(MISTAKES):
        given: dict[str, Any] = {"store": store, "stream": "S", "to": str(tmp_path / f"reports-{number}"), **options}
        with pytest.raises(Exception, match=error):
            erase(spark, **given)
    expect_erased(store)
    given = {"store": store, "stream": "S", "where": "seq = 1", "to": str(tmp_path / "reports")}
    with Target(given["to"]).locked(), pytest.raises(PipelineError, match="another job"):
        erase(spark, **given)
    with BrokerThread(tmp_path / "store", settings=SOON), pytest.raises(PipelineError, match="a broker runs on this"):
        erase(spark, **given)
    expect_erased(store)
