"""A run: each stream of one account is found at the target, or moved there, and checked.

    the target has               the run
    no stream of that name       moves the stream
    the same stream, whole       skips it: an earlier run moved it; with ``replace`` it is moved again if consumers have
                                 advanced at the source only
    another or older stream      does not change it, and reports a problem; ``replace`` moves an older copy again

The target takes a stream whole or not at all, so after a kill at any point the command is simply run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from broker.base.gotime import parse_time
from broker.base.progress import Progress
from broker.jetstream.archive.values import ArchivedConsumer
from broker.migration.adapt import Adapted, adapted_config, differences
from broker.migration.compare import compare
from broker.migration.consumers import advanced_consumers
from broker.migration.errors import CannotMigrate, GaveUp, StreamFailed
from broker.migration.server_source import snapshot
from broker.migration.streams import ORIGIN_KEY, Numbers, Origin, StreamToMove, in_order, origins_of
from broker.migration.target import Target

__all__ = ["PRESENT", "Choice", "Moved", "choose_streams", "move"]

_TRIES = 3
MOVED, PRESENT, FAILED = "moved", "there before", "failed"


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of a run. ``lasting``: the target's broker ends with the run, so all state must be stored."""

    consumers: bool = True
    replace: bool = False
    memory_to_file: bool = False
    verify: bool = False
    lasting: bool = False


@dataclass(slots=True)
class Moved:
    """The outcome for one stream. ``verified``: the number of messages that were compared and are the same."""

    account: str
    name: str
    status: str = FAILED
    numbers: Numbers = field(default_factory=Numbers)
    consumers: int = 0
    seconds: float = 0.0
    verified: int | None = None
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"account": self.account, "stream": self.name, "status": self.status, **self.numbers.to_json(),
                "consumers": self.consumers, "seconds": round(self.seconds, 3), "verified": self.verified,
                "notes": self.notes, "problems": self.problems}


async def choose_streams(origin: Origin, names: Collection[str]) -> list[StreamToMove]:
    """Return the streams of these names, or all streams, in the order of moving. Raises: CannotMigrate."""
    streams = in_order(await origin.streams())
    known = {stream.name for stream in streams}
    if unknown := [name for name in names if name not in known]:
        raise CannotMigrate(f"{origin.shown} has no stream {unknown[0]}; it has {', '.join(sorted(known)) or 'none'}")
    return [stream for stream in streams if not names or stream.name in names]


async def move(account: str, origin: Origin, streams: Sequence[StreamToMove], target: Target, choice: Choice,
               progress: Progress, report: Callable[[Moved], object]) -> None:
    """Move these streams; call ``report`` with the outcome for each.

    Raises: CannotMigrate; the streams that were reported before are at the target.
    """
    names = {stream.name for stream in streams}
    for stream in streams:
        done = Moved(account, stream.name, notes=stream.notes)
        began = time.monotonic()
        try:
            await _Move(stream, origin, target, choice, progress, done, names).run()
        except StreamFailed as error:
            done.status = FAILED
            done.problems.append(str(error))
        done.problems += dict.fromkeys(stream.problems)
        done.notes = list(dict.fromkeys(done.notes))
        done.seconds = time.monotonic() - began
        report(done)


class _Move:
    """The move of one stream."""

    def __init__(self, stream: StreamToMove, origin: Origin, target: Target, choice: Choice, progress: Progress,
                 done: Moved, names: set[str]) -> None:
        self._stream = stream
        self._origin = origin
        self._target = target
        self._choice = choice
        self._progress = progress
        self._done = done
        self._names = names

    async def run(self) -> None:
        """Move the stream, if the target does not have it, and check it. Raises: StreamFailed; CannotMigrate."""
        stream, done, choice = self._stream, self._done, self._choice
        if stream.unreadable:
            raise StreamFailed(stream.unreadable)
        if stream.config.get("storage") == "memory" and choice.lasting and not choice.memory_to_file:
            raise StreamFailed("its messages are in memory, and would not be in the store; give --memory-to-file to "
                               "store them")
        config = adapted_config(stream, memory_to_file=choice.memory_to_file)
        there = await self._target.find(stream.name)
        if there is not None and not await self._delete_older(there, config):
            done.status = PRESENT
            done.numbers = Numbers.of(there["state"])
            done.consumers = int(there["state"].get("consumer_count", 0))
            wanted = stream.numbers
        else:
            wanted = await self._restore_again(config)
            done.status = MOVED
        if choice.verify:
            await self._compare(config, wanted)

    async def _delete_older(self, there: dict[str, Any], config: dict[str, Any]) -> bool:
        """Delete the target's stream of the same name if it must be moved again; return True if it was deleted.

        Args: there: the info of that stream; config: the configuration that it should have.
        Raises: StreamFailed; CannotMigrate.
        """
        stream, found = self._stream, Numbers.of(there["state"])
        same = not stream.created or parse_time(stream.created) == parse_time(str(there.get("created", "")))
        # A target that is no jetblock, or an older one, does not keep the time of creation. Then the figures and the
        # time of the first message decide, or, for empty streams, the configuration.
        if not same and (found != stream.numbers or stream.first_ts != there["state"].get("first_ts")
                         or (not found.messages and not _has_config(there.get("config", {}), config))):
            raise StreamFailed(f"the target has another stream of this name, created {there.get('created')}; rename or "
                               f"delete it")
        origin = config.get("metadata", {}).get(ORIGIN_KEY)
        if origin and there.get("config", {}).get("metadata", {}).get(ORIGIN_KEY) != origin:
            raise StreamFailed(f"the target has another stream of this name, {stream.name}, which was not moved from "
                               f"this source; delete it, or leave this one out")
        if _skipped_sequences(stream, found):
            found = stream.numbers
        different = differences(stream.config, stream.numbers, found)
        if not different:
            return self._choice.consumers and await self._delete_for_consumers()
        what = ", ".join(different)
        if found.last_seq > stream.numbers.last_seq:
            raise StreamFailed(f"the target has newer messages in it ({what}): it is in use there, and is left alone")
        if not self._choice.replace:
            raise StreamFailed(f"the target has it, but not as the source has it now ({what}); --replace deletes it "
                               f"there and moves it again")
        await self._target.delete(stream.name)
        return True

    async def _delete_for_consumers(self) -> bool:
        """Delete the target's stream, which has the same messages, if consumers have advanced at the source only.

        Returns: True if it was deleted. Raises: StreamFailed; CannotMigrate.
        """
        stream, done = self._stream, self._done
        here = await self._origin.consumers(stream)
        if here is None:
            return False
        there = await self._target.consumers(stream.name)
        at_source, at_target = advanced_consumers(here, there), advanced_consumers(there, here)
        if not at_source:
            return False
        what = ", ".join(f"{text} at the source" for text in at_source)
        if at_target:
            done.notes.append(f"{what}; the stream is in use at the target ({', '.join(at_target)} there), and is left "
                              f"alone")
            return False
        if not self._choice.replace:
            done.notes.append(f"{what}; --replace deletes the stream at the target and moves it again")
            return False
        await self._target.delete(stream.name)
        return True

    async def _restore_again(self, config: dict[str, Any]) -> Numbers:
        """Do the same as ``_restore``; begin again if one side waited too long for the other."""
        for _ in range(_TRIES - 1):
            try:
                return await self._restore(config)
            except GaveUp as error:
                self._progress.line(f"{self._stream.name}: {error}; trying again")
        return await self._restore(config)

    async def _restore(self, config: dict[str, Any]) -> Numbers:
        stream, done, progress = self._stream, self._done, self._progress
        adapted = Adapted(stream, time.time_ns(), lasting=self._choice.lasting)
        progress.begin()
        moved, size = 0, stream.archive_bytes

        def sent(count: int) -> None:
            nonlocal moved
            moved += count
            progress.show(f"{stream.name}: {stream.numbers.messages} messages", moved, size)

        any_origin = bool(origins := origins_of(stream.config)) and origins <= self._names
        async with aclosing(self._origin.archive(stream, consumers=self._choice.consumers)) as archive:
            done.numbers = await self._target.restore(stream, config, adapted.rewrite(archive), any_origin=any_origin,
                                                      sent=sent)
        wanted = adapted.numbers or stream.numbers
        different = differences(stream.config, wanted, done.numbers)
        if different:
            now = await self._origin.numbers(stream)
            text = f"after the move it has {', '.join(different)}"
            (done.notes if now != stream.numbers else done.problems).append(text)
        elif (now := await self._origin.numbers(stream)) != wanted and not _has_origins(config):
            done.notes.append(f"the source has changed since: last_seq {now.last_seq}, messages {now.messages}; stop "
                              f"its publishers and consumers, and run this again with --replace")
        await self._check_consumers(adapted.consumers)
        return wanted

    async def _check_consumers(self, wanted: list[ArchivedConsumer]) -> None:
        done = self._done
        there = await self._target.consumers(self._stream.name)
        done.consumers = len(there)
        for consumer in wanted:
            info = there.get(consumer.name)
            if info is None:
                brief = not consumer.config.get("durable_name")
                (done.notes if brief else done.problems).append(f"consumer {consumer.name} is not there")
                continue
            pending = len(consumer.pending) if consumer.config.get("ack_policy") != "none" else 0
            pairs = (("delivered", consumer.delivered[0], info["delivered"]["consumer_seq"]),
                     ("ack floor", consumer.ack_floor[1], info["ack_floor"]["stream_seq"]),
                     ("num_ack_pending", pending, info["num_ack_pending"]))
            done.notes += [f"consumer {consumer.name} has {name} {found} instead of {was}"
                           for name, was, found in pairs if found != was]

    async def _compare(self, config: dict[str, Any], wanted: Numbers) -> None:
        stream, done = self._stream, self._done
        async with (aclosing(self._origin.archive(stream, consumers=False)) as here,
                    aclosing(snapshot(self._target.connection, stream.name, consumers=False)) as there):
            compared = await compare(here, there)
        done.verified = compared.same
        may_expire = bool(config.get("max_age") or config.get("allow_msg_ttl")
                      or config.get("retention", "limits") != "limits")
        if compared.differing or (compared.missing and not may_expire):
            now = await self._origin.numbers(stream)
            # Messages that were published after the move are missing, too; there is a note about them already.
            if compared.differing or now.last_seq == wanted.last_seq:
                done.problems += compared.different
        elif compared.missing:
            done.notes.append(f"{compared.missing} messages have expired or were acked since")
        if compared.added and not _has_origins(config):
            done.notes.append(f"{compared.added} messages are no longer at the source")


def _skipped_sequences(stream: StreamToMove, found: Numbers) -> bool:
    """Return True if the target has the same messages and has only skipped sequences after them.

    An owner skips sequences when it loads a stream that acknowledges before it stores: the former owner may have
    acknowledged them.
    """
    was = stream.numbers
    return (stream.config.get("persist_mode") == "async" and found.last_seq > was.last_seq
            and (found.messages, found.bytes) == (was.messages, was.bytes)
            and (not was.messages or found.first_seq == was.first_seq))


def _has_origins(config: dict[str, Any]) -> bool:
    return bool(config.get("mirror") or config.get("sources"))


def _has_config(found: dict[str, Any], config: dict[str, Any]) -> bool:
    return all(found.get(key) == value for key, value in config.items() if key != "metadata")
