"""The mirrors and sources of one account's streams, as the streams' configurations name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from broker.jetstream.config.upstream_rules import source_name
from broker.jetstream.stream.upstream.follower import Follower, Target
from broker.jetstream.stream.upstream.mirror import Mirror
from broker.jetstream.stream.upstream.source import Source

if TYPE_CHECKING:
    from broker.clock import Clock
    from broker.jetstream.stream.upstream.origin import Find

__all__ = ["External", "Upstreams"]

_MIRROR = ""
"""A mirror's key among the followers of its stream: no source has this name."""


class External(Protocol):
    """The followers, in all accounts, whose origins are named with ``external``."""

    def add(self, follower: Follower) -> None: ...
    def discard(self, follower: Follower) -> None: ...
    def changed(self, name: str) -> None: ...


class Upstreams:
    """The followers of one account's streams."""

    def __init__(self, find: Find, clock: Clock, external: External) -> None:
        self._find = find
        self._clock = clock
        self._external = external
        self._followers: dict[str, dict[str, Follower]] = {}
        self._by_origin: dict[str, dict[Follower, str]] = {}
        """Name of an origin → follower → name of the stream that copies."""

    def configure(self, stream: Target) -> None:
        """Follow what the stream's configuration names, and nothing else. Unchanged sources continue undisturbed."""
        config, followers = stream.config, self._followers.pop(stream.name, {})
        wanted = {source_name(source): source for source in config.sources if source is not None}
        if config.mirror is not None:
            wanted = {_MIRROR: config.mirror}
        for name in [name for name in followers if name not in wanted or followers[name].given != wanted[name]]:
            self._stop(followers.pop(name))
        for name, given in wanted.items():
            if name not in followers:
                follower = followers[name] = (Source if name else Mirror)(stream, given, self._find, self._clock)
                self._by_origin.setdefault(given.name, {})[follower] = stream.name
                if given.external is not None:
                    self._external.add(follower)
        if followers:
            self._followers[stream.name] = followers

    def leave(self, name: str) -> None:
        """The stream is gone: stop its mirror or sources."""
        for follower in self._followers.pop(name, {}).values():
            self._stop(follower)

    def leave_all(self) -> None:
        """Stop all mirrors and sources."""
        for name in list(self._followers):
            self.leave(name)

    def changed(self, name: str) -> None:
        """A stream of that name was created or removed: followers of it look for it again."""
        for follower in self._by_origin.get(name, ()):
            follower.wake()
        self._external.changed(name)

    def info(self, stream: Target) -> dict[str, Any]:
        """Members of a stream's info: its mirror, or its sources."""
        followers = self._followers.get(stream.name, {})
        if _MIRROR in followers:
            return {"mirror": followers[_MIRROR].info()}
        return {"sources": [follower.info() for follower in followers.values()]} if followers else {}

    def mirror_of(self, name: str) -> str | None:
        """The name of a stream that mirrors ``name``, or None."""
        for follower, stream in self._by_origin.get(name, {}).items():
            if isinstance(follower, Mirror) and follower.given.external is None:
                return stream
        return None

    def _stop(self, follower: Follower) -> None:
        follower.stop()
        self._external.discard(follower)
        others = self._by_origin[follower.given.name]
        del others[follower]
        if not others:
            del self._by_origin[follower.given.name]
