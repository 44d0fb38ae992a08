"""The recipes of docs/tour/recipes_spark.py, beside what nats-py reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js.api import KeyValueConfig

from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.stores import make_store
from tests.tour import tour


@pytest.mark.parametrize("kind", ["directory", pytest.param("minio", marks=pytest.mark.soak)])
async def test_totals_of_orders_by_a_bucket(spark: Any, kind: str, tmp_path: Path, request: pytest.FixtureRequest
                                            ) -> None:
    """A bucket as a table has the keys and values that nats-py reads. Orders joined with it are published back, once
    for a version, and nats-py reads the totals."""
    recipes = tour("recipes_spark")
    store = make_store(kind, tmp_path, request)
    async with BrokerProcess("-js", "--store", store.url, environ=store.environ) as broker:
        nc = await nats.connect(broker.url)
        js = nc.jetstream()
        bucket = await js.create_key_value(KeyValueConfig(bucket="customers", history=3))
        for name, country in (("ann", "us"), ("bob", "de"), ("cy", "fr"), ("ann", "de"), ("dee", "fr"), ("eve", "us")):
            await bucket.put(name, country.encode())
        await bucket.delete("cy")
        await bucket.purge("dee")
        await js.add_stream(name="ORDERS", subjects=["orders.>"])
        await js.add_stream(name="TOTALS", subjects=["totals.>"])
        for name, amount in (("ann", 5), ("bob", 7), ("cy", 1000), ("eve", 30), ("ann", 100)):
            await js.publish(f"orders.{name}", b"%d" % amount)
        wanted = {}
        for key in await bucket.keys():
            entry = await bucket.get(key)
            wanted[key] = (entry.value.decode(), entry.revision)
        with environment(spark, store.environ):
            found = {row.key: (row.value, row.revision)
                     for row in recipes.bucket_table(spark, store.url, "customers").collect()}
            for _ in range(2):
                recipes.publish_totals(spark, store.url, broker.url, 1)
        assert found == wanted
        assert sorted(found) == ["ann", "bob", "eve"]
        assert (await js.stream_info("TOTALS")).state.messages == 2
        for seq, subject, data in ((1, "totals.de", b"112"), (2, "totals.us", b"30")):
            message = await js.get_msg("TOTALS", seq)
            assert (message.subject, message.data) == (subject, data)
        await nc.close()
        await broker.stop()


async def test_streams_copied_and_joined(spark: Any, tmp_path: Path) -> None:
    """A stream is copied to another one with its headers and times, and two streams are joined into a third. A second
    query with the same checkpoint adds what is new; nats-py reads each message once."""
    recipes = tour("recipes_spark")
    url = f"file://{tmp_path}/store"
    async with BrokerProcess("-js", "--store", url) as broker:
        nc = await nats.connect(broker.url)
        js = nc.jetstream()
        for name in ("ORDERS", "PAYMENTS", "PAID"):
            await js.add_stream(name=name, subjects=[f"{name.lower()}.>"])
        await js.add_stream(name="ARCHIVE", subjects=["archive.>"])

        async def published(*messages: tuple[str, bytes]) -> None:
            for subject, data in messages:
                await js.publish(subject, data, headers={"Trace-Id": subject})
            recipes.copy_stream(spark, url, broker.url, f"{tmp_path}/copy").awaitTermination()
            recipes.publish_paid(spark, url, broker.url, f"{tmp_path}/join").awaitTermination()

        async def messages_of(stream: str) -> list[Any]:
            last = (await js.stream_info(stream)).state.last_seq
            return [await js.get_msg(stream, seq) for seq in range(1, last + 1)]

        await published(("orders.1", b"book"), ("orders.2", b"pen"), ("payments.2", b"ann"))
        assert [(one.subject, one.data) for one in await messages_of("PAID")] == [("paid.2", b"pen paid by ann")]
        await published(("payments.1", b"bob"), ("payments.3", b"cy"), ("orders.3", b"cup"))
        assert sorted((one.subject, one.data) for one in await messages_of("PAID")) == [
            ("paid.1", b"book paid by bob"), ("paid.2", b"pen paid by ann"), ("paid.3", b"cup paid by cy")]
        orders, copies = await messages_of("ORDERS"), await messages_of("ARCHIVE")
        assert [(one.subject, one.data, one.headers) for one in copies] == [
            (f"archive.{one.subject}", one.data, one.headers) for one in orders]
        await nc.close()
        await broker.stop()
