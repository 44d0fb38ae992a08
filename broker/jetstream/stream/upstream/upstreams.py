"""The mirrors and sources of one account's streams, according to the streams' configurations."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from broker.jetstream.stream.upstream.follower import Follower, Target
    from broker.jetstream.stream.upstream.follower_parts import FollowerParts

__all__ = ["External", "Upstreams"]

_AT_ONCE: Final = 256
"""Sources started or stopped in one step: about 5 ms."""

_MIRROR = ""
"""A mirror's key among the followers of its stream: no source has this name."""


class External(Protocol):
    """The followers, in all accounts, whose origins are given with ``external``."""

    def add(self, follower: Follower) -> None: ...
    def discard(self, follower: Follower) -> None: ...
    def changed(self, name: str) -> None: ...


class Upstreams:
    """The followers of one account's streams."""

    def __init__(self, parts: FollowerParts, external: External) -> None:
        self._parts = parts
        self._external = external
        self._followers: dict[str, dict[str, Follower]] = {}
        self._by_origin: dict[str, dict[Follower, str]] = {}
        """Name of an origin → follower → name of the stream that copies it."""

    def configure(self, stream: Target) -> Generator[None, None, None]:
        """Follow the streams that the configuration names, and no others. Unchanged sources continue undisturbed.

        The generator yields between two steps of long work; it ends early if the stream is deleted between them.
        """
        from broker.jetstream.config.upstream_rules import source_name
        from broker.jetstream.stream.upstream.mirror import Mirror
        from broker.jetstream.stream.upstream.source import Source

        config, followers = stream.config, self._followers.setdefault(stream.name, {})
        wanted = {source_name(source): source for source in config.sources if source is not None}
        if config.mirror is not None:
            wanted = {_MIRROR: config.mirror}
        outdated = [name for name in followers if name not in wanted or followers[name].given != wanted[name]]
        for at, name in enumerate((*outdated, *wanted), 1):
            if at <= len(outdated):
                self._stop_follower(followers.pop(name))
            elif name not in followers:
                given = wanted[name]
                follower = followers[name] = (Source if name else Mirror)(stream, given, self._parts)
                self._by_origin.setdefault(given.name, {})[follower] = stream.name
                if given.external is not None:
                    self._external.add(follower)
            if at % _AT_ONCE == 0:
                yield
                if self._followers.get(stream.name) is not followers:
                    return
        if not followers:
            del self._followers[stream.name]

    def stop(self, name: str) -> Generator[None, None, None]:
        """Stop the mirror or sources of a deleted stream. Completed even if the generator is closed."""
        followers = list(self._followers.pop(name, {}).values())
        try:
            while followers:
                for follower in followers[-_AT_ONCE:]:
                    self._stop_follower(follower)
                del followers[-_AT_ONCE:]
                if followers:
                    yield
        finally:
            for follower in followers:
                self._stop_follower(follower)

    def stop_all(self) -> None:
        """Stop all mirrors and sources."""
        for name in list(self._followers):
            for _ in self.stop(name):
                pass

    def changed(self, name: str) -> None:
        """Wake the followers of a stream of that name, which was created or removed, so that they find it again."""
        for follower in self._by_origin.get(name, ()):
            follower.wake()
        self._external.changed(name)

    def read_again(self, origin: str) -> None:
        """Let the followers of a stream, of which messages were erased, drop what they have not stored yet."""
        for follower in self._by_origin.get(origin, ()):
            follower.read_again()

    def info(self, stream: Target) -> dict[str, Any]:
        """Return the members of a stream's info: its mirror, or its sources. May be called in a thread."""
        followers = dict(self._followers.get(stream.name, {}))
        if _MIRROR in followers:
            return {"mirror": followers[_MIRROR].info()}
        return {"sources": [follower.info() for follower in followers.values()]} if followers else {}

    def mirror_of(self, name: str) -> str | None:
        """Return the name of a stream that mirrors ``name``, or None."""
        from broker.jetstream.stream.upstream.mirror import Mirror

        for follower, stream in self._by_origin.get(name, {}).items():
            if isinstance(follower, Mirror) and follower.given.external is None:
                return stream
        return None

    def _stop_follower(self, follower: Follower) -> None:
        follower.stop()
        self._external.discard(follower)
        others = self._by_origin[follower.given.name]
        del others[follower]
        if not others:
            del self._by_origin[follower.given.name]
