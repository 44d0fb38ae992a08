"""The streams that one account serves: connects them to publishers and origins, and stops them.

    make ──> add: found by name, subscribed, following its origins ──┬── remove: it is deleted
                                                                     ├── release: another broker or shard serves it
                                                                     └── offline until the next start: it cannot store

Does not own: the streams' records in the log (changes, incoming), which configurations are allowed (admission).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.base.turns import in_turns
from broker.jetstream.account.long_work import Steps, at_once
from broker.jetstream.account.restore import OfflineStream

if TYPE_CHECKING:
    from broker.jetstream.account.consumers import Consumers
    from broker.jetstream.account.elsewhere import Elsewhere
    from broker.jetstream.account.host import Host
    from broker.jetstream.account.quota import Quota
    from broker.jetstream.account.subscriptions import Subscriptions
    from broker.jetstream.bus import Bus
    from broker.jetstream.config.stream import StreamConfig
    from broker.jetstream.consumer.consumer import Consumer
    from broker.jetstream.stream.stream import Stream
    from broker.jetstream.stream.upstream.upstreams import Upstreams
    from broker.storage.state.stream import StreamState

__all__ = ["ServedStreams"]

_log = logging.getLogger(__name__)


class ServedStreams:
    """The streams that the account ``account`` serves.

    Attributes:
        ``by_name``: the live streams; the other parts of the account read the same mapping.
        ``offline``: the streams that cannot be used, by name, with the reason.
        ``links``: the number of changes, so far, of mirrors and sources.
    """

    def __init__(self, host: Host, account: str, bus: Bus, by_name: dict[str, Stream], quota: Quota,
                 subscriptions: Subscriptions, consumers: Consumers, upstreams: Upstreams,
                 elsewhere: Elsewhere) -> None:
        self.by_name = by_name
        self.offline: dict[str, OfflineStream] = {}
        self.links = 0
        self._host = host
        self._account = account
        self._bus = bus
        self._quota = quota
        self._subscriptions = subscriptions
        self._consumers = consumers
        self._upstreams = upstreams
        self._elsewhere = elsewhere

    def make(self, config: StreamConfig, state: StreamState | None = None, created_ns: int | None = None,
             shard: int = 0, stream_id: int | None = None) -> Stream:
        """Make a live stream (see ``Host.make_stream``) with room for its consumers."""
        consumers: dict[str, Consumer] = {}
        stream = self._host.make_stream(self._account, self._bus, config, state, created_ns, listeners=consumers,
                                        usage=self._quota.usage(config.storage), shard=shard, stream_id=stream_id)
        self._consumers.add_stream(stream, consumers)
        return stream

    def add(self, stream: Stream) -> Steps:
        """Add a stream, whose subjects are claimed. The first step adds it; the others connect it."""
        self.by_name[stream.name] = stream
        self._elsewhere.forget(stream.name, stream.stream_id, stream.config.subjects_bytes)
        if (subscribe_api := self._host.subscribe_api) is not None:
            self._subscriptions.subscribe_api(stream, subscribe_api(self._account))
        stream.on_failed = self._drop_failed
        self.links += stream.config.follows
        yield from self.connect(stream)
        self._upstreams.changed(stream.name)

    def add_anyway(self, stream: Stream) -> Steps:
        """Claim a stream's subjects, even if they overlap those of other streams, and add it."""
        self._subscriptions.claim_anyway(stream.name, stream.config.subjects_bytes)
        yield from self.add(stream)

    def connect(self, stream: Stream) -> Steps:
        """Subscribe to the stream's subjects, and start its mirror or sources."""
        yield from self._subscriptions.subscribe(stream)
        if self.by_name.get(stream.name) is stream:
            yield from self._upstreams.configure(stream)

    async def disconnect_to_delete(self, stream: Stream) -> list[str]:
        """Disconnect a stream from publishers and origins, and delete its consumers. Returns: their names."""
        await in_turns(self._subscriptions.unsubscribe(stream))
        await in_turns(self._upstreams.stop(stream.name))
        return await self._consumers.delete_all(stream)

    def remove(self, stream: Stream) -> None:
        """Remove a stream whose deletion is recorded."""
        del self.by_name[stream.name]
        self._subscriptions.unsubscribe_api(stream)
        stream.close()
        stream.live.free_blocks()
        self._upstreams.changed(stream.name)

    def remove_offline(self, name: str) -> None:
        """Remove a stream that cannot be used, whose deletion is recorded."""
        del self.offline[name]
        self._upstreams.changed(name)

    def shut_down(self, stream: Stream, *, moves: bool) -> None:
        """Stop a stream's consumers, notifying waiting pull requests, and let it write its last record.

        Args: ``moves``: another broker or shard continues with the stream.
        """
        if moves:
            self._subscriptions.unsubscribe_api(stream)
            at_once(self._subscriptions.unsubscribe(stream))
        at_once(self._upstreams.stop(stream.name))
        self._consumers.shutdown(stream, moves=moves)
        stream.prepare_shutdown()
        # Write deferred changes too: a clean shutdown waits for all of them.
        stream.log.barrier(stream)

    def release(self, stream: Stream) -> None:
        """Drop a stream, if it is served, and write nothing more."""
        if self.by_name.get(stream.name) is stream:
            self.drop(stream)

    def drop(self, stream: Stream) -> None:
        """Drop a stream, however far its restoration came, and write nothing more."""
        self._disconnect(stream)
        self._consumers.stop(stream)
        self._consumers.remove_stream(stream)
        stream.close()
        stream.live.leave()
        if self.by_name.get(stream.name) is stream:
            del self.by_name[stream.name]
        self._upstreams.changed(stream.name)

    def _drop_failed(self, stream: Stream) -> None:
        """Drop a stream that can no longer store anything, until the next start, which restores what was stored."""
        reason = stream.offline or ""
        _log.error("stream %s is offline until the next start: %s", stream.name, reason)
        self._host.stream_failed(stream, reason)
        stream.close()
        if self.by_name.get(stream.name) is not stream:
            return  # deleted meanwhile; the next start restores it if the deletion could not be stored
        del self.by_name[stream.name]
        self.offline[stream.name] = OfflineStream(reason, list(stream.config.subjects))
        self._consumers.shutdown(stream)
        self._consumers.remove_stream(stream)
        self._disconnect(stream)
        self._upstreams.changed(stream.name)

    def _disconnect(self, stream: Stream) -> None:
        """Stop routing anything to a stream, at once, and free its subjects."""
        self._subscriptions.unsubscribe_api(stream)
        at_once(self._subscriptions.unsubscribe(stream))
        at_once(self._subscriptions.give_back(stream.name, stream.config.subjects_bytes))
        at_once(self._upstreams.stop(stream.name))
