"""``Nats-Request-Info``: a header that describes the requester to a service.

    {"acc":"B","rtt":310201}                                   always
    {"start":…,"host":…,"id":7,"acc":"B","user":…,…}           if the import shares it
    {"start":…,"id":3,"acc":"B","server":…,"kind":"Account"}   if it shares it, for a message of the broker itself

A request that comes through a second import keeps the first import's header, which then names the account between as
``svc``.

Source: nats-server, server/client.go (processServiceImport, getClientInfo).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from broker.base.gojson.encoding import marshal
from broker.protocol import headers
from broker.server.routing.subscription import Source

__all__ = ["REQUEST_INFO", "OwnClient", "describe", "with_info", "with_service"]

REQUEST_INFO: Final = b"Nats-Request-Info"
_SERVER: Final = ("server", "cluster")
_ORDER: Final = ("start", "host", "id", "acc", "svc", "user", "name", "lang", "ver", "rtt", *_SERVER)


class OwnClient:
    """The client by which the broker itself publishes in one account: trace events, latencies, advisories.

    ``make`` returns its start, id and server. It is called once, when these are first needed.
    """

    rtt_ns = 0

    def __init__(self, account: str, make: Callable[[], dict[str, Any]]) -> None:
        self._account = account
        self._make = make

    @cached_property
    def _identity(self) -> dict[str, Any]:
        return self._make() | {"acc": self._account, "kind": "Account"}

    def identity(self) -> dict[str, Any]:
        """Return the members that an import with ``share`` shows."""
        return {name: self._identity[name] for name in sorted(self._identity, key=_place)}


def describe(source: Source | None, own: OwnClient, account: str, *, share: bool) -> bytes:
    """Return the header's value for a request of ``source``, a client in ``account``.

    ``source`` is None for a request of the broker itself, whose client is ``own``.
    """
    if share:
        return _json((source or own).identity())
    return _json({"acc": account} if source is None else {"acc": account, "rtt": source.rtt_ns})


def with_info(block: bytes, info: bytes) -> bytes:
    """Return the header ``block`` with ``info``, instead of any such header from the client itself."""
    if not block:
        return b"NATS/1.0\r\nNats-Request-Info: %b\r\n\r\n" % info
    if REQUEST_INFO in block:
        block = headers.remove(block, REQUEST_INFO) or headers.build()
    return b"%bNats-Request-Info: %b\r\n\r\n" % (block[:-2], info)


def with_service(block: bytes, account: str, source: Source | OwnClient, *, share: bool) -> bytes | None:
    """Return the value in ``block`` after another import, by ``account``; None if ``block`` has no readable value."""
    try:
        info: Any = json.loads(headers.get(block, REQUEST_INFO) or b"")
    except ValueError:
        return None
    if not isinstance(info, dict):
        return None
    info["svc"] = account
    if share:
        known = source.identity()
        info |= {name: known[name] for name in _SERVER if name in known}
    return _json({name: info[name] for name in sorted(info, key=_place)})


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _json(info: dict[str, Any]) -> bytes:
    # Go's encoder writes no newline, so the value stays on one line whatever name a client has.
    return marshal(info)
