"""The object client of Spark's driver and tasks: blocking calls, on plain files or through obstore.

    file://DIR              the broker's own directory store, at the same path on every machine
    s3://BUCKET[/PREFIX]    obstore; endpoint, region and credentials come from the AWS_* environment (``aws``)

Queries only read; the sink also puts new objects. Transient failures are retried with growing pauses for about
``_RETRY``, then raise Unreachable.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from broker.base.store_url import parse_store_url
from broker.pipeline.errors import BadOption, Damaged, NoStore, PipelineError, Unreachable, from_format_error
from broker.pipeline.store.aws import KEYS, S3Environment
from broker.storage.format.errors import FormatError
from broker.storage.format.store import StoreFormat
from broker.storage.keys.reading import use_keys_of
from broker.storage.objectstore.base import (
    NotFound,
    ObjectInfo,
    PreconditionFailed,
    StoreError,
    StoreRefused,
    Transient,
    can_begin_key,
)
from broker.storage.objectstore.file import FileStore
from broker.storage.paths import FORMAT, ROOT
from broker.storage.unsynced_tail import hide_all_torn

__all__ = ["AT_ONCE", "FileObjectClient", "ObjectClient", "Range", "S3ObjectClient", "check_store",
           "open_object_client"]

Range = tuple[str, int, int | None]
"""A range of an object: key, start, end."""
AT_ONCE: Final = 32
"""Concurrent gets of ``get_many`` on S3."""

_RETRY: Final = timedelta(seconds=30)
_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
_ACCESS: Final = "allow s3:GetObject on the keys and s3:ListBucket on the bucket"
_PUT_ACCESS: Final = "allow s3:PutObject on such keys"
_T = TypeVar("_T")


class ObjectClient(Protocol):
    """Reads a store of immutable objects, and adds objects. Thread-safe; never shared with another process."""

    url: str
    """The store's URL, without secrets."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Return the bytes from ``start`` to ``end`` (half-open; None: the object's end), fewer if the object is
        shorter.

        Raises: NotFound (storage.objectstore.base); NoStore; Unreachable.
        """

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Return several ranges (key, start, end), read concurrently; None for each missing object.

        Raises: NoStore; Unreachable.
        """

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """Return the objects whose key begins with ``prefix`` and is greater than ``after``, in key order.

        ``after`` is for prefixes whose keys are all in one folder (see ObjectStore.list). Raises: NoStore; Unreachable.
        """

    def put(self, key: str, data: Sequence[bytes]) -> bool:
        """Put an object unless its key exists; return False if it exists.

        A put whose answer was lost is repeated, so the existing object may be this one. Raises: NoStore; Unreachable.
        """


_opened: dict[tuple[int, str], ObjectClient] = {}
_opening = threading.Lock()


def open_object_client(url: str) -> ObjectClient:
    """Return the client for ``url``; one for each process and URL, created on first use.

    Sends no request to S3; ``check_store`` does. Raises: BadOption for an unknown kind of URL; NoStore for a missing
    directory; Unreachable for an unusable environment.
    """
    # Each process has its own client: Spark forks its workers, and a client's threads and connections do not survive
    # a fork.
    which = (os.getpid(), url)
    with _opening:
        if which not in _opened:
            client = _opened[which] = _open(url)
            use_keys_of(client.url, client.list, client.get)
        return _opened[which]


def _open(url: str) -> ObjectClient:
    try:
        scheme, where, prefix = parse_store_url(url)
    except ValueError as e:
        raise BadOption(f"option store: {e}") from None
    if scheme == "memory":
        raise BadOption("option store: memory:// exists within one process only; write file://DIR or "
                        "s3://BUCKET/PREFIX")
    return FileObjectClient(where) if scheme == "file" else S3ObjectClient(where, prefix)


def check_store(objects: ObjectClient) -> StoreFormat:
    """Check that a store exists, in a format that this reader knows.

    Raises: NoStore; Newer; Damaged; Unreachable.
    """
    try:
        return StoreFormat.decode(objects.get(FORMAT))
    except NotFound:
        pass
    except FormatError as error:
        raise from_format_error(error, objects.url, FORMAT) from None
    if objects.list(ROOT):
        raise Damaged(f"{objects.url}: {FORMAT} is missing, but other objects of a store exist: restore it from a "
                      "backup")
    raise NoStore(f"{objects.url}: there is no jetblock store, {FORMAT} is not there: correct bucket, prefix or "
                  f"directory; a broker makes the store when it first starts on it")


class FileObjectClient:
    """The client of a directory. Reads come from the page cache or fill it, so concurrency would not help."""

    def __init__(self, directory: str) -> None:
        try:
            self._store = FileStore(directory, read_only=True)
            hide_all_torn(self._store)
        except StoreRefused as e:
            raise NoStore(f"file://{os.path.abspath(directory)}: {e}, on every executor too") from None
        self.url = self._store.url
        self._writable: FileStore | None = None

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._with_retries(lambda: self._store.get_sync(key, start, end))

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        return [_or_none(self, range_) for range_ in ranges]

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        return self._with_retries(lambda: self._store.list_sync(prefix, after))

    def put(self, key: str, data: Sequence[bytes]) -> bool:
        if self._writable is None:
            # Only a broker creates a store: a directory that is not mounted here must not become one.
            check_store(self)
            self._writable = FileStore(self._store.directory)
        put = self._writable.put_sync
        assert put is not None
        try:
            self._with_retries(lambda: put(key, data))
        except PreconditionFailed:
            return False
        return True

    def _with_retries(self, call: Callable[[], _T]) -> _T:
        for pause_s in (*_PAUSES_S, None):
            try:
                return call()
            except (NotFound, PreconditionFailed):
                raise
            except Transient as e:
                if pause_s is None:
                    raise Unreachable(str(e)) from None
                time.sleep(pause_s)
            except StoreError as e:
                raise Unreachable(str(e)) from None
        raise AssertionError


class S3ObjectClient:
    """The client of a bucket, or of a prefix of one."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        """Open the client; reads the environment. Raises: Unreachable if the environment is unusable, or obstore not
        installed."""
        try:
            import obstore
            from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
            from obstore.store import S3Store
        except ImportError as e:
            raise Unreachable(f"s3:// needs obstore, here and on every executor: pip install obstore ({e})") from e
        self.url = f"s3://{bucket}/{prefix}" if prefix else f"s3://{bucket}"
        self._base = f"{prefix}/" if prefix else ""
        environment = S3Environment.read(self.url)
        self._where = f"{self.url} at {environment.shown}" if environment.shown else self.url
        self._obstore: Any = obstore
        self._failures = (BaseError, OSError, ValueError)
        self._exists = (AlreadyExistsError, PreconditionError)
        client: Any = {
            "allow_http": environment.endpoint.startswith("http:"), "connect_timeout": timedelta(seconds=3),
            "read_timeout": timedelta(seconds=20), "timeout": timedelta(seconds=120), "user_agent": "jetblock"}
        if environment.ca is not None:
            client["root_certificate"] = environment.ca
        settings: dict[str, Any] = {"endpoint": environment.endpoint} if environment.endpoint else {}
        if environment.credentials is not None:
            settings["credential_provider"] = environment.credentials
        try:
            self._store = S3Store(
                bucket, region=environment.region, virtual_hosted_style_request=False, client_options=client,
                retry_config={"max_retries": 10, "retry_timeout": _RETRY, "backoff": {
                    "init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}},
                **settings)
        except self._failures as e:
            raise Unreachable(f"{self._where}: {_summary(e)}: check AWS_ENDPOINT_URL and AWS_REGION") from None
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="jetblock-s3")
        self._whole = False
        """True if the endpoint ignores ranges, so that whole objects are fetched."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= start:
            return b""
        try:
            return self._get(self._base + key, start, end)
        except self._failures as e:
            text = str(e)
            if " 416 " in text:
                return b""  # the range begins at or past the object's end
            if not self._whole and "NotPartial" in text:
                self._whole = True
                return self.get(key, start, end)
            raise self._error(e, key) from None

    def _get(self, path: str, start: int, end: int | None) -> bytes:
        if self._whole or (not start and end is None):
            data = self._obstore.get(self._store, path).bytes().to_bytes()
            return data[start:end] if start or end is not None else data  # type: ignore[no-any-return]
        if end is None:
            found = self._obstore.get(self._store, path, options={"range": {"offset": start}}).bytes()
        else:
            found = self._obstore.get_range(self._store, path, start=start, end=end)
        return found.to_bytes()  # type: ignore[no-any-return]

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        if len(ranges) == 1:
            return [_or_none(self, ranges[0])]
        return list(self._threads.map(lambda range_: _or_none(self, range_), ranges))

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        if not can_begin_key(prefix):
            return []
        # obstore lists whole folders only, so names that do not begin with the prefix are dropped here.
        folder = (self._base + prefix).rpartition("/")[0]
        cut = len(self._base)
        found: list[ObjectInfo] = []
        try:
            for rows in self._obstore.list(self._store, prefix=f"{folder}/" if folder else None,
                                           offset=self._base + after if after else None):
                for row in rows:
                    key = row["path"][cut:]
                    if key.startswith(prefix) and key > after:
                        found.append(ObjectInfo(key, row["size"]))
        except self._failures as e:
            raise self._error(e, prefix) from None
        found.sort()
        return found

    def put(self, key: str, data: Sequence[bytes]) -> bool:
        try:
            # A put in several parts could replace an object.
            self._obstore.put(self._store, self._base + key, b"".join(data), mode="create", use_multipart=False)
        except self._exists:
            return False
        except self._failures as e:
            raise self._error(e, key, _PUT_ACCESS) from None
        return True

    def _error(self, e: Exception, key: str, access: str = _ACCESS) -> Exception:
        """Return the error to raise for an error of obstore, which has HTTP status and S3 code only in its text.

        Args: access is the remedy if the store denies access.
        """
        text = str(e)
        code = match[1] if (match := _CODE.search(text)) is not None else ""
        if code == "NoSuchBucket":
            return NoStore(f"{self._where}: NoSuchBucket: create the bucket, or correct its name or AWS_ENDPOINT_URL")
        where = f"{self._where}: {key}: {_summary(e)}"
        if code == "NoSuchKey":
            return NotFound(where)
        if isinstance(e, PipelineError):
            return e
        for sign, remedy in _REMEDIES.items():
            if sign == code or (not code and sign in text):
                return Unreachable(f"{where}: {access if remedy == _ACCESS else remedy}")
        if not code and (isinstance(e, FileNotFoundError) or " 404 " in text):
            # S3 reports a missing object as NoSuchKey; a gateway or web server answers 404 for much else.
            return Unreachable(f"{where}: the answer is not S3's; is AWS_ENDPOINT_URL right?")
        if type(e).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or " 403 " in text or " 401 " in text:
            return Unreachable(f"{where}: {KEYS}, and {access}")
        return Unreachable(f"{where}: check that it is up, its address (AWS_ENDPOINT_URL), AWS_REGION and the network")


def _or_none(objects: ObjectClient, range_: Range) -> bytes | None:
    try:
        return objects.get(*range_)
    except NotFound:
        return None


_CODE: Final = re.compile(r"<Code>\s*([A-Za-z0-9]+)\s*</Code>")
_STATUS: Final = re.compile(r"status code: (\d\d\d)")
_CAUSE: Final = re.compile(r" - ((?:HTTP error|Received|Server returned)[^\n:]*(?:: [a-z][^\n]*)?)")
_REMEDIES: Final = {
    "AccessDenied": _ACCESS,
    "AllAccessDisabled": _ACCESS,
    "InvalidAccessKeyId": KEYS,
    "SignatureDoesNotMatch": KEYS,
    "InvalidToken": KEYS,
    "ExpiredToken": "renew the session's credentials, here and on the executors",
    "AuthorizationHeaderMalformed": "set AWS_REGION to the bucket's region",
    "IllegalLocationConstraintException": "set AWS_REGION to the bucket's region",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION to it",
    "RequestTimeTooSkewed": "set this machine's clock",
    "InvalidBucketName": "correct the bucket's name in the URL",
    # obstore's own errors, and those of requests for credentials
    "Received redirect": "the bucket is in another region: set AWS_REGION to it",
    "/latest/api/token": f"no credentials were found, and no instance role answers: {KEYS}, here and on the executors",
    "/latest/meta-data": f"the instance's role could not be had: {KEYS}",
    "AssumeRoleWithWebIdentity": "check AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE and the role's trust",
    "Content-Length Header missing": "the answer is not S3's; is AWS_ENDPOINT_URL right?",
    "Error parsing": "the answer is not S3's; is AWS_ENDPOINT_URL right?",
}
"""Remedies by S3 error code, or by part of obstore's text."""


def _summary(e: Exception) -> str:
    """Return a summary of obstore's error: S3's code and status, or the failure below HTTP.

    The summary has no response body, because it may repeat the signed request.
    """
    text = str(e)
    code, status, cause = _CODE.search(text), _STATUS.search(text), _CAUSE.search(text)
    if code is not None:
        return f"{code[1]} ({status[1]})" if status is not None else code[1]
    if status is not None:
        return f"HTTP status {status[1]}"
    if cause is not None:
        return cause[1].strip()[:200]
    return text.partition("Debug source")[0].strip().partition("\n")[0][:200]
