"""A stream that is in a shard of another broker, as the owner of shard 0 knows it from the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.jetstream.wire.errors import ApiError

if TYPE_CHECKING:
    from broker.jetstream.config.stream import StreamConfig
    from broker.storage.format.records.catalogue import CatalogueEntry

__all__ = ["ElsewhereStream", "config_of"]


class ElsewhereStream(NamedTuple):
    """The stream's entry, and its configuration."""

    entry: CatalogueEntry
    config: StreamConfig


def config_of(entry: CatalogueEntry) -> StreamConfig:
    """Return the configuration in an entry; of one that this version cannot read, the name and subjects only."""
    from broker.jetstream.config.stream import StreamConfig

    try:
        return StreamConfig.from_json(entry.config)
    except ApiError:
        return StreamConfig(name=entry.name, subjects=list(entry.config.get("subjects") or ()))
