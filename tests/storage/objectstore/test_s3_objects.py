"""Requests that are composed and signed without botocore: they are the same as botocore's, or botocore sends them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import quote

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import ClientError

from broker.storage.objectstore.s3 import S3Store
from broker.storage.objectstore.s3_objects import BucketObjects, Form
from tests.storage.objectstore.fake_s3 import Answer, FakeS3, Request

NOON_S = 1_800_000_000
KEY = ReadOnlyCredentials("AKIDEXAMPLE", "secret/+=", None, None)
TEMPORARY = ReadOnlyCredentials("ASIAEXAMPLE", "other", "token//+==", None)


@pytest.mark.parametrize("credentials", [KEY, TEMPORARY])
@pytest.mark.parametrize(("address", "key"), [
    ("http://127.0.0.1:9000/bucket/", "shards/0/log/00001/000002"),
    ("https://bucket.s3.eu-central-1.amazonaws.com/", "pre/fix/a b+c~d&e=f%20?#:é/…"),
    ("https://s3.example:443/bucket/", "k"), ("http://[::1]:80/bucket/", "k"), ("http://HOST.example/bucket/", "k"),
])
def test_signatures_are_botocores(address: str, key: str, credentials: ReadOnlyCredentials) -> None:
    """The signature of each method, key, address and kind of credentials is the one that botocore computes."""
    for method, headers, payload in (("GET", {"range": "bytes=0-99"}, sha256(b"").hexdigest()),
                                     ("PUT", {"if-none-match": "*"}, "UNSIGNED-PAYLOAD")):
        url, signed = Form(address, "eu-central-1").sign(method, key, headers, payload, credentials, NOON_S)
        request = AWSRequest(method, address + quote(key, safe="/-._~"), headers=dict(headers))
        request.context["timestamp"] = signed["x-amz-date"]
        request.headers["X-Amz-Date"] = signed["x-amz-date"]
        if credentials.token:
            request.headers["X-Amz-Security-Token"] = credentials.token
        request.headers["X-Amz-Content-SHA256"] = payload
        signer = S3SigV4Auth(credentials, "s3", "eu-central-1")
        text = signer.string_to_sign(request, signer.canonical_request(request))
        assert signed["authorization"].endswith("Signature=" + signer.signature(text, request))
        assert f"Credential={credentials.access_key}/20270115/eu-central-1/s3/aws4_request" in signed["authorization"]
        assert url == request.url


def test_the_signing_key_follows_day_and_secret() -> None:
    """A new day or another secret changes the signing key of one form just as that of a fresh form."""
    form = Form("http://host/bucket/", "r")
    for at_s, credentials in ((NOON_S, KEY), (NOON_S + 86_400, KEY), (NOON_S + 86_400, TEMPORARY), (NOON_S, KEY)):
        arguments: Any = ("GET", "k", {}, "UNSIGNED-PAYLOAD", credentials, at_s)
        assert form.sign(*arguments) == Form("http://host/bucket/", "r").sign(*arguments)


@pytest.mark.parametrize(("bucket", "endpoint", "config", "address"), [
    ("bucket", None, {}, "https://bucket.s3.eu-central-1.amazonaws.com/"),
    ("dotted.bucket", None, {}, "https://s3.eu-central-1.amazonaws.com/dotted.bucket/"),
    ("bucket", "http://127.0.0.1:9000", {"s3": {"addressing_style": "path"}}, "http://127.0.0.1:9000/bucket/"),
    ("bucket", "https://proxy.example/s3/", {"s3": {"addressing_style": "path"}}, "https://proxy.example/s3/bucket/"),
    ("bucket", None, {"use_dualstack_endpoint": True}, "https://bucket.s3.dualstack.eu-central-1.amazonaws.com/"),
])
@pytest.mark.parametrize("operation", ["get", "put"])
async def test_the_second_request_is_composed_here(bucket: str, endpoint: str | None, config: dict[str, Any],
                                                   address: str, operation: str) -> None:
    """The address and the region come from botocore's first request, whatever decides about them. botocore has no part
    in the second one, nor in one of the other operation."""
    session = Session()
    async with made_client(endpoint, **config) as client:
        objects = BucketObjects(client, session, bucket, key, signs_payloads=False)
        with pytest.raises(NotSentError):
            await (objects.get("a/b~c d", "bytes=0-") if operation == "get" else objects.put("a/b~c d", b""))
        for call in (objects.get("é/k", "bytes=0-"), objects.put("é/k", b"")):
            with pytest.raises(ConnectionError):
                await call
    assert session.urls == [f"GET {address}%C3%A9/k", f"PUT {address}%C3%A9/k"]


async def test_payloads_that_must_be_signed() -> None:
    """Every put whose payload is to be signed is botocore's; the second get is not."""
    session = Session()
    async with made_client() as client:
        objects = BucketObjects(client, session, "bucket", key, signs_payloads=True)
        for call in (objects.put("k", b""), objects.put("k", b""), objects.put("k", b"")):
            with pytest.raises(NotSentError):
                await call
        with pytest.raises(ConnectionError):
            await objects.get("k", "bytes=0-")
    assert [url.split()[0] for url in session.urls] == ["GET"]


class Session:
    """An HTTP session that sends nothing, and remembers what it should have sent."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def send(self, request: Any) -> Any:
        self.urls.append(f"{request.method} {request.url}")
        assert "/eu-central-1/s3/aws4_request" in request.headers["authorization"]
        raise ConnectionError


@asynccontextmanager
async def made_client(endpoint: str | None = None, **config: Any) -> AsyncIterator[Any]:
    """Make a client of botocore that sends nothing."""
    async with AioSession().create_client("s3", region_name="eu-central-1", endpoint_url=endpoint,
                                          aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="s",
                                          config=AioConfig(signature_version="s3v4", **config)) as client:
        client.meta.events.register("before-send.s3", fail)
        yield client


async def key() -> ReadOnlyCredentials:
    return KEY


class NotSentError(Exception):
    """Raised instead of sending a request."""


def fail(**_: object) -> None:
    raise NotSentError


@pytest.mark.parametrize(("url", "version", "name"), [
    ("https://bucket--x--s3.s3express.example/k", "v4-s3express", "s3express"),
    ("https://arn.accesspoint.s3-global.amazonaws.com/k", "s3v4a", "s3"), ("https://host/bucket/other", "s3v4", "s3"),
    ("https://host/bucket/k?versionId=1", "s3v4", "s3"), ("https://lambda.example/k", "s3v4", "s3-object-lambda")])
def test_other_signatures_are_left_to_botocore(url: str, version: str, name: str) -> None:
    """There is no form for directory buckets, several regions, other services, and requests for another key."""
    assert Form.of_signed("https://host/bucket/k", "k", "s3v4", "s3", "r") is not None
    assert Form.of_signed(url, "k", version, name, "r") is None


@pytest.fixture
async def s3(fake: FakeS3) -> AsyncIterator[S3Store]:
    store = S3Store("bucket", "pre/fix")
    yield store
    await store.close()


async def test_one_request_each_and_the_same_as_botocores(s3: S3Store, fake: FakeS3,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A put and a get are one request each. botocore's have the same method, key, body and meaning."""
    await s3.put("first", [b""])
    fake.requests.clear()
    await s3.put("k/é 1", [b"body"])
    assert await s3.get("k/é 1", 1, 3) == b"od"
    ours = list(fake.requests)
    fake.objects.clear()
    fake.requests.clear()
    monkeypatch.setattr(Form, "of_signed", classmethod(lambda cls, *_: None))
    by_botocore = S3Store("bucket", "pre/fix")
    await by_botocore.put("k/é 1", [b"body"])
    assert await by_botocore.get("k/é 1", 1, 3) == b"od"
    await by_botocore.close()
    assert len(ours) == len(fake.requests) == 2
    for mine, theirs in zip(ours, fake.requests, strict=True):
        assert (mine.method, mine.key, mine.body) == (theirs.method, theirs.key, theirs.body)
        for name in ("host", "range", "if-none-match", "x-amz-security-token", "content-length",
                     "accept-encoding"):
            assert mine.headers.get(name) == theirs.headers.get(name), name


async def test_a_bucket_in_another_region(s3: S3Store, fake: FakeS3) -> None:
    """The server names the bucket's region in an error: botocore repeats the request there, and later requests are
    composed here for that region."""
    def change(request: Request, answer: Answer) -> Answer:
        if "/eu-west-9/" in request.headers["authorization"]:
            return answer
        return 400, [("content-type", "application/xml")], (
            b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-9</Region></Error>")

    fake.honours_if_none_match = False
    fake.change = change
    for key in "abc":
        await s3.put(key, [b"body"])
        assert await s3.get(key) == b"body"
    regions = [request.headers["authorization"].split("/")[2] for request in fake.requests]
    assert regions == ["us-east-1", *6 * ["eu-west-9"]]


async def test_errors_have_botocores_details(fake: FakeS3) -> None:
    """An error response is a ClientError with the code, the message, the status and the headers."""
    store = S3Store("bucket")
    await store.put("k", [b"x"])
    fake.script = lambda request: (418, "Teapot", "short and stout")
    with pytest.raises(ClientError) as caught:
        await store._objects.get("k", "bytes=0-")
    response: Any = caught.value.response
    assert response["Error"]["Code"] == "Teapot"
    assert response["Error"]["Message"] == "short and stout"
    assert response["ResponseMetadata"]["HTTPStatusCode"] == 418
    assert response["ResponseMetadata"]["HTTPHeaders"]["date"] == fake.date
    await store.close()
