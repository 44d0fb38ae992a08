"""A small S3 server that misbehaves on demand, as MinIO and SeaweedFS cannot.

It serves only what S3Store sends: path-style PUT, GET with Range, DELETE and ListObjectsV2 of one page. It checks no
signature.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import h11

__all__ = ["Answer", "FakeS3", "Request", "fake_s3"]

Answer = tuple[int, list[tuple[str, str]], bytes]
"""The status, the headers and the body."""


@dataclass
class Request:
    method: str
    key: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """The number of the request's connection, from 1."""


@dataclass
class FakeS3:
    """A server whose ``script`` decides about each request before it is served.

    The script returns None to serve the request, or "cut" (the connection is closed), "hang", "served, then cut", or
    (status, code[, message]) for an S3 error.
    """

    endpoint: str = ""
    honours_if_none_match: bool = True
    honours_range: bool = True
    looks_first: float | None = None
    """The seconds between its check that a key is new and its put; None: conditional puts are atomic."""
    refuses_and_writes: bool = False
    """True if it refuses a conditional put that lost such a race, although it has overwritten the object."""
    date: str = "Wed, 21 Oct 2015 07:28:00 GMT"
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    script: Callable[[Request], object] = lambda request: None
    change: Callable[[Request, Answer], Answer] = lambda request, answer: answer
    """A function that changes what is served."""

    def serve(self, request: Request, query: dict[str, list[str]]) -> Answer:
        if request.method == "PUT":
            if self.honours_if_none_match and request.headers.get("if-none-match") and request.key in self.objects:
                return _error(412, "PreconditionFailed")
            self.objects[request.key] = request.body
            return 200, [], b""
        if request.method == "DELETE":
            self.objects.pop(request.key, None)
            return 204, [], b""
        if "list-type" in query:
            keys = sorted(key for key in self.objects if key.startswith(query.get("prefix", [""])[0]))
            rows = "".join(f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size></Contents>"
                           for key in keys)
            return 200, [("content-type", "application/xml")], (
                f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>".encode())
        if request.key not in self.objects:
            return _error(404, "NoSuchKey")
        data = self.objects[request.key]
        if self.honours_range and (asked := request.headers.get("range")):
            start, _, last = asked.removeprefix("bytes=").partition("-")
            if int(start) >= len(data):
                return _error(416, "InvalidRange")
            part = data[int(start):int(last) + 1 if last else None]
            at = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
            return 206, [("content-range", at)], part
        return 200, [("etag", '"0"')], data

    async def put_slowly(self, request: Request, seconds: float) -> tuple[int, list[tuple[str, str]], bytes]:
        if request.key in self.objects:
            return _error(412, "PreconditionFailed")
        await asyncio.sleep(seconds)
        first = request.key not in self.objects
        self.objects[request.key] = request.body
        return (200, [], b"") if first or not self.refuses_and_writes else _error(412, "PreconditionFailed")


def _error(status: int, code: str, message: str = "as scripted") -> Answer:
    return status, [("content-type", "application/xml")], (
        f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>".encode())


@asynccontextmanager
async def fake_s3(bucket: str = "bucket") -> AsyncIterator[FakeS3]:
    """Run the server on a free loopback port."""
    fake = FakeS3()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fake.connections += 1
        number = fake.connections
        connection = h11.Connection(h11.SERVER)

        async def event() -> object:
            while (got := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(65536))
            return got

        try:
            while isinstance(head := await event(), h11.Request):
                body = b""
                while isinstance(part := await event(), h11.Data):
                    body += part.data
                target = urlsplit(head.target.decode())
                key = unquote(target.path).removeprefix(f"/{bucket}").lstrip("/")
                request = Request(head.method.decode(), key, {k.decode(): v.decode() for k, v in head.headers}, body,
                                  number)
                fake.requests.append(request)
                verdict = fake.script(request)
                if verdict == "cut":
                    return
                if verdict == "hang":
                    await reader.read()  # until the client gives up
                    return
                if isinstance(verdict, tuple):
                    status, headers, data = _error(*verdict)
                elif fake.looks_first is not None and request.method == "PUT" and "if-none-match" in request.headers:
                    status, headers, data = await fake.put_slowly(request, fake.looks_first)
                else:
                    status, headers, data = fake.change(request, fake.serve(request, parse_qs(target.query)))
                if verdict == "served, then cut":
                    return
                headers += [("date", fake.date), ("content-length", str(len(data)))]
                writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
                if status != 204 and head.method != b"HEAD":
                    writer.write(connection.send(h11.Data(data=data)) or b"")
                writer.write(connection.send(h11.EndOfMessage()) or b"")
                await writer.drain()
                connection.start_next_cycle()
        except (ConnectionError, h11.RemoteProtocolError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    fake.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.close()
