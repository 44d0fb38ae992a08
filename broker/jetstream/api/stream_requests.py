"""Requests about streams that move to another shard, for the owners of both shards.

    the stream stops    its owner holds the requests that arrive
    it arrives          its next owner holds them, too, and then gets those that the other one holds
    it serves           its next owner answers all of them, each once

Does not own: pull requests, which clients repeat at once; publishes and acks (``account.held``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from broker.jetstream.api.dispatcher import Api
from broker.jetstream.api.routes import subscribe_stream

if TYPE_CHECKING:
    from broker.jetstream.api.disabled import DisabledApi
    from broker.jetstream.bus import Msg, Source

__all__ = ["HeldRequests", "StreamRequests"]

_BYTES_MAX: Final = 128 << 10
"""The bytes that are held for one stream, which fit into one answer to another broker; later requests are refused."""


class HeldRequests:
    """The requests about the stream ``name`` that arrive from now on. Call ``end`` at last."""

    def __init__(self, api: Api, name: str) -> None:
        self._api = api
        self._msgs: list[Msg] = []
        self._bytes = 0
        self._subscriptions = subscribe_stream(api.bus, api.account.domain, name, self._on_requests, pulls=False)

    def take(self) -> list[Msg]:
        """Return the requests, which are not held any more."""
        taken, self._msgs = self._msgs, []
        return taken

    def stop_listening(self) -> None:
        """Hold no more requests."""
        for subscription in self._subscriptions:
            self._api.bus.unsubscribe(subscription)
        self._subscriptions.clear()

    def end(self) -> None:
        """Hold no more requests, and refuse those that were not taken."""
        self.stop_listening()
        self._api.answer_held(self.take(), refused=True)

    def _on_requests(self, ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
        for op in ops[start:end]:
            self._bytes += len(op[0]) + len(op[1]) + len(op[3])
            if self._bytes <= _BYTES_MAX:
                self._msgs.append(op)
            else:
                self._api.answer_held([op], refused=True)


class StreamRequests:
    """The requests to the ``apis`` of all accounts, by stream."""

    def __init__(self, apis: Mapping[str, Api | DisabledApi]) -> None:
        self._apis = apis

    def waiting(self, account: str, name: str) -> bool:
        """Return whether requests about a stream are waiting or being carried out."""
        return isinstance(api := self._apis.get(account), Api) and api.serves(name)

    def hold(self, account: str, name: str) -> HeldRequests:
        """Hold the requests about a stream from now on. Raises: KeyError: the account has no JetStream."""
        api = self._apis[account]
        if not isinstance(api, Api):
            raise KeyError(account)
        return HeldRequests(api, name)

    def answer(self, account: str, msgs: Sequence[Msg]) -> None:
        """Answer requests about streams that serve here, once each, although two brokers may have held the same one."""
        if isinstance(api := self._apis.get(account), Api):
            api.answer_held(list(dict.fromkeys(msgs)), refused=False)
