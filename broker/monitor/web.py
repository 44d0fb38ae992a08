"""The pages over HTTP: from a path and query to a status, headers and body. aiohttp implements HTTP itself.

Source: nats-server, server/monitor.go (ResponseHandler, HandleRoot).
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from aiohttp import web

from broker.base.gojson.encoding import escaped, marshal
from broker.base.turns import in_turns
from broker.monitor.access import Access
from broker.monitor.clusters import NO_RAFT
from broker.monitor.endpoints import ENDPOINTS, Endpoint
from broker.monitor.options import BadOption, from_query
from broker.monitor.stacks import stacks
from broker.monitor.views import Sample, Views

__all__ = ["Pages", "http_protocol", "http_protocol_of", "json_response"]

log = logging.getLogger(__name__)

HEAD_LINE_BYTES_MAX: Final = 8 * 1024
HEADERS_MAX: Final = 64
_CALLBACK: Final = re.compile(r"[A-Za-z_$][\w$.]{0,127}", re.ASCII)
_TEXT: Final = "text/plain; charset=utf-8"
_HTML: Final = "text/html; charset=utf-8"
_LARGE: Final = 1 << 20
"""Size of the parts in which a longer body is sent."""
_TEXTS_ENCODED: Final = 2000
"""Number of keys, values and signs of a page that are encoded in one step: 1 to 2 ms."""
_LONG_PAGES_MAX: Final = 8
"""Number of long pages that are made at the same time, since each takes memory until it is sent."""
_ROWS_FREED: Final = 1000
_LABELS: Final = {"/varz": "General", "/jsz": "JetStream", "/connz": "Connections", "/accountz": "Accounts",
                  "/accstatz": "Account Stats", "/subsz": "Subscriptions", "/routez": "Routes", "/leafz": "LeafNodes",
                  "/gatewayz": "Gateways", "/healthz": "Health Probe", "/metrics": "Metrics for Prometheus",
                  "/stacksz": "Stacks"}


class Exchange(Protocol):
    """The connection of a request, which is the transport's extra information ``exchange``."""

    def request_read(self) -> None:
        """Record that the request is complete; the peer is not responsible for the duration of the answer."""

    def answer_made(self) -> None:
        """Record that the answer is made: the peer has limited time to read it."""


def http_protocol(views: Views, base_path: str, access: Callable[[], Access]) -> Callable[[], web.RequestHandler]:
    """Return a function that makes the protocol of one connection, which closes it after one answer.

    ``access`` is called for each request.

    The making of a page is cancelled if its peer disconnects.
    """
    return http_protocol_of(Pages(views, base_path, access))


def http_protocol_of(pages: Pages) -> Callable[[], web.RequestHandler]:
    """Return a function that makes the protocol of one connection to ``pages``."""
    return web.Server(pages.answer, access_log=None, logger=_Quiet(log, {}),
                      lingering_time=0, handler_cancellation=True, max_line_size=HEAD_LINE_BYTES_MAX,
                      max_field_size=HEAD_LINE_BYTES_MAX, max_headers=HEADERS_MAX)


class Pages:
    """The pages under one base path."""

    def __init__(self, views: Views, base_path: str, access: Callable[[], Access]) -> None:
        self._views = views
        self._access = access
        self._base = "/" + base_path.strip("/") if base_path.strip("/") else ""
        self._json: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in ENDPOINTS.values()} | {
            "/subscriptionsz": ENDPOINTS["SUBSZ"]}
        self._turn = asyncio.Lock()
        """Lock of the page that makes a step in this turn of the loop."""
        self._long_pages = asyncio.Semaphore(_LONG_PAGES_MAX)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer any request; as in nats-server, the method does not matter."""
        exchange: Exchange | None = None
        if request.transport is not None:
            exchange = request.transport.get_extra_info("exchange")
        if exchange is not None:
            exchange.request_read()
        access = self._access()
        try:
            response = await (self._restricted_page(request, access) if access.restricted else self.page(request))
        except BadOption as error:
            response = web.Response(status=400, body=str(error).encode(errors="replace"),
                                    headers={"Content-Type": _TEXT})
        except Exception:
            log.exception("a monitoring page failed")
            response = web.Response(status=500, body=b"Internal Server Error\n", headers={"Content-Type": _TEXT})
        response.headers.update({"X-Content-Type-Options": "nosniff", "Server": "jetblock"})
        response.force_close()
        if exchange is not None:
            exchange.answer_made()
        body = response.body
        if isinstance(body, bytes) and len(body) > _LARGE:
            return await _send_in_parts(request, response, body)
        return response

    async def _restricted_page(self, request: web.BaseRequest, access: Access) -> web.Response:
        """Answer a request that may be refused. Raises: BadOption."""
        if access.is_probe(request.path.removeprefix(self._base), request.query):
            response = await self.page(request)
            page = json.loads(response.body) if isinstance(response.body, bytes) else {}
            return web.Response(status=response.status, body=marshal({"status": page.get("status", "")}),
                                headers={"Content-Type": "application/json"})
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        refused = await access.refusal(peer[0] if peer else "", request.headers.get("Authorization", ""))
        if refused is not None:
            return web.Response(status=refused.status, body=refused.text.encode(),
                                headers={"Content-Type": _TEXT, **refused.headers})
        if request.query.get("callback"):
            raise BadOption("callback is refused: the pages are restricted, and a script of any web page could read it")
        response = await self.page(request)
        response.headers.popall("Access-Control-Allow-Origin", None)
        response.headers["Cache-Control"] = "no-store"
        return response

    async def page(self, request: web.BaseRequest) -> web.Response:
        """Return the page of a request that may see it. Raises: BadOption."""
        path = request.path
        query: Mapping[str, str] = request.query
        if path != self._base and not path.startswith(self._base + "/"):
            return _not_found()
        path = path[len(self._base):] or "/"
        endpoint = self._json.get(path)
        if endpoint is not None:
            self._views.requests[endpoint.path] += 1
            options: Any = from_query(endpoint.options, query)
            callback = query.get("callback", "")
            if endpoint is ENDPOINTS["HEALTHZ"]:
                # A probe must not wait for other pages.
                return _probe_response(endpoint.build(self._views, options), callback)
            steps = _response_in_steps(endpoint, self._views, options, callback)
            if endpoint.in_steps is None:
                return await in_turns(steps, self._turn)
            async with self._long_pages:
                return await in_turns(steps, self._turn)
        match path:
            case "/":
                self._views.requests[path] += 1
                return self.root(self._views.server_name)
            case "/metrics":
                self._views.requests[path] += 1
                body, content_type = await asyncio.to_thread(_metrics, list(self._views.samples()),
                                                             request.headers.get("Accept", ""))
                return web.Response(body=body, headers={"Content-Type": content_type})
            case "/stacksz":
                return web.Response(text=stacks(), content_type="text/plain",
                                    headers={"Access-Control-Allow-Origin": "*"})
            case "/raftz":
                return web.Response(status=404, text=NO_RAFT)
        if (made := self._views.more(path, query)) is not None:
            self._views.requests[path] += 1
            async with self._long_pages:
                return await in_turns(_further_response_in_steps(made, query.get("callback", "")), self._turn)
        return _not_found()

    def root(self, name: str) -> web.Response:
        """Return the page of links."""
        return web.Response(text=_root(name, self._base), content_type="text/html")


def _free_rows(page: dict[str, Any]) -> Generator[None, None, None]:
    """Free a page's rows in steps: freeing a million at once takes a tenth of a second."""
    lists = [member for member in page.values() if isinstance(member, list)]
    while lists:
        rows = lists.pop()
        while rows:
            lists += [member for row in rows[-_ROWS_FREED:] if isinstance(row, dict)
                      for member in row.values() if isinstance(member, list) and len(member) > _ROWS_FREED]
            del rows[-_ROWS_FREED:]
            yield


async def _send_in_parts(request: web.BaseRequest, whole: web.Response, body: bytes) -> web.StreamResponse:
    """Send a long response in parts, since each write copies the bytes that the socket does not accept."""
    response = web.StreamResponse(status=whole.status, headers=whole.headers)
    response.content_length = len(body)
    response.force_close()
    await response.prepare(request)
    for at in range(0, len(body), _LARGE):
        await response.write(body[at:at + _LARGE])
        await asyncio.sleep(0)
    await response.write_eof()
    return response


def _metrics(samples: Sequence[Sample], accept: str) -> tuple[bytes, str]:
    # This import takes 70 ms, and few brokers need it.
    from broker.monitor.metrics import metrics_text

    return metrics_text(samples, accept)


def _response_in_steps(endpoint: Endpoint, views: Views, options: Any,
                       callback: str) -> Generator[None, None, web.Response]:
    """Make the response with a page that may be long. Raises: BadOption."""
    if endpoint.in_steps is not None:
        page = yield from endpoint.in_steps(views, options)
    else:
        page = endpoint.build(views, options)
        yield
    return json_response((yield from _encoded_in_steps(page)), callback)


def _further_response_in_steps(made: Generator[None, None, tuple[int, Any]],
                               callback: str) -> Generator[None, None, web.Response]:
    """Make the response with a further page. Raises: BadOption."""
    status, page = yield from made
    if isinstance(page, str):
        kind = _HTML if page.startswith("<!doctype html>") else _TEXT
        return web.Response(status=status, body=f"{page}\n".encode(), headers={"Content-Type": kind})
    return json_response((yield from _encoded_in_steps(page)), callback, status)


def _encoded_in_steps(page: dict[str, Any]) -> Generator[None, None, bytes]:
    """Return a page as JSON."""
    parts: list[bytes] = []
    texts = json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(page)
    while some := list(islice(texts, _TEXTS_ENCODED)):
        parts.append(escaped("".join(some).encode(errors="replace")))
        yield
    yield from _free_rows(page)
    return b"".join(parts)


def _probe_response(page: dict[str, Any], callback: str) -> web.Response:
    """Return the response with /healthz. Raises: BadOption."""
    status = page.pop("status_code")
    # Like nats-server, write this page without spaces: probes compare it as text.
    return json_response(marshal(page), callback, status)


def json_response(body: bytes, callback: str, status: int = 200) -> web.Response:
    """Return a response with JSON, or with JSONP if there is a callback. Raises: BadOption.

    A callback must be a dotted name; otherwise a link could run any script.
    """
    content_type = "application/json"
    if callback:
        if not _CALLBACK.fullmatch(callback):
            raise BadOption("callback must be a JavaScript name")
        body, content_type = b"%b(%b)" % (callback.encode(), body), "application/javascript"
    return web.Response(status=status, body=body,
                        headers={"Content-Type": content_type, "Access-Control-Allow-Origin": "*"})


def _not_found() -> web.Response:
    return web.Response(status=404, body=b"404 page not found\n", headers={"Content-Type": _TEXT})


def _root(name: str, base: str) -> str:
    """Return a page of links."""
    links = "".join(f'<a href="{html.escape(base + path)}">{label}</a><br/>\n' for path, label in _LABELS.items())
    name = html.escape(name)
    return f"<!doctype html>\n<title>jetblock {name}</title>\n<h1>jetblock</h1>\n<p>{name}</p>\n{links}"


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log at debug level: any peer may send anything, so wrong requests are no concern of the operator."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        self.logger.debug(msg, *args)
