"""Blocking reads of a store: a directory, MinIO and SeaweedFS, a scripted failing endpoint; and the environment."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from broker.pipeline.errors import BadOption, Damaged, Newer, NoStore, Unreachable
from broker.pipeline.store import objects as objects_module
from broker.pipeline.store.aws import S3Environment
from broker.pipeline.store.objects import FileObjectClient, S3ObjectClient, check_store, open_object_client
from broker.storage.format.document import encode_document
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.store import JOURNAL_VERSION, StoreFormat
from broker.storage.objectstore.base import NotFound, ObjectInfo
from broker.storage.objectstore.url import open_store
from broker.storage.paths import FORMAT, ShardPaths, StreamPaths
from tests.real.s3 import S3Server, free_port
from tests.stores import Store, make_store

STREAM = StreamPaths("ACME/é", "Orders %41~ü", 0x1234)
KEYS = sorted([
    FORMAT, ShardPaths(0).log(Position(1, 0)), ShardPaths(0).log(Position(1, 1)), ShardPaths(0).log(Position(2, 0)),
    ShardPaths(10).log(Position(1, 0)), STREAM.run(Position(1, 1), 7),
    StreamPaths("$G", "ü" * 100, 1).run(Position(1, 1), 7)])
"""Keys, some with % and ~ in them, which a client may misinterpret."""


@pytest.fixture(params=["directory", "minio", "seaweed"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with an object at each of KEYS, which holds its own key."""
    if request.param == "seaweed":
        server: S3Server = request.getfixturevalue("seaweed")
        made = Store(server.new_url(), server.env)
    else:
        made = make_store(request.param, tmp_path, request)
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)
    writer = open_store(made.url)
    for key in KEYS:
        await writer.put(key, [key.encode()])
    await writer.close()
    return made


def test_reads_ranges(store: Store) -> None:
    """Objects are read whole and in parts; fewer bytes come where the object ends, none past its end; unusual keys
    work."""
    objects = open_object_client(store.url)
    assert objects.url == store.url
    for key in KEYS:
        data = key.encode()
        assert objects.get(key) == data
        for start, end in [(0, None), (3, None), (0, 4), (2, 5), (4, 5000), (len(data), None),
                           (len(data), len(data) + 9), (5000, 6000), (5000, None), (3, 3), (4, 2)]:
            assert objects.get(key, start, end) == data[start:end], (key, start, end)


def test_missing_objects_are_named(store: Store) -> None:
    objects = open_object_client(store.url)
    with pytest.raises(NotFound, match=ShardPaths(3).log(Position(1, 0))):
        objects.get(ShardPaths(3).log(Position(1, 0)), 0, 10)
    with pytest.raises(NotFound):
        objects.get("v1/shards")  # a folder, where there are folders


def test_reads_many_side_by_side(store: Store) -> None:
    """Results are in the requested order, None for missing objects; also from several threads."""
    objects = open_object_client(store.url)
    ranges = [(key, n % 3, None if n % 2 else 20) for n, key in enumerate(KEYS * 10)]
    ranges.insert(5, ("v1/none", 0, None))
    want = [None if key == "v1/none" else key.encode()[start:end] for key, start, end in ranges]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: objects.get_many(ranges), range(4))) == [want] * 4
    assert objects.get_many([]) == []


def test_lists_in_order(store: Store) -> None:
    """A listing is by prefix, which may end within a name; within a folder also after a key."""
    objects = open_object_client(store.url)
    for prefix in ("", "v1/", "v1/shards/", "v1/shards/0/log/", "v1/shards/1", "v1/shards/0/log/00000001-",
                   STREAM.prefix, STREAM.prefix[:-8], "v1/none/", "none", ".tmp", "v1/shards/0/lock"):
        afters = ("", KEYS[1], KEYS[3], "v1/shards/0/log/", "v2")
        for after in afters if prefix.startswith("v1/shards/0/log/") else ("",):
            want = [ObjectInfo(key, len(key.encode())) for key in KEYS if key.startswith(prefix) and key > after]
            assert objects.list(prefix, after) == want, (prefix, after)


def test_one_client_for_a_process_and_url(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child does not get the client of its parent, whose threads and connections it lacks."""
    first = open_object_client(store.url)
    assert open_object_client(store.url) is first
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert open_object_client(store.url) is not first


async def test_knows_a_store_by_its_format(tmp_path: Path) -> None:
    """The folder has no store; one that others can read; one of a newer version; a flipped bit; or objects without a
    format."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoStore, match="there is no jetblock store"):
        check_store(FileObjectClient(str(tmp_path / "empty")))
    with pytest.raises(NoStore, match="no storage directory"):
        open_object_client(f"file://{tmp_path}/nowhere")

    made = StoreFormat.make(bytes(range(16)), 5)
    newer = encode_document(ObjectKind.FORMAT, Position(0, 0), bytes(16),
                            {"version": JOURNAL_VERSION + 1, "store_id": bytes(16), "made_at_ns": 5})
    data = made.encode()
    flipped = data[:70] + bytes([data[70] ^ 1]) + data[71:]
    for name, content in [("good", data), ("newer", newer), ("flipped", flipped), ("cut", data[:50])]:
        writer = open_store(f"file://{tmp_path}/{name}")
        await writer.put(FORMAT, [content])
        await writer.close()
    assert check_store(FileObjectClient(str(tmp_path / "good"))) == made
    with pytest.raises(Newer, match=r"v1/format.*upgrade jetblock"):
        check_store(FileObjectClient(str(tmp_path / "newer")))
    for name in ("flipped", "cut"):
        with pytest.raises(Damaged, match=r"v1/format"):
            check_store(FileObjectClient(str(tmp_path / name)))
    writer = open_store(f"file://{tmp_path}/empty")
    await writer.put(ShardPaths(0).log(Position(1, 0)), [b"x"])
    await writer.close()
    with pytest.raises(Damaged, match="v1/format is missing, but other objects"):
        check_store(FileObjectClient(str(tmp_path / "empty")))


@pytest.mark.parametrize("url", ["", "/data", "memory://", "http://host/x", "s3://", "s3://a",
                                 "s3://key:secret@bucket/x", "file://"])
def test_refuses_urls(url: str) -> None:
    with pytest.raises(BadOption, match="option store: ") as refused:
        open_object_client(url)
    assert "secret" not in str(refused.value)


def test_a_directory_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals are raised at once, with the file and the remedy; transient errors are retried."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "x").write_bytes(b"data")
    objects = FileObjectClient(str(tmp_path))
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    real, failures = os.open, [OSError(5, "Input/output error")] * 3

    def failing(path: str, *args: int) -> int:
        if failures:
            raise failures.pop()
        return real(path, *args)

    monkeypatch.setattr("broker.storage.objectstore.file.os.open", failing)
    assert objects.get("v1/x") == b"data"
    assert pauses == [0.05, 0.1, 0.2]
    failures += [OSError(5, "Input/output error")] * 50
    with pytest.raises(Unreachable, match=r"v1/x: Input/output error"):
        objects.get("v1/x")
    assert sum(pauses) < 10
    failures[:] = [PermissionError(13, "Permission denied")]
    with pytest.raises(Unreachable, match=r"v1/x: Permission denied: give .* access"):
        objects.get("v1/x")


# ---- S3 that refuses, fails, or is something else

class _Script(BaseHTTPRequestHandler):
    """Answers with ``answers``, one after the other, and then with the object."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[list[tuple[int, bytes]]]
    ranges: ClassVar[bool]
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Range") or "")
        if self.answers:
            return self._answer(*self.answers.pop(0))
        data = b"0123456789"
        if self.ranges and (asked := self.headers.get("Range")):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = data[int(first):int(last) + 1]
            return self._answer(206, part, f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        return self._answer(200, data)

    def _answer(self, status: int, body: bytes, content_range: str = "") -> None:
        self.send_response(status)
        for name, value in [("Content-Length", str(len(body))), ("ETag", '"x"'), ("Content-Range", content_range),
                            ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")]:
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Script]]:
    class Script(_Script):
        answers: ClassVar[list[tuple[int, bytes]]] = []
        ranges: ClassVar[bool] = True
        asked: ClassVar[list[str]] = []

    server = ThreadingHTTPServer(("127.0.0.1", 0), Script)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    _environ(monkeypatch, AWS_ENDPOINT_URL=f"http://127.0.0.1:{server.server_port}", AWS_ACCESS_KEY_ID="someone",
             AWS_SECRET_ACCESS_KEY="the-secret", AWS_REGION="us-east-1")
    yield Script
    server.shutdown()
    server.server_close()
    thread.join()


def _environ(monkeypatch: pytest.MonkeyPatch, **environ: str) -> None:
    """Set the AWS part of the environment, and remove other AWS variables."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)


def test_retries_transient_failures(endpoint: type[_Script]) -> None:
    """The client retries overload and server failures until they end."""
    endpoint.answers += [(503, b"<Error><Code>SlowDown</Code></Error>"), (500, b""), (429, b"")]
    assert S3ObjectClient("bucket").get("v1/x", 2, 5) == b"234"
    assert endpoint.asked == ["bytes=2-4"] * 4


def test_gives_up_in_the_end(endpoint: type[_Script], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a persistent failure has address and status, and no secret."""
    monkeypatch.setattr(objects_module, "_RETRY", objects_module.timedelta(seconds=1))  # type: ignore[attr-defined]
    endpoint.answers += [(503, b"<Error><Code>SlowDown</Code></Error>")] * 100
    with pytest.raises(Unreachable,
                       match=r"s3://bucket at http://127.0.0.1:\d+: v1/x: SlowDown \(503\): check") as raised:
        S3ObjectClient("bucket").get("v1/x")
    assert "the-secret" not in str(raised.value)
    assert len(endpoint.answers) > 80


def test_an_endpoint_that_ignores_ranges(endpoint: type[_Script]) -> None:
    """Such an endpoint sends whole objects: they are cut here, and requested whole from then on."""
    endpoint.ranges = False
    objects = S3ObjectClient("bucket")
    assert (objects.get("v1/x", 2, 5), objects.get("v1/x", 7), objects.get("v1/x", 20, 30)) == (b"234", b"789", b"")
    assert endpoint.asked == ["bytes=2-4", "", "", ""]


@pytest.mark.parametrize(("status", "body", "kind", "reason"), [
    (403, b"<Error><Code>InvalidAccessKeyId</Code></Error>", Unreachable, r"check AWS_ACCESS_KEY_ID"),
    (403, b"<Error><Code>SignatureDoesNotMatch</Code><StringToSign>the-secret</StringToSign></Error>", Unreachable,
     r"SignatureDoesNotMatch \(403\): check AWS_ACCESS_KEY_ID"),
    (403, b"<Error><Code>AccessDenied</Code></Error>", Unreachable, r"allow s3:GetObject .* s3:ListBucket"),
    (403, b"", Unreachable, r"HTTP status 403: check AWS_ACCESS_KEY_ID"),
    (404, b"<Error><Code>NoSuchBucket</Code></Error>", NoStore, r"create the bucket, or correct its name"),
    (404, b"<Error><Code>NoSuchKey</Code></Error>", NotFound, r"v1/x: NoSuchKey"),
    (404, b"<Error><Code>InvalidAccessKeyId</Code></Error>", Unreachable, r"check AWS_ACCESS_KEY_ID"),  # versitygw
    (404, b"<html>no such page</html>", Unreachable, r"404: the answer is not S3's; is AWS_ENDPOINT_URL right"),
    (404, b"", Unreachable, r"404: the answer is not S3's"),
    (400, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>", Unreachable, r"set AWS_REGION"),
    (400, b"<Error><Code>ExpiredToken</Code></Error>", Unreachable, r"renew the session's credentials"),
    (301, b"<Error><Code>PermanentRedirect</Code></Error>", Unreachable, r"another region"),
])
def test_refusals_name_the_remedy(endpoint: type[_Script], status: int, body: bytes, kind: type[Exception], reason: str
                                  ) -> None:
    """A get and a listing alike raise an error with the URL, and with nothing that was signed."""
    objects = S3ObjectClient("bucket", "some/prefix")
    calls: list[Callable[[], object]] = [lambda: objects.get("v1/x"), lambda: objects.get("v1/x", 0, 9)]
    if kind is not NotFound:
        calls.append(lambda: objects.list("v1/"))
    for call in calls:
        endpoint.answers[:] = [(status, body)]
        with pytest.raises(kind, match=reason) as raised:
            call()
        assert "s3://bucket/some/prefix at http://127.0.0.1:" in str(raised.value)
        assert "the-secret" not in str(raised.value)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects_module, "_RETRY", objects_module.timedelta(seconds=1))  # type: ignore[attr-defined]
    _environ(monkeypatch, AWS_ENDPOINT_URL=f"http://127.0.0.1:{free_port()}", AWS_ACCESS_KEY_ID="a",
             AWS_SECRET_ACCESS_KEY="b")
    for call in (lambda: S3ObjectClient("bucket").get("v1/x"), lambda: S3ObjectClient("bucket").list("v1/")):
        with pytest.raises(Unreachable,
                           match=r"s3://bucket at http://127.*HTTP error: error sending request: check that "
                                              r"it is up, its address \(AWS_ENDPOINT_URL\)"):
            call()


def test_no_credentials_anywhere(endpoint: type[_Script], monkeypatch: pytest.MonkeyPatch) -> None:
    """Instance credentials are tried last; if that fails too, the text names the variables to set."""
    monkeypatch.setattr(objects_module, "_RETRY", objects_module.timedelta(seconds=1))  # type: ignore[attr-defined]
    _environ(monkeypatch, AWS_ENDPOINT_URL=os.environ["AWS_ENDPOINT_URL"],
             AWS_METADATA_ENDPOINT=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unreachable, match=r"no credentials were found.*AWS_ACCESS_KEY_ID.*executors"):
        S3ObjectClient("bucket").get("v1/x")


# ---- the environment

def test_reads_the_environment(tmp_path: Path) -> None:
    """Variables override the profile; the endpoint for S3 overrides the general one."""
    config = tmp_path / "config"
    config.write_text("[default]\nregion = eu-north-1\nendpoint_url = http://from.file:1\n"
                      "[profile other]\nregion = eu-west-3\nnested =\n  max = 5\n")
    files = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    read = S3Environment.read
    assert read("s3://b", files)[:4] == ("http://from.file:1", "http://from.file:1", "eu-north-1", None)
    assert read("s3://b", {**files, "AWS_PROFILE": "other"})[:3] == ("", "", "eu-west-3")
    assert read("s3://b", {**files, "AWS_REGION": "x", "AWS_ENDPOINT_URL": "http://user:pw@a:1", "AWS_PROFILE": "other"}
                )[:3] == ("http://user:pw@a:1", "http://a:1", "x")
    assert read("s3://b",
                {**files, "AWS_ENDPOINT_URL": "http://a:1", "AWS_ENDPOINT_URL_S3": "https://b"}).endpoint == "https://b"
    assert read("s3://b", {"HOME": str(tmp_path)})[:4] == ("", "", "us-east-1", None)
    with pytest.raises(Unreachable, match=r"AWS_PROFILE=nobody: no such profile in .*none or .*config"):
        read("s3://b", {**files, "AWS_PROFILE": "nobody"})
    for endpoint in ("nonsense", "ftp://host", "http://", "http://h:port"):
        with pytest.raises(Unreachable, match="is no URL: write AWS_ENDPOINT_URL=http://HOST:PORT"):
            read("s3://b", {**files, "AWS_ENDPOINT_URL": endpoint})
    with pytest.raises(Unreachable, match="AWS_CA_BUNDLE=/nonexistent: No such file"):
        read("s3://b", {**files, "AWS_CA_BUNDLE": "/nonexistent"})


def test_reads_keys_of_a_profile(tmp_path: Path) -> None:
    """The file is read for each request, since tools write short-lived keys there; variables override them."""
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = A\naws_secret_access_key = B=%(x)s=\n"
                           "[half]\naws_access_key_id = A\n")
    files = {"AWS_CONFIG_FILE": str(tmp_path / "none"), "AWS_SHARED_CREDENTIALS_FILE": str(credentials)}
    ask = S3Environment.read("s3://b", files).credentials
    assert ask is not None
    found = ask()
    assert (found["access_key_id"], found["secret_access_key"], found["token"]) == ("A", "B=%(x)s=", None)
    credentials.write_text("[default]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = T\n"
                           "[half]\naws_access_key_id = A\n")
    assert [ask()[key] for key in ("access_key_id", "secret_access_key", "token")] == ["C", "D", "T"]
    for first in ({"AWS_ACCESS_KEY_ID": "E"}, {"AWS_WEB_IDENTITY_TOKEN_FILE": "/f"}):
        assert S3Environment.read("s3://b", {**files, **first}).credentials is None
    half = S3Environment.read("s3://b", {**files, "AWS_PROFILE": "half"}).credentials
    assert half is not None
    with pytest.raises(Unreachable, match="the profile 'half' has no aws_secret_access_key"):
        half()


def test_asks_a_process_for_credentials(tmp_path: Path) -> None:
    """SSO and assumed roles use ``credential_process``; its errors show neither the command nor its output."""
    program = tmp_path / "give me"
    program.write_text(f"#!{sys.executable}\nimport json, sys\n"
                       f"print(json.dumps({{'Version': 1, 'AccessKeyId': 'A', 'SecretAccessKey': sys.argv[1], "
                       f"'SessionToken': 'T', 'Expiration': '2030-01-01T00:00:00Z'}}))\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    config = tmp_path / "config"
    config.write_text(f"[profile p]\ncredential_process = '{program}' 'a b'\n"
                      "[profile bad]\ncredential_process = false the-secret\n"
                      "[profile sso]\nsso_session = s\nregion = r\n")
    files = {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    ask = S3Environment.read("s3://b", {**files, "AWS_PROFILE": "p"}).credentials
    assert ask is not None
    assert ask() | {"expires_at": ask()["expires_at"].isoformat()} == {
        "access_key_id": "A", "secret_access_key": "a b", "token": "T", "expires_at": "2030-01-01T00:00:00+00:00"}
    bad = S3Environment.read("s3://b", {**files, "AWS_PROFILE": "bad"}).credentials
    assert bad is not None
    with pytest.raises(Unreachable, match="credential_process of the profile 'bad' failed") as raised:
        bad()
    assert "the-secret" not in str(raised.value)
    with pytest.raises(Unreachable,
                       match=r"the profile 'sso' has sso_session.*credential_process = aws configure export-cred"):
        S3Environment.read("s3://b", {**files, "AWS_PROFILE": "sso"})


def test_a_profile_s_keys_reach_the_store(minio: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key from the shared file reaches MinIO; obstore passes on the error of a failing process."""
    credentials = tmp_path / "credentials"
    credentials.write_text(f"[here]\naws_access_key_id = {minio.env['AWS_ACCESS_KEY_ID']}\n"
                           f"aws_secret_access_key = {minio.env['AWS_SECRET_ACCESS_KEY']}\n"
                            f"[wrong]\naws_access_key_id = {minio.env['AWS_ACCESS_KEY_ID']}\n"
                           f"aws_secret_access_key = no\n[bad]\ncredential_process = false\n")
    _environ(monkeypatch, AWS_ENDPOINT_URL=minio.endpoint, AWS_PROFILE="here",
             AWS_SHARED_CREDENTIALS_FILE=str(credentials))
    assert S3ObjectClient(minio.bucket).get("ready", 0, 4) == bytes(4)
    monkeypatch.setenv("AWS_PROFILE", "wrong")
    with pytest.raises(Unreachable, match=r"SignatureDoesNotMatch"):
        S3ObjectClient(minio.bucket).get("ready", 0, 4)
    monkeypatch.setenv("AWS_PROFILE", "bad")
    with pytest.raises(Unreachable, match=r"credential_process of the profile 'bad' failed"):
        S3ObjectClient(minio.bucket).get("ready", 0, 4)
    _environ(monkeypatch, **minio.env)
    with pytest.raises(NoStore, match=r"s3://no-such-bucket/prefix at http.*NoSuchBucket: create the bucket"):
        check_store(S3ObjectClient("no-such-bucket", "prefix"))
    with pytest.raises(NoStore, match=r"there is no jetblock store, v1/format is not there"):
        check_store(S3ObjectClient(minio.bucket, "no/such/prefix"))
