"""The answers of a broker to the questions of others about its shards (``peers``).

    to the owner of the stream's shard    show: one stream's info    infos: several    usage: of an account
    to the owner of a stream that moves   expect: is the new owner ready    release: what the old one holds
                                          stay: give the move up    why: the reason for giving it up
    to the owner of shard 0               update    delete    gone: wait until a deleted stream's name is free
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.owners.follower import Follower
    from broker.jetstream.owners.moves import Moves
    from broker.jetstream.owners.writer import Writer
    from broker.jetstream.shard_streams import ShardStreams
    from broker.jetstream.stream.stream import Stream

__all__ = ["Answers"]


class Answers:
    """Answers questions about ``shards``, those of this broker.

    Args: ``flushed(account)`` returns once the other servers know what this broker subscribes to in the account;
        ``show`` returns the members of a StreamInfo.
    """

    def __init__(self, shards: Mapping[int, ShardStreams], accounts: Mapping[str, Account], follower: Follower,
                 writer: Writer, moves: Moves, *, flushed: Callable[[str], Coroutine[Any, Any, None]],
                 show: Callable[[Account, Stream], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        self._shards = shards
        self._accounts = accounts
        self._follower = follower
        self._writer = writer
        self._moves = moves
        self._flushed = flushed
        self._show = show

    async def answer(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a question to the owner of a shard.

        Raises: ApiError; Fenced, StoreError: the shard is lost; KeyError, TypeError: the question is not understood.
        """
        shard = self._shards.get(number)
        if shard is None or not shard.available:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)  # another broker may own it
        match question["do"]:
            case "show":
                return await self._answer_show(number, question)
            case "infos":
                return await self._answer_infos(question)
            case "usage":
                account = self._accounts.get(question["account"])
                return {} if account is None else account.usage_of(shard.log)
            case "expect":
                return await self._answer_expect(question["id"])
            case "release":
                return await self._moves.departures.release(question["id"])
            case "why":
                return {"why": self._moves.departures.why_stays.get(question["id"])}
            case "stay":
                return await self._answer_stay(question["id"])
        if number or not self._writer.ready:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        try:
            match question["do"]:
                case "gone":
                    await self._writer.until_gone(question["id"])
                case "delete":
                    await self._writer.delete_elsewhere(question["id"])
                case "update":
                    await self._writer.update_elsewhere(question["id"], question["config"])
        except ApiError:
            await shard.log.persisted()  # what the refusal shows is stored, and this broker still owns the shard
            raise
        return {}

    async def _answer_show(self, number: int, question: dict[str, Any]) -> dict[str, Any]:
        """Show a stream of one of our shards, once the other servers know that it serves."""
        account = self._accounts.get(question["account"])
        if account is None:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)

        shard = self._shards.get(number)

        def served() -> bool:
            stream = account.streams.get(question["name"])
            return self._shards.get(number) is not shard or (
                stream is not None and stream.stream_id == question["id"])

        self._follower.wake()
        await self._follower.until(served)
        if shard is None or self._shards.get(number) is not shard:
            raise ApiError(ApiErrors.CLUSTER_NOT_AVAIL)
        stream = account.stream(question["name"])
        await shard.log.persisted()
        await self._flushed(account.name)
        return {"info": await self._show(account, stream)}

    async def _answer_expect(self, stream_id: int) -> dict[str, Any]:
        """Answer once this broker has read what a stream that comes has so far. Raises: ApiError 10008."""
        arrivals = self._moves.arrivals
        self._follower.wake()
        await self._follower.until(lambda: arrivals.expects(stream_id))
        await arrivals.read_once(stream_id)
        return {}

    async def _answer_stay(self, stream_id: int) -> dict[str, Any]:
        """Give the move of a stream of one of our shards up. Raises: ApiError 10008: it has left."""
        def moves() -> bool:
            return (entry := self._follower.seen.get(stream_id)) is not None and entry.to is not None

        await self._follower.until(moves)
        await self._moves.departures.give_up(self._follower.seen[stream_id])
        return {}

    async def _answer_infos(self, question: dict[str, Any]) -> dict[str, Any]:
        account = self._accounts.get(question["account"])
        infos = []
        for name in question["names"]:
            if account is not None and (stream := account.streams.get(name)) is not None:
                infos.append(await self._show(account, stream))
        return {"infos": infos}
