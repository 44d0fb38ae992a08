"""Erasure in the shards of other brokers: the streams there that copy from one of this broker lose the messages, too.

    this broker ──┬─ STREAM.LIST ──> which streams copy from which
                  ├─ ERASE for a copy, with what was erased in its origin ──> the copy's broker, which does the same
                  └─ ERASURE for a copy ──> what became of it

The requests are those of clients, below the API that all brokers of the store answer. Nobody else needs the member
``copy_of``: the conditions of an erasure hold for copies, but its sequences mean another message there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.account.erasing import ASKED_MAX, Erased, copies_of
from broker.jetstream.config.stream import StreamConfig
from broker.jetstream.stream.upstream.link import NoAnswer, ask
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus

__all__ = ["OtherBrokers"]

_ERASE_SECONDS: Final = 3600.0
"""The longest time for a choice of messages: a header is looked for in every frame of a stream."""
_UNKNOWN: Final = ApiErrors.STREAM_MSG_DELETE_FAILED


class OtherBrokers:
    """The other brokers of the store, in one account. ``api``: the prefix of the API; ``domain``: this server's."""

    def __init__(self, bus: Bus, api: str, domain: str) -> None:
        self._bus = bus
        self._api = api
        self._domain = domain

    async def copies_of(self, name: str, own: Collection[str]) -> dict[str, str]:
        """Return the streams that copy from a stream, also by way of others, and are not among this broker's ``own``,
        each with the one that it copies from. Raises: ApiError 10008 if a broker that may have some does not answer.
        """
        configs: dict[str, StreamConfig] = {}
        async for info in self._streams():
            config = StreamConfig.from_json(info["config"])
            if config.storage != "memory":
                configs[config.name] = config
        return {copy: origin for copy, origin in copies_of(name, configs, self._domain).items() if copy not in own}

    async def _streams(self) -> AsyncIterator[dict[str, Any]]:
        offset = 0
        while True:
            answer = await self._ask("STREAM.LIST", {"offset": offset})
            if set(answer.get("missing") or ()) - set(answer.get("offline") or ()):
                raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
            for info in answer["streams"]:
                yield info
            offset += int(answer["limit"])
            if offset >= int(answer["total"]):
                return

    async def erase(self, copy: str, erased: Erased, erasure_id: str, unreadable: dict[str, str],
                    ) -> list[dict[str, Any]]:
        """Erase what was erased in the origin of a copy; return the streams in the answer. Raises: ApiError.

        Objects that cannot be read are added to ``unreadable``.
        """
        found: dict[str, dict[str, Any]] = {}
        for body in _bodies(erased):
            body |= {"erasure": erasure_id, "copy_of": erased.stream.name}
            answer = await self._ask(f"JETBLOCK.ERASE.{copy}", body, _ERASE_SECONDS)
            unreadable.update((one["key"], one["reason"]) for one in answer.get("unreadable", ()))
            for one in answer["streams"]:
                known = found.setdefault(one["stream"], {**one, "sequences": 0, "messages": 0})
                known["sequences"] += one["sequences"]
                known["messages"] += one["messages"]
        return list(found.values())

    async def erasure(self, copy: str, erasure_id: str, offset: int) -> list[dict[str, Any]]:
        """Return what became of an erasure in a copy; an empty list if it has none. Raises: ApiError."""
        body = {"erasure": erasure_id, "offset": offset, "alone": True}
        try:
            found: list[dict[str, Any]] = (await self._ask(f"JETBLOCK.ERASURE.{copy}", body))["streams"]
            return found
        except ApiError as error:
            if error.err_code != _UNKNOWN:
                raise
            return []

    async def _ask(self, subject: str, body: dict[str, Any], seconds: float = 5.0) -> dict[str, Any]:
        try:
            answer, _ = await ask(self._bus, f"{self._api}.{subject}".encode(), json.dumps(body).encode(),
                                  seconds=seconds)
        except NoAnswer:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
        if (error := answer.get("error")) is not None:
            raise ApiError.of(error["err_code"], error["description"])
        return answer


def _bodies(erased: Erased) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the requests to a copy; none if there is nothing to erase."""
    conditions, body = erased.conditions, dict[str, Any]()
    if conditions is not None and conditions.origin is None:
        body = {"subjects": [one.decode() for one in conditions.subjects.subjects] if conditions.subjects else [],
                "headers": [name.decode() + ("" if value is None else f":{value.decode()}")
                            for name, value in conditions.headers.items()],
                "ids": [one.decode() for one in conditions.ids]}
    for some in erased.seqs.parts(ASKED_MAX):
        yield {**body, "seqs": some.text()}
        body = {}
    if body:
        yield body
