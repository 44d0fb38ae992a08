"""Writes with credentials that may not put: the error names the key and the right that is missing."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import nats
import pyarrow as pa
import pytest

import jetblock
from broker.pipeline.errors import PipelineError
from broker.pipeline.store.objects import S3ObjectClient
from broker.pipeline.write.columns import Columns
from broker.pipeline.write.commit import commit, plan
from broker.pipeline.write.options import WriteOptions
from broker.pipeline.write.stage import Result, stage_batches
from tests.config.test_writer_policy import policies
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server, session_of


def client_of(server: S3Server, url: str, policy: str) -> S3ObjectClient:
    """Return a client whose credentials have the rights of ``policy`` only."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in session_of(server, policy).items():
            patch.setenv(name, value)
        return S3ObjectClient(server.bucket, url.rsplit("/", 1)[1])


def reader_of(policy: str) -> str:
    """Return a policy without its rights to put."""
    given = json.loads(policy)
    return json.dumps({**given, "Statement": [one for one in given["Statement"] if one["Action"] != ["s3:PutObject"]]})


async def test_each_put_that_is_denied(minio: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader stages nothing, and an executor requests nothing. Neither waits, and nothing is stored. With the right
    to request, the same results join."""
    url = minio.new_url()
    executor, driver = policies(minio.bucket, url.rsplit("/", 1)[1])
    options = WriteOptions.parse({"store": url, "stream": "ORDERS", "waitForAdoption": "30s"})
    columns = Columns(0, 1, None, None, None, None)
    batch = pa.record_batch([pa.array(["orders.eu"] * 10), pa.array([b"x"] * 10)], names=["subject", "data"])
    async with BrokerProcess("-js", "--store", url, environ={**minio.env, "JETBLOCK_INBOX_INTERVAL": "1s"}) as broker:
        nc = await nats.connect(broker.url)
        await nc.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
        await nc.close()

        def staged(rights: str, hand_over_bytes: int) -> tuple[Any, Any, Result]:
            objects = client_of(minio, url, rights)
            target = plan(objects, options)
            return objects, target, stage_batches(objects, target, columns, 0, [batch], hand_over_bytes=hand_over_bytes)

        def refused(objects: Any, target: Any, result: Result) -> str:
            began = time.monotonic()
            with pytest.raises(PipelineError) as caught:
                commit(objects, options, target, columns, None, [result])
            assert time.monotonic() - began < 25
            assert "\n" not in str(caught.value)
            return str(caught.value)

        def attempts() -> None:
            for hand_over_bytes in (0, 1 << 20):
                text = refused(*staged(reader_of(executor), hand_over_bytes))
                assert "/runs/" in text
                assert "AccessDenied (403): allow s3:PutObject on such keys" in text
            objects, target, result = staged(executor, 0)
            assert result.refused is None
            text = refused(objects, target, result)
            assert "/inbox/" in text
            assert "AccessDenied (403): allow s3:PutObject on such keys" in text
            for name, value in minio.env.items():
                monkeypatch.setenv(name, value)
            assert jetblock.scan(url, "ORDERS").read_all().num_rows == 0
            assert commit(client_of(minio, url, driver), options, target, columns, None, [result]).messages == 10

        await asyncio.to_thread(attempts)
        await broker.stop()
