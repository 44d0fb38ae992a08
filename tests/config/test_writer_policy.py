"""The shipped policy of programs that stage messages, on a real MinIO: it is enough for that, and for nothing else."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import nats

from broker.storage.format.header import Position
from broker.storage.objectstore.base import ObjectInfo
from broker.storage.paths import ShardPaths, StreamPaths
from broker.storage.read.lookup import look_up
from broker.storage.read.steps import run_blocking
from broker.storage.staging.writer import RunWriter, Version
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server, session_of

POLICY = Path(__file__).resolve().parents[2] / "config" / "minio-policy-writer.json"
SHARD = ShardPaths(0)


class Keyholder:
    """A program with the credentials of a session: the operations of a writer, without a broker's code for S3."""

    def __init__(self, server: S3Server, prefix: str, environ: dict[str, str]) -> None:
        from botocore.config import Config
        from botocore.session import Session

        session = Session()
        session.set_credentials(environ["AWS_ACCESS_KEY_ID"], environ["AWS_SECRET_ACCESS_KEY"],
                                environ["AWS_SESSION_TOKEN"])
        self._client: Any = session.create_client(
            "s3", region_name=environ["AWS_REGION"], endpoint_url=server.endpoint,
            config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 3}))
        self._bucket, self._prefix = server.bucket, f"{prefix}/"

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self._bucket, Key=self._prefix + key, Body=data, IfNoneMatch="*")

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        until = "" if end is None else end - 1
        try:
            found = self._client.get_object(Bucket=self._bucket, Key=self._prefix + key, Range=f"bytes={start}-{until}")
        except self._client.exceptions.NoSuchKey:
            return None
        return bytes(found["Body"].read())

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        found = self._client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix + prefix,
                                             StartAfter=self._prefix + after)
        return [ObjectInfo(one["Key"].removeprefix(self._prefix), one["Size"]) for one in found.get("Contents", ())]

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=self._prefix + key)

    def denied(self, call: Any, *args: Any) -> bool:
        """Return whether the server denies the call."""
        try:
            call(*args)
        except self._client.exceptions.ClientError as error:
            return bool(error.response["Error"]["Code"] == "AccessDenied")
        return False


def policies(bucket: str, prefix: str) -> tuple[str, str]:
    """Return the policies of an executor and of the driver. An executor's lacks the last statement."""
    text = re.sub(r":::jetblock(/streams/)?", lambda found: f":::{bucket}" + (f"/{prefix}/" if found[1] else ""),
                  POLICY.read_text())
    driver = json.loads(text)
    executor = {**driver, "Statement": [one for one in driver["Statement"] if one["Sid"] != "RequestAdoption"]}
    return json.dumps(executor), json.dumps(driver)


def test_the_policy_names_the_keys_of_one_stream() -> None:
    """Shows that the example is for stream ORDERS of the default account, in s3://jetblock/streams."""
    text = POLICY.read_text()
    assert StreamPaths("$G", "ORDERS", 1).prefix.split("0000")[0] in text
    assert SHARD.requests.replace("/0/", "/*/") in text


async def test_executors_stage_and_the_driver_requests(minio: S3Server) -> None:
    """Shows a write with the two keys, from the look-up of the stream to the messages. Everything else is denied:
    the log, checkpoints, an owner's runs, other streams, deletes, and, for an executor, requests."""
    url = minio.new_url()
    prefix = url.rsplit("/", 1)[1]
    executor, driver = (Keyholder(minio, prefix, session_of(minio, policy))
                        for policy in policies(minio.bucket, prefix))
    async with BrokerProcess("--store", url, environ=minio.env) as broker:
        client = await nats.connect(broker.url)
        js = client.jetstream()
        for name in ("ORDERS", "OTHER"):
            await js.add_stream(name=name, subjects=[f"{name.lower()}.>"])
        streams = {}
        for name in ("ORDERS", "OTHER"):
            found = run_blocking(look_up(SHARD, "$G", name), driver.get, driver.list)
            assert found is not None
            streams[name] = found.stream_id
        writer = RunWriter("$G", "ORDERS", streams["ORDERS"], now_ns=time.time_ns())
        for n in range(10):
            writer.add(b"orders.eu", b"%d" % n)
        for run in writer.finish():
            executor.put(run.key, b"".join(run.data))
        asked = writer.request(Version("job", 1), 0)
        request = b"".join(asked.data)
        assert executor.denied(executor.put, asked.key, request)
        own = StreamPaths("$G", "ORDERS", streams["ORDERS"])
        for holder in (executor, driver):
            for key in (SHARD.log(Position(1, 9999)), SHARD.checkpoint(Position(9, 9)), SHARD.pages(Position(9, 9)),
                        SHARD.epoch(99), SHARD.run(Position(1, 1), 1), own.run(Position(1, 1), 1), "v1/format",
                        StreamPaths("$G", "OTHER", streams["OTHER"]).run(Position(0, 1), 1)):
                assert holder.denied(holder.put, key, b"x"), key
            assert holder.denied(holder.delete, writer_key := own.run(writer.entries[0].position,
                                                                      writer.entries[0].run_id))
            assert holder.get(writer_key)
        driver.put(asked.key, request)
        answer = json.loads((await client.request(
            "$JS.API.JETBLOCK.ADOPT.ORDERS", json.dumps({"writer": "job", "version": 1}).encode(), timeout=30)).data)
        assert answer["messages"] == 10, answer
        assert (await js.get_msg("ORDERS", 10)).data == b"9"
        await client.close()
