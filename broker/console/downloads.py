"""Downloads: whole payloads and objects, read from the server as fast as the browser takes them."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from nats.errors import Error
from nats.js.errors import ObjectNotFoundError
from nicegui import app

from broker.console.login import BadLogin
from broker.console.messages import Messages
from broker.console.server import Refused
from broker.console.streams import OBJECTS_PREFIX

if TYPE_CHECKING:
    from nats.js.api import ObjectInfo

    from broker.console.session import Session, Sessions

__all__ = ["add_routes", "message_address", "object_address"]

_OPAQUE = "application/octet-stream"


def message_address(stream: str, seq: int) -> str:
    """Return the address of a message's payload."""
    return f"/download/message/{quote(stream, safe='')}/{seq}"


def object_address(bucket: str, name: str) -> str:
    """Return the address of an object."""
    return f"/download/object/{quote(bucket, safe='')}?name={quote(name, safe='')}"


def add_routes(sessions: Sessions, cookie: str) -> None:
    """Add the downloads to the console's web server."""
    @app.get("/download/message/{stream}/{seq:int}")
    async def message(request: Request, stream: str, seq: int) -> Response:
        return await answer(request, lambda session: _message(session, stream, seq))

    @app.get("/download/object/{bucket}")
    async def object(request: Request, bucket: str, name: str) -> Response:
        return await answer(request, lambda session: _object(session, bucket, name))

    async def answer(request: Request, download: Callable[[Session], Awaitable[Response]]) -> Response:
        """Answer with the download, or with the reason why there is none."""
        try:
            session = await sessions.get(request.cookies.get(cookie, ""))
            if session is None:
                return PlainTextResponse("Log in to the console first.", 401)
            return await download(session)
        except BadLogin as error:
            return PlainTextResponse(str(error), 502)
        except (Refused, Error, TimeoutError, ValueError) as error:
            return PlainTextResponse(str(error).removeprefix("nats: ") or "The server did not answer in time.", 404)


async def _message(session: Session, stream: str, seq: int) -> Response:
    msg = await Messages(session.server, stream).get(seq)
    return Response(msg.data, media_type=_OPAQUE, headers=_attached(f"{stream}-{seq}"))


async def _object(session: Session, bucket: str, name: str) -> Response:
    js = session.server.client.jetstream(domain=session.server.login.domain or None)
    try:
        info = await (await js.object_store(bucket)).get_info(name)
    except ObjectNotFoundError:
        raise Refused(f"{name} is gone.") from None
    if info.is_link():
        raise Refused(f"{name} is a link to another object.")
    return StreamingResponse(_chunks(session, bucket, info), media_type=_OPAQUE, headers={
        "Content-Length": str(info.size or 0), **_attached(name)})


async def _chunks(session: Session, bucket: str, info: ObjectInfo) -> AsyncIterator[bytes]:
    """Yield an object's chunks. An object that is not as its digest says breaks off, so the browser shows a failure."""
    digest, read = hashlib.sha256(), 0
    stream = Messages(session.server, OBJECTS_PREFIX + bucket)
    if info.size:
        async with aclosing(stream.whole(f"$O.{bucket}.C.{info.nuid}")) as messages:
            async for msg in messages:
                session.touch()
                digest.update(msg.data or b"")
                read += msg.size
                if read > (info.size or 0):
                    break
                if read == info.size and not _is_digest(info.digest or "", digest.digest()):
                    raise ConnectionError(f"{info.name} does not have the digest that its description says")
                yield msg.data or b""
                if read == info.size:
                    return
        raise ConnectionError(f"{info.name} does not have the size that its description says")


def _is_digest(text: str, found: bytes) -> bool:
    try:
        return base64.urlsafe_b64decode(re.sub("(?i)^sha-256=", "", text)) == found
    except ValueError:
        return False


def _attached(name: str) -> dict[str, str]:
    """Return the header by which the browser saves a file and does not show it."""
    last = name.rpartition("/")[2]
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", last).lstrip(".") or "download"
    return {"Content-Disposition": f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(last, safe='')}"}
