"""/jsz of very many streams and consumers is made in steps, between which the loop turns."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest

from broker.jetstream import overview
from broker.monitor.jsz import jsz, jsz_in_steps
from broker.monitor.options import JszOptions, from_json
from broker.monitor.views import JetStreamAccount, JetStreamView
from tests.jetstream.in_process import Inside
from tests.monitor.views import Server


def walked(steps: Generator[None, None, dict[str, Any]]) -> Iterator[dict[str, Any] | None]:
    """Yield None at each step, and finally the page."""
    page = yield from steps
    yield page


@pytest.mark.parametrize(("streams", "consumers"), [(1000, 1), (3, 700)])
def test_a_step_makes_a_few_rows(streams: int, consumers: int) -> None:
    """A stream may have many consumers, or there are many streams; the page equals the one that is made at once."""
    made = 0

    def rows(kind: str, count: int) -> Iterator[dict[str, Any]]:
        nonlocal made
        for at in range(count):
            made += 1
            yield {"name": f"{kind}{at}", "config": {"x": at}}

    def list_streams(with_consumers: bool) -> Iterator[dict[str, Any]]:
        for row in rows("S", streams):
            if with_consumers:
                row |= {"consumer_detail": rows("C", consumers), "direct_consumer_detail": rows("D", 0)}
            yield row

    server = Server()
    account = JetStreamAccount("$G", list_streams=list_streams)
    server.jetstream = JetStreamView({"max_memory": 1, "max_storage": 2}, accounts=[account])
    options: JszOptions = from_json(JszOptions, {"accounts": True, "streams": True, "consumer": True})
    most = before = 0
    walk: list[dict[str, Any] | None] = []
    for one in walked(jsz_in_steps(server.views, options)):
        most, before = max(most, made - before), made
        walk.append(one)
    page = walk[-1]
    assert made == streams + streams * consumers
    assert most <= 65
    assert page == jsz(server.views, options)
    assert page is not None
    shown = page["account_details"][0]["stream_detail"]
    assert [len(stream["consumer_detail"]) for stream in shown] == [consumers] * streams
    assert "direct_consumer_detail" not in shown[0]


async def test_objects_deleted_meanwhile_are_left_out() -> None:
    """A stream and a consumer are deleted after the first stream was shown."""
    async with Inside() as broker:
        for name in ("A", "B", "C"):
            await broker.ok(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})
            for consumer in ("X", "Y"):
                config = {"durable_name": consumer, "ack_policy": "explicit"}
                await broker.ok(f"CONSUMER.DURABLE.CREATE.{name}.{consumer}", {"stream_name": name, "config": config})
        account = broker.js.accounts["$G"]
        streams = overview.streams(account, {}, consumers=True)
        first = next(streams)
        infos = first["consumer_detail"]
        assert next(infos)["name"] == "X"
        await broker.ok("CONSUMER.DELETE.A.Y")
        await broker.ok("STREAM.DELETE.B")
        assert [*infos] == []
        assert [row["name"] for row in streams] == ["C"]
