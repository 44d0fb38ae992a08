"""The store as Spark's tasks read it: blocking, from plain files or through obstore.

    file://DIR              plain files
    s3://BUCKET[/PREFIX]    obstore; endpoint, region and credentials come from the AWS_* environment

Only reads. Transient errors are tried again, with pauses that grow, up to a bound; then it is Unreachable.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import Protocol

from broker.pipeline.errors import BadOption, NoStore, Unreachable
from broker.storage.objectstore.base import NotFound, ObjectInfo

__all__ = ["Blobs", "FileBlobs", "open_blobs"]

Range = tuple[str, int, int | None]


class Blobs(Protocol):
    """A store of immutable objects. Safe for calls from several threads; never shared with another process."""

    url: str
    """The store as the query names it."""

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes ``start`` to ``end`` (half open; None: to the object's end), fewer where the object is shorter.

        Raises: NotFound (storage.objectstore.base); NoStore; Unreachable.
        """

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Several ranges (key, start, end), read side by side; None where there is no object.

        Raises: NoStore; Unreachable.
        """

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        """The objects whose key begins with ``prefix`` and is greater than ``after``, in key order.

        Raises: NoStore; Unreachable.
        """


_opened: dict[tuple[int, str], Blobs] = {}


def open_blobs(url: str) -> Blobs:
    """The store behind ``url``; one client for each process and URL, made when it is first asked for.

    Nothing is asked of the store yet. Raises: BadOption for a URL of no known form; NoStore for a directory that is not
    there.
    """
    made = _opened.get((os.getpid(), url))
    if made is None:
        made = _opened[os.getpid(), url] = _open(url)
    return made


def _open(url: str) -> Blobs:
    scheme, colon, rest = url.partition("://")
    if colon and scheme == "file":
        return FileBlobs(rest)
    raise BadOption(f"{url!r} is no URL of a store: write file://DIR or s3://BUCKET/PREFIX")


class FileBlobs:
    """A directory."""

    def __init__(self, directory: str) -> None:
        self._root = os.path.abspath(directory)
        self.url = f"file://{self._root}"
        if not os.path.isdir(self._root):
            raise NoStore(f"{self.url}: no such directory; check the path")

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        for pause_s in (0.05, 0.2, 0.8, None):
            try:
                with open(f"{self._root}/{key}", "rb", buffering=0) as file:
                    size = os.fstat(file.fileno()).st_size
                    stop = size if end is None else min(end, size)
                    return os.pread(file.fileno(), max(0, stop - start), start)
            except OSError as e:
                if e.errno in (errno.ENOENT, errno.ENOTDIR):
                    raise NotFound(f"{self.url}: {key} does not exist") from e
                if pause_s is None:
                    raise Unreachable(f"{self.url}: {key}: {e.strerror}") from e
                time.sleep(pause_s)
        raise AssertionError

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for key, start, end in ranges:
            try:
                found.append(self.get(key, start, end))
            except NotFound:
                found.append(None)
        return found

    def list(self, prefix: str, after: str = "") -> list[ObjectInfo]:
        found: list[ObjectInfo] = []
        base = prefix.rpartition("/")[0]
        for folder, _, names in os.walk(os.path.join(self._root, base)):
            for name in names:
                path = os.path.join(folder, name)
                key = os.path.relpath(path, self._root)
                if key.startswith(prefix) and key > after and name != "lock":
                    found.append(ObjectInfo(key, os.stat(path).st_size))
        return sorted(found)
