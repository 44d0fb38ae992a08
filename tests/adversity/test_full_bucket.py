"""A bucket whose quota is used up: the checks of ``full_store``, with a reserve of objects that are deleted.

A server with scripted answers knows at once what was put and deleted. MinIO learns of it from its scanner, ten seconds
late, so its test is marked *soak*.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.adversity.full_store import CONFIG, check_full_store
from tests.harness import BrokerProcess
from tests.real.s3 import S3Server, own_minio
from tests.storage.objectstore.fake_s3 import FakeS3, Request, fake_s3

pytestmark = pytest.mark.shows("store.full_disk")

QUOTA = 16 << 20


class Quota:
    """A quota of the bucket in ``fake``: puts beyond it are answered with ``answer``."""

    def __init__(self, fake: FakeS3, answer: tuple[int, str, str]) -> None:
        self._fake, self._answer = fake, answer
        self._bytes: int | None = None
        fake.script = self._decide

    def use_up(self) -> None:
        self._bytes = self._used()

    def lift(self) -> None:
        self._bytes = None

    def _used(self) -> int:
        return sum(map(len, self._fake.objects.values()))

    def _decide(self, request: Request) -> object:
        if request.method != "PUT" or self._bytes is None or self._used() + len(request.body) <= self._bytes:
            return None
        return self._answer


async def test_a_bucket_with_a_quota(tmp_path: Path) -> None:
    """The broker behaves as in ``full_store``. ``tests/storage/objectstore/test_s3.py`` has the errors of other
    servers."""
    config = tmp_path / "conf"
    config.write_text(CONFIG)
    async with fake_s3() as fake:
        quota = Quota(fake, (400, "XMinioAdminBucketQuotaExceeded", "Bucket quota exceeded"))
        environ = {"AWS_ENDPOINT_URL": fake.endpoint, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
                   "AWS_REGION": "us-east-1", "JETBLOCK_SERVER_NAME": "one"}
        async with BrokerProcess("--store", "s3://bucket/prefix", "-c", str(config), environ=environ) as broker:
            def use_up() -> None:
                assert [key for key in fake.objects if key.startswith("prefix/.reserve/")]
                quota.use_up()

            await check_full_store(broker, use_up, quota.lift)
        assert len([key for key in fake.objects if key.startswith("prefix/.reserve/")]) == 4


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_the_quota_of_minio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker behaves alike on the real MinIO, whose scanner finds that the bucket exceeds the quota, and later that
    it does not."""
    monkeypatch.setenv("MINIO_SCANNER_SPEED", "fastest")
    monkeypatch.setenv("MINIO_SCANNER_CYCLE", "1s")
    config = tmp_path / "conf"
    config.write_text(CONFIG)
    (tmp_path / "minio").mkdir()
    with own_minio(tmp_path / "minio") as minio:
        environ = {**minio.env, "JETBLOCK_SERVER_NAME": "one", "JETBLOCK_RESERVE": "4mb"}
        async with BrokerProcess("--store", f"s3://{minio.bucket}/prefix", "-c", str(config),
                                 environ=environ) as broker:
            def use_up() -> None:
                # The bucket has the reserve and an object of 1 MiB. All that is put before the scanner detects the
                # quota fits into the reserve.
                set_quota(minio, QUOTA)
                assert put(minio, "filler", QUOTA - (5 << 20) - (512 << 10)) == 200
                until = time.monotonic() + 60
                while put(minio, "probe", 512 << 10) != 400:
                    assert time.monotonic() < until, "the quota has no effect"
                    time.sleep(0.2)

            await check_full_store(broker, use_up, lambda: set_quota(minio, 1 << 30))


def set_quota(minio: S3Server, size: int) -> None:
    """Set the hard quota of the bucket by MinIO's administrative interface."""
    send(minio, f"/minio/admin/v3/set-bucket-quota?bucket={minio.bucket}",
         json.dumps({"quota": size, "size": size, "quotatype": "hard"}).encode())


def put(minio: S3Server, name: str, size: int) -> int:
    return send(minio, f"/{minio.bucket}/other/{name}", bytes(size))


def send(minio: S3Server, path: str, body: bytes) -> int:
    signed = AWSRequest("PUT", minio.endpoint + path, data=body)
    S3SigV4Auth(Credentials(minio.env["AWS_ACCESS_KEY_ID"], minio.env["AWS_SECRET_ACCESS_KEY"]), "s3",
                minio.env["AWS_REGION"]).add_auth(signed)
    try:
        with urllib.request.urlopen(urllib.request.Request(signed.url, body, dict(signed.headers),
                                                           method="PUT")) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError:  # the answer came before all of the body was sent
        return 0
