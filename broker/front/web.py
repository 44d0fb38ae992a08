"""The monitoring pages of nats-server and its workers together, over HTTP.

    /healthz               the first process that is not healthy, nats-server before the workers
    /jsz, /streaming/…     the workers', added up
    /varz                  nats-server's, with the workers' JetStream, memory and processor time
    /leafz, /connz         nats-server's, without the workers
    /metrics               the workers', added up, and nats-server's clients
    all others             nats-server's

Numbers are added; of names and settings, the first worker's are shown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import aiohttp
from aiohttp import web

from broker.base.gojson.encoding import marshal
from broker.front.addresses import Addresses
from broker.front.configuration import Link
from broker.monitor.access import Access
from broker.monitor.web import Pages, http_protocol_of, json_response

__all__ = ["http_protocol"]

log = logging.getLogger(__name__)

_SECONDS: Final = 10.0
_KEPT: Final = frozenset({"now", "server_id", "server_name", "id", "version", "api_level", "domain", "level", "config",
                          "limits"})
"""Members of /jsz that are not added: each worker has the same, or the first one's are shown."""
_GREATEST: Final = frozenset({"accounts", "total", "reserved_memory", "reserved_storage"})
"""Members of which the greatest is shown: all workers have the same accounts, and the owner of shard 0 counts what all
streams reserve. In a row of an account, what is reserved is the account's limit."""

_PAGE: Final = re.compile(r"/[a-z]+(/[a-z]+)*")
"""The paths of nats-server's pages."""

_FRONT: Final = {
    "jetblock_connections": "connections", "jetblock_max_connections": "max_connections",
    "jetblock_connections_accepted_total": "total_connections", "jetblock_subscriptions": "subscriptions",
    "jetblock_received_messages_total": "in_msgs", "jetblock_received_bytes_total": "in_bytes",
    "jetblock_sent_messages_total": "out_msgs", "jetblock_sent_bytes_total": "out_bytes",
    "jetblock_slow_consumers_total": "slow_consumers", "jetblock_stale_connections_total": "stale_connections",
    "jetblock_leaf_nodes": "leafnodes"}
"""Metrics about clients, and the member of nats-server's /varz in which they are."""

class _Unreachable(Exception):
    """A process does not answer."""


class _Answer(NamedTuple):
    status: int
    body: bytes
    kind: str


def http_protocol(addresses: Addresses, base_path: str, access: Callable[[], Access]) -> Any:
    """Return a function that makes the protocol of one connection; see ``monitor.web``."""
    return http_protocol_of(_FrontPages(addresses, base_path, access))


class _FrontPages(Pages):
    def __init__(self, addresses: Addresses, base_path: str, access: Callable[[], Access]) -> None:
        super().__init__(None, base_path, access)  # type: ignore[arg-type]  # it has no page of its own
        self._addresses = addresses

    async def page(self, request: web.BaseRequest) -> web.Response:
        path = request.path
        if path != self._base and not path.startswith(self._base + "/"):
            return web.Response(status=404, text="404 page not found\n")
        path = path[len(self._base):] or "/"
        # Only this process knows who may see the pages, so the others never see a callback.
        query = urlencode([(key, value) for key, value in request.query.items() if key != "callback"])
        try:
            made = await self._made(path, query, request.headers.get("Accept", ""))
        except _Unreachable as error:
            made = json_response(marshal({"status": "unavailable", "error": str(error)}), "", 503)
        callback = request.query.get("callback", "")
        if callback and made.content_type == "application/json" and isinstance(made.body, bytes):
            return json_response(made.body, callback, made.status)
        return made

    async def _made(self, path: str, query: str, accept: str) -> web.Response:
        """Raises: _Unreachable."""
        match path:
            case "/":
                return self.root("jetblock")
            case "/healthz":
                return await self._health(query)
            case "/metrics":
                return await self._metrics(accept)
            case "/varz":
                return _json(await self._varz())
            case "/jsz":
                answers = await self._ask_workers(path, query)
                if (failed := next((one for one in answers if one.status != 200), None)) is not None:
                    return _relayed(failed)
                front = json.loads((await self._ask_front("/varz", "")).body)
                return await asyncio.to_thread(lambda: _json({
                    **_added([json.loads(answer.body) for answer in answers]), "server_id": front["server_id"]}))
            case "/leafz" | "/connz":
                return await self._connections(path, query)
        if path.startswith("/streaming"):
            return _relayed((await self._ask_workers(path, query))[0])
        if not _PAGE.fullmatch(path):
            return web.Response(status=404, text="404 page not found\n")
        answer = await self._ask_front(path, query)
        # Links between nats-server's pages would show the secret path.
        return _relayed(answer._replace(body=answer.body.replace(self._secret.encode(), self._base.encode())))

    @property
    def _secret(self) -> str:
        return "/" + self._addresses.front.rpartition("/")[2]

    async def _varz(self) -> dict[str, Any]:
        front = await self._ask_front("/varz", "")
        page: dict[str, Any] = json.loads(front.body)
        # A worker that is being started again must not hide nats-server's clients.
        workers = await asyncio.gather(*self._asking_workers("/varz", ""), return_exceptions=True)
        pages = [json.loads(one.body) for one in workers if isinstance(one, _Answer) and one.status == 200]
        page |= self._addresses.address()
        page["http_base_path"] = self._base or "/"
        page["leafnodes"] = page.get("leafnodes", 0) - self._addresses.links()
        remotes = [one for one in page.get("leaf", {}).get("remotes", ()) if not self._is_own(one)]
        page["leaf"] = {**{key: value for key, value in page.get("leaf", {}).items() if key != "remotes"},
                        **({"remotes": remotes} if remotes else {})}
        page["mem"] += sum(one["mem"] for one in pages)
        page["cpu"] = round(page["cpu"] + sum(one["cpu"] for one in pages), 2)
        if pages:
            page["jetstream"] = _added([one.get("jetstream") or {} for one in pages])
        return page

    def _is_own(self, remote: Mapping[str, Any]) -> bool:
        ports = {f":{worker.leaf_port}" for worker in self._addresses.workers}
        return any(url.endswith(tuple(ports)) for url in remote.get("urls", ()))

    async def _connections(self, path: str, query: str) -> web.Response:
        """Return a list of connections without those to the workers."""
        answer = await self._ask_front(path, query)
        if answer.status != 200:
            return _relayed(answer)
        return await asyncio.to_thread(self._without_own, path, answer.body)

    def _without_own(self, path: str, body: bytes) -> web.Response:
        page = json.loads(body)
        key, *counts = ("leafs", "leafnodes") if path == "/leafz" else ("connections", "num_connections", "total")
        ends = {("Leafnode", "127.0.0.1", worker.leaf_port) for worker in self._addresses.workers}
        rows = page.get(key) or []
        page[key] = [row for row in rows
                     if (row.get("kind", "Leafnode"), row.get("ip"), row.get("port")) not in ends]
        for count in counts:
            page[count] -= len(rows) - len(page[key])
        return _json(page)

    async def _health(self, query: str) -> web.Response:
        front, *workers = await asyncio.gather(self._ask_front("/healthz", "js-server-only=true"),
                                               *self._asking_workers("/healthz", query))
        answers = [front, *workers]
        if any(one.status == 200 for one in workers):
            # The request may name a stream, which one of the workers has.
            answers = [one for one in answers if one.status != 404]
        return _relayed(next((one for one in answers if one.status != 200), answers[-1]))

    async def _metrics(self, accept: str) -> web.Response:
        from broker.front.metrics import metrics_of  # this import takes 70 ms, and few supervisors need it

        front, accounts, *workers = await asyncio.gather(
            self._ask_front("/varz", ""), self._ask_front("/accstatz", "unused=1"),
            *self._asking_workers("/metrics", ""))
        page = json.loads(front.body)
        page["leafnodes"] = page.get("leafnodes", 0) - self._addresses.links()
        body, kind = metrics_of([worker.body.decode() for worker in workers if worker.status == 200],
                                {name: page.get(key, 0) for name, key in _FRONT.items()},
                                json.loads(accounts.body).get("account_statz") or (), accept)
        return web.Response(body=body, headers={"Content-Type": kind})

    # ---- the processes

    async def _ask_front(self, path: str, query: str) -> _Answer:
        return await self._ask(f"{self._addresses.front}{path}{'?' if query else ''}{query}")

    def _asking_workers(self, path: str, query: str) -> list[Coroutine[Any, Any, _Answer]]:
        return [self._ask(f"{self._worker_url(worker)}{path}{'?' if query else ''}{query}", worker)
                for worker in self._addresses.workers]

    async def _ask_workers(self, path: str, query: str) -> list[_Answer]:
        return list(await asyncio.gather(*self._asking_workers(path, query)))

    @staticmethod
    def _worker_url(worker: Link) -> str:
        return f"http://127.0.0.1:{worker.pages_port}"

    @staticmethod
    async def _ask(url: str, worker: Link | None = None) -> _Answer:
        """Raises: _Unreachable."""
        auth = aiohttp.BasicAuth("supervisor", worker.secret) if worker is not None else None
        try:
            async with (aiohttp.ClientSession(auth=auth, timeout=aiohttp.ClientTimeout(_SECONDS)) as session,
                        session.get(url) as answer):
                return _Answer(answer.status, await answer.read(), answer.headers.get("Content-Type", ""))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            name = worker.name if worker is not None else "nats-server"
            raise _Unreachable(f"{name} does not answer: {error or type(error).__name__}") from None


def _relayed(answer: _Answer) -> web.Response:
    return web.Response(status=answer.status, body=answer.body,
                        headers={"Content-Type": answer.kind, "Access-Control-Allow-Origin": "*"})


def _json(page: Any) -> web.Response:
    return web.Response(body=json.dumps(page, indent=2, ensure_ascii=False).encode(errors="replace"),
                        headers={"Content-Type": "application/json", "Access-Control-Allow-Origin": "*"})


def _added(pages: Iterable[Mapping[str, Any]], greatest: frozenset[str] = _GREATEST) -> dict[str, Any]:
    """Add up pages member by member: numbers are added, maps and rows of one name too, other lists are joined."""
    total: dict[str, Any] = {}
    for page in pages:
        for key, value in page.items():
            known = total.get(key)
            if known is None:
                total[key] = value
            elif key in _KEPT or isinstance(value, str | bool):
                continue
            elif isinstance(value, Mapping):
                # Requests to the API have a total, too, which is no count of accounts.
                total[key] = _added((known, value), frozenset() if key == "api" else greatest)
            elif isinstance(value, list):
                total[key] = _joined(known, value)
            elif isinstance(value, int | float):
                # -1 stands for no limit.
                total[key] = (-1 if -1 in (known, value) else max(known, value) if key in greatest
                              else known + value)
    return total


def _joined(known: list[Any], value: list[Any]) -> list[Any]:
    rows: dict[Any, Any] = {}
    for number, row in enumerate((*known, *value)):
        name = row.get("name") if isinstance(row, Mapping) else None
        key = name if name is not None else number
        rows[key] = _added((rows[key], row)) if key in rows else row
    return list(rows.values())
