"""Restoring stored streams and consumers: reads their configurations, opens their consumers.

A stream whose configuration this version cannot serve, such as a newer version's, becomes an ``OfflineStream``: it
keeps its name and subjects, and requests for it are refused with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from broker.base.backoff import Backoff
from broker.jetstream.wire.errors import ApiError
from broker.storage.format.errors import FormatError
from broker.storage.objectstore.base import StoreError

if TYPE_CHECKING:
    from broker.jetstream.config.consumer import ConsumerConfig
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.consumer.consumer import Consumer
    from broker.storage.state.stream import StreamState

__all__ = ["OfflineStream", "Openings", "stored_config", "stored_consumers"]

_log = logging.getLogger(__name__)

_DELAY_SECONDS, _DELAY_MAX_SECONDS = 1.0, 30.0


class OfflineStream(NamedTuple):
    """A stream that cannot be used: the reason, and the subjects that it keeps."""

    reason: str
    subjects: list[str]


def stored_config(state: StreamState) -> StreamConfig | None:
    """Return the stream's configuration. None: the stream is offline, and ``state.offline`` is the reason."""
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.config.stream_rules import check_supported

    if state.offline is not None:
        return None
    try:
        config = StreamConfig.from_json(state.config)
        check_supported(config)
    except ApiError as error:
        state.offline = error.description
        return None
    return config


def stored_consumers(state: StreamState) -> dict[str, ConsumerConfig]:
    """Return the configurations of the stream's consumers by name, without those that this version cannot serve."""
    from broker.jetstream.config.consumer import ConsumerConfig

    configs = {}
    for name, consumer_state in state.consumers.items():
        try:
            config = ConsumerConfig.from_json(consumer_state.config)
        except ApiError as error:
            _log.error("consumer %s > %s is offline: %s", state.name, name, error)
        else:
            configs[name] = config
    return configs


class Openings:
    """The restored consumers of one account that are being opened, each by a task."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], Consumer] = {}

    def start(self, consumer: Consumer) -> asyncio.Task[None]:
        """Open a consumer. Returns: a task that is done once the consumer serves."""
        task = asyncio.get_running_loop().create_task(_open(consumer), name="open consumer")
        self._tasks[task] = consumer
        task.add_done_callback(lambda _: self._tasks.pop(task, None))
        return task

    async def cancel(self) -> None:
        """Cancel all running tasks."""
        await self.cancel_of(list(self._tasks.values()))

    async def cancel_of(self, consumers: Collection[Consumer]) -> None:
        """Cancel the tasks that open these consumers."""
        tasks = [task for task, consumer in self._tasks.items() if consumer in consumers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _open(consumer: Consumer) -> None:
    """Open a restored consumer, retrying while the store fails or the proof of owning the shard is too old."""
    backoff = Backoff(_DELAY_SECONDS, _DELAY_MAX_SECONDS)
    while True:
        try:
            await consumer.open()
        except (StoreError, FormatError, ApiError) as error:
            _log.warning("consumer %s > %s waits for the store: %s", consumer.stream.name, consumer.name, error)
        except Exception:
            # Retry after any error: a consumer that never opens is useless.
            _log.exception("consumer %s > %s could not be opened", consumer.stream.name, consumer.name)
        else:
            return
        await asyncio.sleep(backoff.next())
