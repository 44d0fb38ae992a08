"""S3Store against a scripted server: the result of each response, and of none, for the caller."""

from __future__ import annotations

import asyncio
import json
import random
import traceback
from collections.abc import AsyncIterator

import pytest

from broker.base.clock import SystemClock
from broker.storage.objectstore import (
    NotFound,
    PreconditionFailed,
    StoreError,
    StoreFull,
    StoreRefused,
    Transient,
    open_store,
)
from broker.storage.objectstore.retrying import RetryingStore
from broker.storage.objectstore.s3 import S3Store
from tests.manual_clock import ManualClock
from tests.storage.objectstore.fake_s3 import FakeS3


@pytest.fixture
async def s3(fake: FakeS3) -> AsyncIterator[S3Store]:
    store = S3Store("bucket", "pre/fix")
    yield store
    await store.close()


ANSWERS = [
    (412, "PreconditionFailed", PreconditionFailed, ""),
    (409, "ConditionalRequestConflict", Transient, "ConditionalRequestConflict"),
    (409, "OperationAborted", Transient, "OperationAborted"),
    (503, "SlowDown", Transient, "SlowDown"),
    (503, "ServiceUnavailable", Transient, "ServiceUnavailable"),
    (500, "InternalError", Transient, "InternalError"),
    (502, "BadGateway", Transient, "502"),
    (429, "TooManyRequests", Transient, "429"),
    (400, "RequestTimeout", Transient, "RequestTimeout"),
    (404, "NoSuchKey", NotFound, "does not exist"),
    (404, "NoSuchBucket", StoreRefused, "create the bucket"),
    (403, "AccessDenied", StoreRefused, "s3:PutObject"),
    (403, "InvalidAccessKeyId", StoreRefused, "AWS_ACCESS_KEY_ID"),
    (403, "SignatureDoesNotMatch", StoreRefused, "AWS_SECRET_ACCESS_KEY"),
    (403, "RequestTimeTooSkewed", StoreRefused, "clock"),
    (403, "SomethingNew", StoreRefused, "AWS_ACCESS_KEY_ID"),
    (400, "ExpiredToken", StoreRefused, "renew"),
    (507, "XMinioStorageFull", StoreFull, "full"),
    (507, "InsufficientStorage", StoreFull, "full"),
    (507, "SomethingNew", StoreFull, "full"),
    (403, "QuotaExceeded", StoreFull, "quota"),
    (400, "XMinioAdminBucketQuotaExceeded", StoreFull, "quota"),
    (501, "NotImplemented", StoreRefused, "cannot serve"),
    (405, "MethodNotAllowed", StoreRefused, "AWS_ENDPOINT_URL"),
    (400, "InvalidRequest", StoreRefused, "AWS_ENDPOINT_URL"),
]


@pytest.mark.parametrize(("status", "code", "kind", "remedy"), ANSWERS)
async def test_the_error_of_each_answer(s3: S3Store, fake: FakeS3, status: int, code: str, kind: type[StoreError],
                                    remedy: str) -> None:
    """Every error answer becomes the class its caller acts on, names store, key and remedy, and is requested once."""
    fake.script = lambda request: (status, code)
    with pytest.raises(StoreError) as caught:
        await s3.put("a/key", [b"x"])
    assert type(caught.value) is kind
    assert "s3://bucket/pre/fix" in str(caught.value)
    assert fake.endpoint in str(caught.value)
    assert "a/key" in str(caught.value)
    assert remedy in str(caught.value)
    assert len(fake.requests) == 1, "the retrying wrapper owns retries, not the client"


@pytest.mark.parametrize("operation", ["put", "get", "list", "delete"])
@pytest.mark.parametrize("verdict", ["cut", "hang", "served, then cut"])
async def test_no_answer_is_transient(s3: S3Store, fake: FakeS3, operation: str, verdict: str) -> None:
    """A cut connection and silence are Transient, within the time-out, and the store works again afterwards."""
    await s3.put("there", [b"data"])
    store = S3Store("bucket", "pre/fix", put_timeout_ns=400_000_000, get_timeout_ns=400_000_000)
    fake.script = lambda request: verdict
    calls = {"put": lambda: store.put("k", [b"x"]), "get": lambda: store.get("there"), "list": lambda: store.list(""),
             "delete": lambda: store.delete("k")}
    async with asyncio.timeout(60):
        with pytest.raises(Transient, match="s3://bucket"):
            await calls[operation]()
        fake.script = lambda request: None
        while True:  # a busy machine may need more than one time-out
            try:
                assert await store.get("there") == b"data"
                break
            except Transient:
                pass
    await store.close()


@pytest.mark.parametrize("operation", ["put", "get", "list", "delete"])
async def test_a_server_that_vanishes_costs_one_time_out(fake: FakeS3, operation: str) -> None:
    """Kept-alive connections lead nowhere and are never closed: the second call uses a new one."""
    for seconds in (1, 4, 16):  # a busy machine may take that long for calls that are answered
        store = S3Store("bucket", "pre/fix", put_timeout_ns=seconds * 10**9, get_timeout_ns=seconds * 10**9)
        fake.script = lambda request: None
        fake.objects.clear()
        before = fake.connections
        calls = {"put": lambda store=store: store.put("k", [b"x"]), "get": lambda store=store: store.get("there"),
                 "list": lambda store=store: store.list(""), "delete": lambda store=store: store.delete("k")}
        failed = ""
        try:
            await store.put("there", [b"data"])
            await asyncio.gather(*[store.get("there") for _ in range(8)])
            kept = fake.connections
            assert kept - before > 4
            fake.script = lambda one, kept=kept: "hang" if one.connection <= kept else None  # type: ignore[misc]
            with pytest.raises(Transient, match="no answer within"):
                await calls[operation]()
            await calls[operation]()
        except Transient as error:
            failed = str(error)
        await store.close()
        if not failed:
            break
    assert not failed


async def test_credentials_that_never_arrive(fake: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source of credentials does not answer: the call raises Transient, and the next one searches again."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", fake.endpoint + "/bucket/credentials")
    monkeypatch.setattr("broker.storage.objectstore.s3._CLIENT_TIMEOUT_S", 0.3)
    fake.objects["credentials"] = json.dumps({"AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "verysecret",
                                              "Token": "t", "Expiration": "2100-01-01T00:00:00Z"}).encode()
    fake.script = lambda request: "hang"
    store = S3Store("bucket")
    with pytest.raises(Transient, match="no credentials within"):
        await store.put("k", [b"x"])
    fake.script = lambda request: None
    monkeypatch.setattr("broker.storage.objectstore.s3._CLIENT_TIMEOUT_S", 30.0)
    await store.put("k", [b"x"])
    assert fake.objects["k"] == b"x"
    await store.close()


async def test_a_put_whose_answer_was_lost_is_there(s3: S3Store, fake: FakeS3) -> None:
    """Transient may mean done: the next put is refused, and the stored object is ours."""
    fake.script = lambda request: "served, then cut"
    with pytest.raises(Transient):
        await s3.put("k", [b"ours"])
    fake.script = lambda request: None
    with pytest.raises(PreconditionFailed):
        await s3.put("k", [b"ours"])
    assert await s3.get("k") == b"ours"


async def test_a_redirect_that_names_no_region(s3: S3Store, fake: FakeS3) -> None:
    """An endpoint that redirects everything is refused with the setting to correct, not followed forever."""
    fake.script = lambda request: (301, "PermanentRedirect")
    for at_most in (1, 3):  # botocore sends the first one, and repeats the second one
        with pytest.raises(StoreRefused, match="AWS_REGION"):
            await s3.put("k", [b"x"])
        assert len(fake.requests) == at_most


async def test_an_unreachable_endpoint_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens: Transient, since the server may still start."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    store = S3Store("bucket", endpoint="http://127.0.0.1:9")
    with pytest.raises(Transient, match=r"127\.0\.0\.1:9"):
        await store.get("k")
    await store.close()


async def test_the_request_of_a_put(s3: S3Store, fake: FakeS3) -> None:
    """A put is one conditional request, by path, below the prefix, with an unsigned payload and no 100-continue."""
    await s3.put("k/1", [b"a" * 1000, b"b"])
    [request] = fake.requests
    assert (request.method, request.key) == ("PUT", "pre/fix/k/1")
    assert request.body == b"a" * 1000 + b"b"
    assert request.headers["if-none-match"] == "*"
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert "expect" not in request.headers
    assert not [name for name in request.headers if "checksum" in name]


async def test_a_store_that_ignores_ranges(s3: S3Store, fake: FakeS3) -> None:
    """A server that sends the whole object for a range costs time, not correctness."""
    fake.honours_range = False
    await s3.put("k", [b"0123456789"])
    assert await s3.get("k", 2, 5) == b"234"
    assert await s3.get("k", 20, 25) == b""


@pytest.mark.parametrize(("headers", "body"), [
    ([("content-range", "bytes 2-5/10")], b"cd"), ([("content-range", "bytes 1-4/10")], b"bcde"),
    ([("content-range", "bytes 2-3/10")], b"cd"), ([("content-range", "bytes 2-5/10")], b"cdefg")])
async def test_a_body_that_differs_from_its_range(s3: S3Store, fake: FakeS3, headers: list[tuple[str, str]],
                                                      body: bytes) -> None:
    """A proxy cut the body, or sent another one: the request is retried, and the object does not count as damaged."""
    fake.objects["pre/fix/k"] = b"abcdefghij"
    assert await s3.get("k", 2, 6) == b"cdef"
    fake.change = lambda request, answer: (206, headers, body)
    with pytest.raises(Transient, match="came as 'bytes"):
        await s3.get("k", 2, 6)


async def test_a_whole_body_that_is_cut(s3: S3Store, fake: FakeS3) -> None:
    """A whole object is requested as a range, too, so that the answer has its length."""
    fake.objects["pre/fix/k"] = b"abcdefghij"
    fake.change = lambda request, answer: (answer[0], answer[1], answer[2][:5])
    with pytest.raises(Transient, match="5 bytes from byte 0 on came as 'bytes 0-9/10'"):
        await s3.get("k")
    fake.objects["pre/fix/empty"] = b""
    assert await s3.get("empty") == b""


async def test_the_page_of_a_proxy(s3: S3Store, fake: FakeS3) -> None:
    """The page of a proxy is no object: a start would report the object as damaged."""
    fake.objects["pre/fix/k"] = b"abcdefghij"
    fake.change = lambda request, answer: (200, [("content-type", "text/html")], b"<html>please log in</html>")
    with pytest.raises(Transient, match="the response is not S3's"):
        await s3.get("k")


PAGE = "<ListBucketResult><IsTruncated>{}</IsTruncated>{}</ListBucketResult>"


def rows(*keys: str) -> str:
    return "".join(f"<Contents><Key>pre/fix/{key}</Key><Size>1</Size></Contents>" for key in keys)


@pytest.mark.parametrize(("pages", "keys"), [
    ([PAGE.format("true", rows("p/b", "p/c")), PAGE.format("false", rows("p/c", "p/d"))], ["p/b", "p/c", "p/d"]),
    ([PAGE.format("true", rows("p/c", "p/d")), PAGE.format("false", rows("p/b"))], ["p/b", "p/c", "p/d"]),
    ([PAGE.format("false", rows("o", "p/a", "p/b", "q"))], ["p/b"]),
])
async def test_listings_out_of_order(s3: S3Store, fake: FakeS3, pages: list[str], keys: list[str]) -> None:
    """Pages overlap, are not sorted, or have keys that were not requested: the listing has each key once, in order,
    after ``after``."""
    left = [page.replace("</IsTruncated>", f"</IsTruncated><NextContinuationToken>{at}</NextContinuationToken>")
            for at, page in enumerate(pages)]
    fake.change = lambda request, answer: (200, [("content-type", "application/xml")], left.pop(0).encode())
    assert [info.key for info in await s3.list("p/", "p/a")] == keys


@pytest.mark.parametrize("page", ["<html><body>Please log in</body></html>", "<ListBucketResult><IsTrun",
                                  PAGE.format("true", rows("p/b"))])
async def test_answers_that_are_no_listing(s3: S3Store, fake: FakeS3, page: str) -> None:
    """A proxy's page, a truncated page and a page without a token for the next one raise an error; none gives an
    empty or partial listing."""
    fake.change = lambda request, answer: (200, [("content-type", "application/xml")], page.encode())
    with pytest.raises(Transient):
        await s3.list("p/")


async def test_secrets_stay_out_of_errors(fake: FakeS3) -> None:
    """No error text, including causes, contains the secret key, the session token or a URL's password."""
    errors = []
    for verdict in ((403, "SignatureDoesNotMatch"), (500, "x"), "cut", "hang"):
        fake.script = lambda request, verdict=verdict: verdict  # type: ignore[misc]
        store = S3Store("bucket", put_timeout_ns=200_000_000)
        with pytest.raises(StoreError) as caught:
            await store.put("k", [b"x"])
        await store.close()
        errors.append(caught.value)
    store = S3Store("bucket", endpoint=fake.endpoint.replace("http://", "http://user:pass@"))
    with pytest.raises(StoreError) as caught:
        await store.get("k")
    await store.close()
    errors.append(caught.value)
    for error in errors:
        text = "".join(traceback.format_exception(error)) if error is not errors[-1] else str(error)
        assert "verysecret" not in text
        assert "tokensecret" not in text
        assert "user:pass" not in text


@pytest.mark.parametrize(("variables", "remedy"), [
    ({"AWS_ENDPOINT_URL": "127.0.0.1:9000"}, "AWS_ENDPOINT_URL=http://HOST:PORT"),
    ({"AWS_ENDPOINT_URL": "ftp://host"}, "AWS_ENDPOINT_URL=http://HOST:PORT"),
    ({"AWS_PROFILE": "no-such-profile"}, "profile"),
    ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "",
      "AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_CONFIG_FILE": "/dev/null"},
     "AWS_ACCESS_KEY_ID"),
])
async def test_an_environment_that_cannot_work(fake: FakeS3, monkeypatch: pytest.MonkeyPatch,
                                               variables: dict[str, str], remedy: str) -> None:
    """Wrong endpoints, missing profiles and missing credentials are refused with a text that names the setting."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    store = S3Store("bucket")
    with pytest.raises(StoreRefused) as caught:
        await store.put("k", [b"x"])
    assert remedy in str(caught.value)
    await store.close()


async def test_the_stores_clock(fake: FakeS3) -> None:
    """now_ns is the Date of the last answer, errors included, plus the monotonic time since; None before any answer."""
    clock = ManualClock()
    store = S3Store("bucket", clock=clock)
    assert store.now_ns() is None
    with pytest.raises(NotFound):
        await store.get("k")
    assert store.now_ns() == 1445412480_500_000_000
    clock.advance(7_000_000_000)
    assert store.now_ns() == 1445412487_500_000_000
    clock.leap(10**18)
    assert store.now_ns() == 1445412487_500_000_000
    await store.put("k", [b"x"])
    assert store.now_ns() == 1445412480_500_000_000
    await store.close()


@pytest.mark.parametrize("date", ["yesterday", "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"])
async def test_a_date_that_cannot_be_parsed(fake: FakeS3, date: str) -> None:
    """A store whose Date header cannot be parsed has no clock."""
    fake.date = date
    store = S3Store("bucket")
    await store.put("k", [b"x"])
    assert store.now_ns() is None
    await store.close()


async def test_close_ends_calls_in_progress(fake: FakeS3) -> None:
    """A put that hangs while the store is closed ends in Transient, not in an internal error of the client."""
    reached = asyncio.Event()

    def script(request: object) -> str:
        reached.set()
        return "hang"

    fake.script = script
    store = S3Store("bucket")
    put = asyncio.create_task(store.put("k", [b"x"]))
    await reached.wait()
    await store.close()
    with pytest.raises(Transient):
        await put


async def test_cancelling_a_put_leaves_the_store_usable(s3: S3Store, fake: FakeS3) -> None:
    """A cancelled call releases its connection, and affects nothing else."""
    reached = asyncio.Event()

    def script(request: object) -> str:
        reached.set()
        return "hang"

    fake.script = script
    put = asyncio.create_task(s3.put("k", [b"x"]))
    await reached.wait()
    put.cancel()
    with pytest.raises(asyncio.CancelledError):
        await put
    fake.script = lambda request: None
    await s3.put("l", [b"y"])
    assert await s3.get("l") == b"y"


async def test_stores_that_aws_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store derives from the endpoint whether AWS serves it. No request is made."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for endpoint, at_aws in ((None, True), ("https://s3.eu-central-1.amazonaws.com", True),
                             ("http://127.0.0.1:9000", False)):
        store = RetryingStore(bare := S3Store("bucket", endpoint=endpoint, region="eu-central-1"), clock=SystemClock(),
                              rng=random.Random(1), give_up_ns=0)
        await bare._make_client_once()
        assert store.at_aws is at_aws, endpoint
        await store.close()


def test_urls() -> None:
    """Errors for wrong URLs name the fault and the correct form; a password in one is not repeated."""
    for url, words in [("", "file://DIR"), ("/var/lib", "file://DIR"), ("http://bucket", "s3://BUCKET/PREFIX"),
                       ("file://", "file:///var"), ("s3://", "bucket's name"), ("s3://b", "bucket's name"),
                       ("s3:///x", "bucket's name"), ("s3://bucket/a/../b", "prefix"), ("s3://bucket/a//b", "prefix"),
                       ("s3://bucket?region=x", "AWS_REGION"), ("memory://x", "nothing more"),
                       ("s3://bück/et", "bucket's name")]:
        with pytest.raises(ValueError, match=r"file://|s3://|memory://") as caught:
            open_store(url)
        assert words in str(caught.value), url
    for url in ("s3://key:secret@bucket", "http://key:secret@host/x"):
        with pytest.raises(ValueError) as caught:
            open_store(url)
        assert "secret" not in str(caught.value)
    store = open_store("s3://bucket/a/b/")
    assert store.url == "s3://bucket/a/b"
    assert store.puts_cost
