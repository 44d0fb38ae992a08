"""Reads, writes and jobs with credentials that lack a right: one line names the key and the right, and nothing is
written."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nats
import pytest

from broker.pipeline.errors import PipelineError
from broker.pipeline.jobs.failures import plain_failures
from broker.pipeline.store import objects as objects_module
from broker.pipeline.store.objects import S3ObjectClient
from jetblock.spark import audit, export, import_messages
from tests.harness import BrokerProcess
from tests.pipeline.environment import environment
from tests.real.s3 import S3Server, session_of


def policy(server: S3Server, prefix: str, *, but: str | None) -> str:
    """Return the policy of a reader: it may list, and get all objects ``but`` one; None: it may get no object."""
    arn = f"arn:aws:s3:::{server.bucket}"
    may = [{"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": [arn]}]
    if but is not None:
        may.append({"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"{arn}/{prefix}/*"]})
    if but:
        may.append({"Effect": "Deny", "Action": ["s3:GetObject"], "Resource": [f"{arn}/{prefix}/{but}"]})
    return json.dumps({"Version": "2012-10-17", "Statement": may})


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_each_right_that_is_missing(spark: Any, minio: S3Server, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows keys that may get nothing, that may get all but an object with messages, which a task finds, and that may
    put nothing."""
    url = minio.new_url()
    prefix = url.rsplit("/", 1)[1]
    async with BrokerProcess("-js", "--store", url, environ=minio.env) as broker:
        nc = await nats.connect(broker.url)
        await nc.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
        await nc.jetstream().publish("orders.eu", random.Random(1).randbytes(100_000))
        await nc.close()
        await broker.stop()  # its checkpoint has the block of the message
        await broker.start()
        with environment(spark, {}), monkeypatch.context() as patch:
            for name, value in minio.env.items():
                patch.setenv(name, value)
            owner = S3ObjectClient(minio.bucket, prefix)
        before = [one.key for one in owner.list("v1/streams/")], [one.key for one in owner.list("v1/shards/0/inbox/")]
        large = max(owner.list("v1/shards/0/log/"), key=lambda one: one.size).key
        rows = tmp_path / "rows"
        rows.mkdir()
        (rows / "rows.json").write_text('{"subject": "orders.eu", "data": "y"}\n')
        frame = spark.range(10).selectExpr("'orders.eu' subject", "cast(id as string) data")
        of = {"store": url, "stream": "ORDERS"}

        def exports(number: int) -> None:
            export(spark, **of, to=str(tmp_path / f"export-{number}"))

        def audits(number: int) -> None:
            audit(spark, **of, to=str(tmp_path / f"audit-{number}"))

        def imports(number: int) -> None:
            import_messages(spark, **of, source=str(rows), state=str(tmp_path / f"state-{number}"), format="json",
                            schema="subject STRING, data STRING", nats=broker.url)

        @plain_failures()
        def saves(_: int) -> None:
            frame.write.format("jetblock").mode("append").options(**of, nats=broker.url).save()

        @plain_failures()
        def streams(number: int) -> None:
            lines = spark.readStream.schema("subject STRING, data STRING").json(str(rows))
            lines.writeStream.format("jetblock").options(
                **of, nats=broker.url, checkpointLocation=str(tmp_path / f"query-{number}"),
            ).trigger(availableNow=True).start().awaitTermination()

        def expect(but: str | None, right: str, *calls: Callable[[int], None]) -> None:
            environ = session_of(minio, policy(minio, prefix, but=but))
            with monkeypatch.context() as patch, environment(spark, environ):
                for name, value in environ.items():
                    patch.setenv(name, value)
                patch.setattr(objects_module, "_opened", {})
                for number, call in enumerate(calls, len(texts)):
                    with pytest.raises(PipelineError) as caught:
                        call(number)
                    text = str(caught.value)
                    texts.append(text)
                    assert "\n" not in text
                    assert f"AccessDenied (403): allow {right} on " in text, text
                    assert url in text

        texts: list[str] = []

        def attempts() -> None:
            expect(None, "s3:GetObject", exports, audits, imports, saves, streams)
            expect(large, "s3:GetObject", exports, audits)
            assert all(large in text for text in texts[-2:])
            expect("", "s3:PutObject", imports, saves, streams)
            assert [path.name for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".html")] == []

        attempts()
        assert before == ([one.key for one in owner.list("v1/streams/")],
                          [one.key for one in owner.list("v1/shards/0/inbox/")])
        nc = await nats.connect(broker.url)
        assert (await nc.jetstream().stream_info("ORDERS")).state.messages == 1
        await nc.close()
        await broker.stop()
