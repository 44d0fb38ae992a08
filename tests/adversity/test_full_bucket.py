"""A bucket whose quota is used up: as on a full disk (``full_store``), by a reserve of objects that are deleted.

The server has scripted answers, those of MinIO, and knows at once what was deleted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adversity.full_store import CONFIG, check_full_store
from tests.harness import BrokerProcess
from tests.storage.objectstore.fake_s3 import FakeS3, Request, fake_s3

pytestmark = pytest.mark.shows("store.full_disk")


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
    """See ``full_store``. ``tests/storage/objectstore/test_s3.py`` has the errors of other servers."""
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
