"""Carries out an erasure, by a running broker or by one in this process, and returns the report without a signature."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from broker.base.output import count
from broker.client.connection import Connection, Login, connect
from broker.erasure import report as reports
from broker.erasure.request import Choice, Followed, follow, known_ones, request, request_all, shred
from broker.erasure.verify import Verified, old_versions, verify_store
from broker.storage.keys.reading import use_keys_of_url
from broker.storage.objectstore import ObjectStore, open_store
from broker.storage.objectstore.base import OldVersion

__all__ = ["Target", "carry_out", "delete_versions", "kept_by", "look", "versions_line"]

_UNCOVERED: Final = (
    "backups and copies of the store that were made before: name them with --backup, or run --verify on each",
    "streams of other accounts and servers that copied the messages, and what clients keep",
    "blocks of the disk or of the service below the store that were freed and not yet overwritten",
)
_VERSIONS: Final = ("{count} old versions of deleted objects are in the bucket, which keeps versions, and may have the "
                    "messages: delete them with --delete-versions, or let a lifecycle rule of the bucket expire "
                    "noncurrent versions")
_DAMAGED: Final = ("{key}: it may have the messages, and is damaged: {why}: stop the broker, run `jetblock fsck "
                   "--repair` on the store, and erase again")
_UNOWNED: Final = ("shard {shard}, which stream {stream} has left: no broker owns it now; its objects may have the "
                   "messages, and the broker that takes it erases them: run --verify then")
_ELSEWHERE: Final = ("stream {name}, which copies from a stream of this name by the API of another account or server: "
                     "if that leads to this stream, erase there, too")

Show = Callable[[str, int, int], object]
"""Receives what is done now, how much of it is done, and how much it is in all; 0: not known."""


@dataclass(frozen=True)
class Target:
    """The stream, and who erases: the broker at ``login``, or without one this process on ``store``.

    ``grace`` is how many seconds replaced objects stay in ``store``. ``backups`` are looked into afterwards.
    """

    stream: str
    store: str = ""
    login: Login | None = None
    account: str = ""
    grace: float = 0.0
    delete_versions: bool = False
    backups: Sequence[str] = ()


async def carry_out(target: Target, choice: Choice | None, show: Show, *,
                    known: Mapping[str, int] = MappingProxyType({}), asks: Callable[[], object] = lambda: None,
                    requested: Callable[[str, int], object] = lambda _id, _messages: None) -> dict[str, Any]:
    """Erase the chosen messages, or without a choice all of them, and then the stream and its key.

    Args: ``known`` has the ids of erasures that an interrupted call requested, with the numbers of messages that they
        removed: the report is about these, too. ``asks`` is called before each request of this call, and ``requested``
        receives the id and the number of its answer.

    Raises: ApiRefusal; ConnectionFailed; StoreError; FormatError; KeyMissing.
    """
    async with AsyncExitStack() as stack:
        connection, shown = await _connect(target, stack)
        elsewhere, unreadable = set[str](), dict[str, str]()
        ids, messages = (await request_all(connection, target.stream) if choice is None else
                         await request(connection, target.stream, choice, asks, requested, elsewhere.add,
                                       unreadable.__setitem__))
        ids = [*await known_ones(connection, target.stream, [*known]), *ids]
        done = await follow(connection, target.stream, ids, messages + sum(known.values()),
                            lambda what, some, of: show(f"{target.stream}: {what}", some, of))
        key = str((await shred(connection, target.stream))["key"]) if choice is None else ""
    report = _report(target, shown, choice, done, key)
    report["not_erased"] += [_DAMAGED.format(key=key, why=why) for key, why in unreadable.items()
                             if key not in done.damaged]
    report["not_covered"] += [_ELSEWHERE.format(name=name) for name in sorted(elsewhere)]
    if target.login is not None:
        report["not_covered"].append("old versions of deleted objects, if the bucket keeps versions: run --verify with "
                                     "the store")
    else:
        versions = await _versions(target.store, report)
        if target.delete_versions:
            await delete_versions(target.store, versions)
            versions = []
        report["not_erased"] += versions_line(versions)
    for url in target.backups:
        report["not_erased"] += kept_by(url, await look(url, report, show))
    return report


async def _connect(target: Target, stack: AsyncExitStack) -> tuple[Connection, str]:
    """Connect to the running broker, or to one on the store in this process. Raises: ConnectionFailed."""
    if target.login is not None:
        connection = await connect(target.login, name="jetblock erase")
        stack.push_async_callback(connection.close)
        return connection, target.login.shown
    from broker.runtime.inside import InsideBroker

    inside = InsideBroker(target.store, (target.account,), "jetblock-erase", settings={
        "storage.reader_grace_ns": int(target.grace * 1e9), "storage.erase_delay_ns": 0, "storage.compaction_cpu": 100,
        "storage.compaction_bytes_per_second": 1 << 30}, remedy="let it erase, with --server URL, or stop it")
    await inside.start()
    stack.push_async_callback(inside.stop)
    connection = await inside.connect(target.account)
    stack.push_async_callback(connection.close)
    return connection, target.store


def _report(target: Target, shown: str, choice: Choice | None, done: Followed, key: str) -> dict[str, Any]:
    return {"format": reports.FORMAT, "made": done.made, "store": shown, "account": target.account or "$G",
            "stream": target.stream, "erasure": ",".join(done.erasures),
            "chosen_by": "the whole stream, which was deleted" if choice is None else choice.kind, "key": key,
            "messages": done.messages, "requested": done.requested, "due": done.due, "done": done.done,
            "written": datetime.now(UTC).isoformat(timespec="seconds"), "streams": done.streams,
            "deleted": [one for one in done.deleted if one["key"] not in done.damaged],
            "not_erased": [*(_DAMAGED.format(key=key, why=why) for key, why in done.damaged.items()),
                           *(_UNOWNED.format(stream=stream, shard=shard) for stream, shard in done.unowned)],
            "not_covered": list(_UNCOVERED)}


async def look(url: str, report: dict[str, Any], show: Show) -> Verified:
    """Look for erased messages in a store. Raises: StoreError; FormatError; BadReport; KeyMissing."""
    store = await _open(url)
    try:
        return await verify_store(store, report, lambda objects: show(url, objects, 0))
    finally:
        await store.close()


async def _open(url: str) -> ObjectStore:
    store = open_store(url, read_only=True)
    await asyncio.to_thread(use_keys_of_url, url)
    return store


async def _versions(url: str, report: dict[str, Any]) -> list[OldVersion]:
    store = open_store(url, read_only=True)
    try:
        return await old_versions(store, report)
    finally:
        await store.close()


async def delete_versions(url: str, versions: list[OldVersion]) -> None:
    """Delete old versions of objects. Raises: StoreError."""
    store = open_store(url)
    try:
        for one in versions:
            await store.delete_version(one.key, one.version)
    finally:
        await store.close()


def versions_line(versions: list[OldVersion]) -> list[str]:
    """Return why old versions are not erased; an empty list without any."""
    kept = sum(not one.marks for one in versions)
    return [_VERSIONS.format(count=count(kept))] if kept else []


def kept_by(url: str, found: Verified) -> list[str]:
    """Return what a report says about a backup; an empty list if it has no erased messages."""
    if not found.holding:
        return []
    return [f"{url}: this backup has erased messages, in {count(len(found.holding))} places: delete it, or restore it, "
            f"erase there, and back it up again"]
