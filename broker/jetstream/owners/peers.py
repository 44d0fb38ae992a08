"""Messages between the brokers of one store: questions, and hints that something has changed.

    $JETBLOCK.SHARDS                        every broker of every store says which shards it has (docs/WORKERS.md)
    $JETBLOCK.<store>.SHARD.<k>             the owner of shard k: its interest shows that there is one, and it answers
    $JETBLOCK.<store>.SHARD.<k>.STEPDOWN    asks that owner to hand the shard over
    $JETBLOCK.<store>.BROKER.<id>           one broker: is it ready to take a shard, take it now
    $JETBLOCK.<store>.LOAD                  a hint to all, once a second: what a broker has
    $JETBLOCK.<store>.GIFT                  a hint to all: one broker seals a shard, and another is to take it
    $JETBLOCK.<store>.CATALOGUE             a hint to all: the catalogue has changed
    $JETBLOCK.<store>.APPLIED.<k>           a hint to shard 0's owner: shard k has stored what the catalogue asked for

They are in the system account, which no client of another account reaches. A message saves a wait and nothing depends
on it for safety: whoever gets one reads the store before it acts.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from broker.jetstream.stream.upstream.link import NoAnswer, ask
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError
from broker.storage.put import Fenced

if TYPE_CHECKING:
    from broker.jetstream.bus import Bus, Msg, Source, Subscription

__all__ = ["Peers"]

_log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_AT_ONCE = 4096
"""Questions that are being answered; more are dropped unanswered."""


class Peers:
    """The other brokers of a store, reached by the system account's ``bus``. ``store`` is the store's id."""

    def __init__(self, bus: Bus, store: str) -> None:
        self._bus = bus
        self._prefix = f"$JETBLOCK.{store}."
        self._tasks: set[asyncio.Task[None]] = set()

    def is_owned(self, shard: int) -> bool:
        """Return whether some broker in reach, or this one, answers for a shard."""
        return self._bus.interest(self._subject(f"SHARD.{shard}"))

    def answer(self, name: str, handler: Handler, *, of_all_stores: bool = False) -> Subscription:
        """Answer the questions that are sent to ``name``; ``of_all_stores``: those to the brokers of any store."""
        def on_questions(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
            for _, reply, hlen, body in ops[start:end]:
                if reply and len(self._tasks) < _AT_ONCE:
                    task = asyncio.get_running_loop().create_task(self._answer(handler, reply, body[hlen:]),
                                                                  name="answer another broker")
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

        subject = f"$JETBLOCK.{name}".encode() if of_all_stores else self._subject(name)
        return self._bus.subscribe(subject, on_questions)

    def listen(self, hint: str, handler: Callable[[dict[str, Any]], object]) -> Subscription:
        """Call ``handler`` for each hint of that name, with its members."""
        def on_hints(ops: Sequence[Msg], start: int, end: int, source: Source | None, now_ns: int) -> None:
            for _, _, hlen, body in ops[start:end]:
                try:
                    handler(json.loads(body[hlen:] or b"{}"))
                except (ValueError, KeyError, TypeError, AttributeError):
                    _log.warning("a hint of another broker is not understood: %r", body[:200])

        return self._bus.subscribe(self._subject(hint), on_hints)

    def end(self, subscription: Subscription) -> None:
        """End a subscription of ``answer`` or ``listen``."""
        self._bus.unsubscribe(subscription)

    def hint(self, hint: str, **members: Any) -> None:
        """Send a hint to all brokers, this one included."""
        self._bus.publish(self._subject(hint), b"", 0, json.dumps(members).encode())

    async def ask_owner(self, shard: int, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer of a shard's owner. Raises: as ``ask``."""
        return await self.ask(f"SHARD.{shard}", question, seconds)

    async def ask(self, name: str, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Return the answer to a question to ``name``. Raises: ApiError: what it says, or 10008 if nobody answers."""
        try:
            answer, _ = await ask(self._bus, self._subject(name), json.dumps(question).encode(), seconds=seconds)
        except NoAnswer as silent:
            _log.debug("%s: %s", name, silent)
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL) from None
        if (error := answer.get("error")) is not None:
            raise ApiError.of(error["err_code"], error["description"])
        return answer

    async def stop(self) -> None:
        """Answer nothing more."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, handler: Handler, reply: bytes, body: bytes) -> None:
        try:
            question = json.loads(body or b"{}")
            if not isinstance(question, dict):
                raise TypeError("the question is no JSON object")
            answer = await handler(question)
        except ApiError as error:
            answer = {"error": error.to_json()}
        except (KeyError, TypeError, ValueError):
            _log.warning("a question to this broker is not understood: %r", body[:200])
            answer = {"error": ApiError(ApiErrors.BAD_REQUEST).to_json()}
        except (Fenced, StoreError, FormatError) as error:  # the shard is lost, or the store does not answer
            _log.warning("another broker's question could not be answered: %s", error)
            answer = {"error": ApiError(ApiErrors.CLUSTER_NOT_AVAIL).to_json()}
        except Exception:
            _log.exception("another broker's question could not be answered")
            answer = {"error": ApiError(ApiErrors.CLUSTER_NOT_AVAIL).to_json()}
        self._bus.publish(reply, b"", 0, json.dumps(answer).encode())

    def _subject(self, rest: str) -> bytes:
        return (self._prefix + rest).encode()
