"""The archives of one account that are being sent and received, each by a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from broker.jetstream.archive.values import ArchivedStream
from broker.jetstream.backup.chunks import ChunkSender
from broker.jetstream.backup.reading import StreamReader
from broker.jetstream.backup.restore import Restore, RestoreFailed, Stalled
from broker.jetstream.wire import fields as wire
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError
from broker.jetstream.wire.ids import secret_id
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.account.account import Account
    from broker.jetstream.account.incoming import Provenance
    from broker.jetstream.bus import Source
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.stream.stream import Stream

__all__ = ["CREATED", "Transfers"]

_log = logging.getLogger(__name__)

AT_ONCE: Final = 16
"""The largest number of transfers of an account: each takes some 10 MB of memory."""

CREATED: Final = "io.nats.jetstream.api.v1.stream_create_response"


class Transfers:
    """The transfers of one account."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._tasks: set[asyncio.Task[None]] = set()

    def check_room(self, err_code: int) -> None:
        """Check that another transfer may begin. Raises: ApiError ``err_code``: there are too many already."""
        if len(self._tasks) >= AT_ONCE:
            raise ApiError(err_code, err=f"{AT_ONCE} backups and restores are under way: wait until one is done")

    async def drop(self) -> None:
        """Cancel all transfers."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def snapshot(self, stream: Stream, state: dict[str, Any], source: Source | None, *, to: str, consumers: bool,
                 chunk_size: int, window_size: int) -> None:
        """Send a stream, whose current state is ``state``, to the subject ``to``,
        after the replies in the log's queue."""
        account = self._account
        sent = [one for one in account.consumers.of(stream).values() if consumers and not one.config.direct]
        numbers = ArchivedStream(state["messages"], state["bytes"], state["first_seq"], state["last_seq"],
                                 state["first_ts"], state["last_ts"], len(sent))
        reader = StreamReader(stream, numbers, sent, lambda: account.streams.get(stream.name) is stream)
        prefix = f"$JS.SNAPSHOT.ACK.{stream.name}.{secret_id()}".encode()
        sender = ChunkSender(account.bus, to.encode(), prefix, chunk_size, window_size)
        self._start(self._send(stream, state, reader, sender, _identity(source)), f"snapshot of {stream.name}")

    async def _send(self, stream: Stream, state: dict[str, Any], reader: StreamReader, sender: ChunkSender,
                    client: dict[str, Any]) -> None:
        account, start_ns = self._account, self._account.clock.now_ns()
        what, error = f"snapshot for stream '{account.name} > {stream.name}'", ""
        _log.info("starting %s", what)
        try:
            # Send the answer to the request first.
            await stream.log.persisted()
            account.events.snapshot(stream.name, state, client)
            await sender.send(reader.read())
        except asyncio.CancelledError:
            raise
        except Exception as failed:
            error = str(failed)
            _log.warning("%s failed: %s", what, error)
        else:
            _log.info("completed %s", what)
        account.events.snapshot_over(stream.name, start_ns, client, error)

    # --- restores -----------------------------------------------------------------------------------------------------

    def restore(self, config: StreamConfig, provenance: Provenance, source: Source | None,
                info: Callable[[Stream], Coroutine[Any, Any, dict[str, Any]]]) -> str:
        """Begin to restore a stream whose name is reserved; ``info`` returns the members of the answer once it exists.

        Returns: the subject where its chunks are expected.
        """
        account = self._account
        to = f"$JS.SNAPSHOT.RESTORE.{config.name}.{secret_id()}"
        restore = Restore(account, config, provenance)
        subscription = account.bus.subscribe(to.encode(), restore.on_chunks)
        client, start_ns = _identity(source), account.clock.now_ns()
        account.events.restore(config.name, client)
        _log.info("starting restore for stream '%s > %s'", account.name, config.name)

        async def receive() -> None:
            try:
                await self._receive(restore, config.name, client, start_ns, info)
            finally:
                account.bus.unsubscribe(subscription)

        self._start(receive(), f"restore of {config.name}")
        return to

    async def _receive(self, restore: Restore, name: str, client: dict[str, Any], start_ns: int,
                       info: Callable[[Stream], Coroutine[Any, Any, dict[str, Any]]]) -> None:
        account = self._account
        what = f"restore for stream '{account.name} > {name}'"
        log = account.log
        answer: dict[str, Any]
        try:
            stream = await restore.run()
            log = stream.log
            answer = await info(stream)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            account.incoming.drop(name)
            if isinstance(error, Stalled):
                _log.warning("%s", error)
                return
            if not isinstance(error, (RestoreFailed, ApiError, StoreError, FormatError)):
                _log.exception("%s failed", what)
            else:
                _log.warning("%s failed: %s", what, error)
            answer = {"error": _api_error(error).to_json()}
        else:
            _log.info("completed %s: %d bytes", what, restore.total)
        log.wait(account.events.restore_over, name, start_ns, restore.total, client)
        if restore.reply:
            log.wait(account.bus.publish, restore.reply, b"", 0, wire.dump({"type": CREATED, **answer}))


def _api_error(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, RestoreFailed):
        return ApiError(ApiErrors.STREAM_RESTORE, err=error)
    return ApiError(ApiErrors.CLUSTER_NOT_AVAIL)


def _identity(source: Source | None) -> dict[str, Any]:
    return {} if source is None else source.identity()
