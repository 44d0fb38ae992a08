"""The client's side of snapshots and restores, as the `nats` CLI speaks it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

__all__ = ["Backup", "Failed", "begin_restore", "restore", "take_snapshot"]


NOT_GONE_YET = 10049
"""The code of nats-server's "error creating store": it removes the directory of a deleted stream after answering."""


class Failed(Exception):
    """Raised if the server refused; ``error`` is the ``error`` member of its answer."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["description"])
        self.error = error


@dataclass
class Backup:
    """The result of a snapshot: the answer to the request, and the archive."""

    config: dict[str, Any]
    state: dict[str, Any]
    archive: bytes = b""
    chunks: list[int] = field(default_factory=list)
    status: str | None = None


async def api(client: Client, subject: str, body: Any = None, *, seconds: float = 30) -> dict[str, Any]:
    """Return the answer of an API request. Raises: Failed."""
    data = b"" if body is None else json.dumps(body).encode()
    while True:
        answer: dict[str, Any] = json.loads((await client.request(f"$JS.API.{subject}", data, timeout=seconds)).data)
        if "error" not in answer:
            return answer
        if answer["error"]["err_code"] != NOT_GONE_YET:
            raise Failed(answer["error"])
        await asyncio.sleep(0.05)


async def take_snapshot(client: Client, stream: str, *, acks: int = 1 << 30, **asked: Any) -> Backup:
    """Take a snapshot, answering the first ``acks`` chunks. Raises: Failed."""
    inbox = client.new_inbox()
    queue: asyncio.Queue[Msg] = asyncio.Queue()
    subscription = await client.subscribe(inbox, cb=queue.put)
    try:
        answer = await api(client, f"STREAM.SNAPSHOT.{stream}", {"deliver_subject": inbox, **asked})
        backup, parts = Backup(answer["config"], answer["state"]), []
        while (chunk := await asyncio.wait_for(queue.get(), 30)).data:
            parts.append(chunk.data)
            backup.chunks.append(len(chunk.data))
            if chunk.reply and acks:
                acks -= 1
                await client.publish(chunk.reply)
        backup.archive = b"".join(parts)
        backup.status = chunk.header.get("Status") if chunk.header else None
        return backup
    finally:
        await subscription.unsubscribe()


async def begin_restore(client: Client, backup: Backup, **changes: Any) -> str:
    """Ask for a restore with these changes of the configuration; returns where to send the chunks. Raises: Failed."""
    config = backup.config | changes
    answer = await api(client, f"STREAM.RESTORE.{config['name']}", {"config": config, "state": backup.state})
    return str(answer["deliver_subject"])


async def restore(client: Client, backup: Backup, *, chunk_bytes: int = 64 << 10, **changes: Any) -> dict[str, Any]:
    """Restore a stream; returns the stream's info. Raises: Failed."""
    to = await begin_restore(client, backup, **changes)
    for at in range(0, len(backup.archive), chunk_bytes):
        answer = await client.request(to, backup.archive[at:at + chunk_bytes], timeout=30)
        if answer.data:
            raise Failed(json.loads(answer.data)["error"])
    info: dict[str, Any] = json.loads((await client.request(to, b"", timeout=30)).data)
    if "error" in info:
        raise Failed(info["error"])
    return info
