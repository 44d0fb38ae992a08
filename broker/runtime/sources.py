"""The data of the monitoring pages, read from the running parts when a page is requested."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker import COMPILED, JETSTREAM_API_LEVEL, __version__
from broker.base.clock import Clock
from broker.base.gotime import format_time
from broker.config.kinds import SYNC_INTERVAL_NS
from broker.config.settings import ServerLimits, Settings, WebSocketSettings
from broker.monitor.views import AccountView, Health, JetStreamAccount, JetStreamView, Sample, Views
from broker.runtime import samples
from broker.runtime.account_views import account_view
from broker.runtime.loop_lag import LoopLag
from broker.runtime.process_figures import Cpu, resident_bytes
from broker.server.overview import certificates_of, connections, subscriptions_of, subsz_rows
from broker.server.server import Server

if TYPE_CHECKING:
    from broker.jetstream.engine import JetStream
    from broker.runtime.own_shards import OwnShards
    from broker.runtime.shard_set import ShardSet
    from broker.runtime.store_host import StoreHost
    from broker.streaming.gateway import Gateway
    from broker.streaming.pages import StreamingPages
    from broker.upstreams.upstreams import Upstreams

__all__ = ["Parts", "Sources"]

_UNBOUNDED: Final = (1 << 63) - 1
"""The number that stands for "no limit" on the pages."""


class Parts(Protocol):
    """The parts of the running broker that the pages show."""

    clock: Clock
    settings: Settings
    server: Server
    lag: LoopLag
    jetstream: JetStream | None
    store_host: StoreHost | None
    shards: ShardSet | OwnShards | None
    gateway: Gateway | None
    streaming_pages: StreamingPages | None
    upstreams: Upstreams | None

    @property
    def serving(self) -> bool:
        """Return whether clients may connect."""

    @property
    def monitored_at(self) -> dict[str, Any]:
        """``http_host``, ``http_port`` and ``https_port`` of /varz."""


class Sources:
    """Makes ``views``, the data of all pages."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._cpu = Cpu(parts.clock)
        server = parts.server
        accounts = server.accounts
        self.views = Views(
            server_id=server.server_id, server_name=server.server_name,
            now=lambda: format_time(parts.clock.now_ns()), varz=self._varz, health=self._health,
            connections=partial(connections, server), subscriptions_of=partial(subscriptions_of, server),
            certificates_of=partial(certificates_of, server), subscriptions=partial(subsz_rows, server),
            accounts=self._accounts, system_account=accounts.system.name if accounts.system is not None else "",
            jetstream=self._jetstream, samples=self._samples, more=self._more,
            leafs=server.leafs.rows if server.leafs is not None else lambda account, subscriptions: [])

    def _more(self, path: str, query: Mapping[str, str]) -> Generator[None, None, tuple[int, Any]] | None:
        """Return a page of NATS Streaming, if its gateway is configured."""
        pages = self._parts.streaming_pages
        return None if pages is None else pages.page(path, query)

    def _samples(self) -> Iterator[Sample]:
        parts = self._parts
        yield from samples.server_samples(parts.server, parts.lag, self.views, self._health())
        if parts.store_host is not None and parts.shards is not None:
            yield from samples.storage_samples(parts.store_host, list(parts.shards))
        if parts.jetstream is not None and (view := self._jetstream()) is not None:
            yield from samples.jetstream_samples(parts.jetstream, view)
        if parts.gateway is not None:
            yield from samples.streaming_samples(parts.gateway)

    def _varz(self) -> dict[str, Any]:
        parts = self._parts
        settings = parts.settings
        page = {**parts.server.varz(), "go": f"python{sys.version_info.major}.{sys.version_info.minor}",
                "http_base_path": "/" + settings.monitoring.base_path.strip("/")
                if settings.monitoring.base_path.strip("/")
                else "", **parts.monitored_at,
                "websocket": self._websocket(settings.websocket), "mem": resident_bytes(), "cores": os.cpu_count() or 1,
                "gomaxprocs": 1, "cpu": self._cpu.percent(),
                "config_load_time": format_time(parts.server.configured_at_ns), "config_digest": settings.digest,
                "feature_flags": settings.jetstream.feature_flags()}
        if settings.server_tags:
            page["tags"] = list(settings.server_tags)
        if settings.server_metadata:
            page["metadata"] = dict(settings.server_metadata)
        if (tls := parts.server.entrance.tls) is not None:
            page["tls_cert_not_after"] = format_time(tls.not_after_ns)
        page["jetblock"] = self._own_figures()
        if parts.upstreams is not None:
            page["jetblock"]["upstreams"] = parts.upstreams.rows()
        return page

    def _websocket(self, settings: WebSocketSettings) -> dict[str, Any]:
        """Return the block about WebSocket, without unset members."""
        listener = self._parts.server.websocket
        if listener is None:
            return {}
        shown: dict[str, Any] = {
            "host": settings.host, "port": listener.port, "no_auth_user": settings.no_auth_user,
            "jwt_cookie": settings.jwt_cookie, "handshake_timeout": settings.handshake_timeout_ns,
            "auth_timeout": (settings.auth_timeout_ns or 0) / 1e9, "no_tls": settings.no_tls,
            "tls_map": settings.tls.verify_and_map, "tls_pinned_certs": list(settings.tls.pinned_certs),
            "same_origin": settings.same_origin, "allowed_origins": list(settings.allowed_origins),
            "compression": settings.compression}
        if (tls := listener.entrance.tls) is not None:
            shown["tls_cert_not_after"] = format_time(tls.not_after_ns)
        return {name: value for name, value in shown.items() if value}

    def _own_figures(self) -> dict[str, Any]:
        """Return the figures that nats-server does not have: the log, the store, the cache, the loop."""
        figures: dict[str, Any] = {
            "version": __version__, "compiled": COMPILED, "loop_lag_ms": self._parts.lag.snapshot()}
        host, shards = self._parts.store_host, self._parts.shards
        if host is not None and shards is not None:
            owner = shards.first
            figures["store"] = host.store.snapshot()
            figures["cache"] = host.cache.figures()
            if host.disk_cache is not None:
                figures["cache"]["directory"] = host.disk_cache.figures()
            figures["standby"] = shards.standby
            if owner.scrubber is not None:
                figures["scrub"] = owner.scrubber.figures()
            if owner.shard is not None:
                shard_log = owner.shard.log
                figures["log"] = {
                    "epoch": shard_log.epoch, "position": shard_log.position.number, "commits": shard_log.commit_count,
                    "commit_bytes": shard_log.commit_bytes, "tail_bytes": shard_log.tail_bytes,
                    "store_error": str(shard_log.store_error or "")}
                if (compactor := owner.shard.compactor) is not None:
                    figures["log"]["compaction"] = compactor.figures()
            owned = [one.shard for one in shards if one.shard is not None]
            if len(owned) > 1:
                figures["shards"] = [
                    {"shard": one.number, "epoch": one.log.epoch, "position": one.log.position.number,
                     "streams": len(one.state.streams), "commits": one.log.commit_count,
                     "commit_bytes": one.log.commit_bytes, "tail_bytes": one.log.tail_bytes,
                     "store_error": str(one.log.store_error or "")} for one in owned]
        return figures

    def _health(self) -> Health:
        host, shards = self._parts.store_host, self._parts.shards
        owners = () if shards is None else tuple(shards)
        if shards is not None and shards.standby:
            return Health("standby", "another broker owns the store", serving=False)
        if not self._parts.serving:
            return Health("unavailable", "starting, or stopping", serving=False)
        if host is not None and host.room.full is not None:
            return Health("unavailable", f"no messages can be stored: {host.room.full}")
        for owner in owners:
            if owner.shard is not None and owner.shard.log.lease_expired:
                return Health("unavailable", f"the store does not answer: {owner.shard.log.store_error}")
        return Health()

    def _accounts(self) -> list[AccountView]:
        server, js = self._parts.server, self._parts.jetstream
        updated = format_time(server.configured_at_ns)
        operator = server.delegation.operator
        return [account_view(account, updated, js.accounts.keys() if js is not None else (),
                             server.accounts.exchange.in_use(account.name),
                             operator.shown(account.name) if operator is not None else None)
                for account in server.accounts]

    def _jetstream(self) -> JetStreamView | None:
        js, host, shards = self._parts.jetstream, self._parts.store_host, self._parts.shards
        if js is None or host is None or shards is None:
            return None
        from broker.jetstream import overview

        stored_bytes: dict[int, int] = {}
        for owner in shards:
            if owner.shard is not None and (compactor := owner.shard.compactor) is not None:
                stored_bytes.update(compactor.stored_bytes)
        accounts = []
        for account in js.accounts.values():
            used = account.info()
            accounts.append(JetStreamAccount(
                account.name, used["memory"], used["storage"], used["reserved_memory"], used["reserved_storage"],
                account.limits.max_memory, account.limits.max_storage, account.api_total, account.api_errors,
                used["streams"], overview.consumer_count(account),
                sum(stream.msgs for stream in account.streams.values()),
                partial(overview.streams, account, stored_bytes), account.streams.__contains__,
                partial(overview.consumer_exists, account)))
        configured = js.settings
        stored = sum(account.storage for account in accounts)
        config = {"max_memory": configured.server.max_memory if configured.server.max_memory >= 0 else _UNBOUNDED,
                  "max_storage": _max_storage(configured.server.max_storage, host.store.url, stored),
                  "store_dir": host.store.url.removeprefix("file://"),
                  **_syncs(self._parts.settings.storage.sync_interval_ns),
                  **({"domain": configured.domain} if configured.domain else {}), "compress_ok": True,
                  "strict": configured.strict}
        return JetStreamView(config, _limits(configured.server), JETSTREAM_API_LEVEL, accounts,
                             [(account.name, name) for account in js.accounts.values() for name in account.offline])


def _syncs(interval_ns: int | None) -> dict[str, Any]:
    """Return the members about syncs in nats-server's form: its default interval stands beside ``sync_always``."""
    return {"sync_interval": SYNC_INTERVAL_NS,
            "sync_always": True} if interval_ns is None else {"sync_interval": interval_ns}


def _max_storage(configured: int, url: str, stored: int) -> int:
    """Return the most bytes of streams: the limit, or the room on a directory's disk; an object store has no bound."""
    if configured >= 0:
        return configured
    if url.startswith("file://"):
        try:
            return stored + shutil.disk_usage(url.removeprefix("file://")).free
        except OSError:
            pass
    return _UNBOUNDED


def _limits(limits: ServerLimits) -> dict[str, Any]:
    """Return the configured limits, by nats-server's names."""
    shown = {"max_request_batch": limits.max_request_batch, "max_ack_pending": limits.max_ack_pending,
             "max_duplicate_window": limits.duplicate_window_ns,
             "max_batch_inflight_per_stream": limits.batch_max_inflight_per_stream,
             "max_batch_inflight_total": limits.batch_max_inflight_total, "max_batch_size": limits.batch_max_msgs,
             "max_batch_timeout": limits.batch_timeout_ns}
    return {name: value for name, value in shown.items() if value > 0} | {
        "default_max_consumers": limits.default_max_consumers}
