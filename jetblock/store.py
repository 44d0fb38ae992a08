"""Streams as the store has them, read without a broker. An example is in docs/INSPECT.md."""

from broker.inspect.messages import Message, Missing, read_messages
from broker.storage.keys.reading import open_with_keys as open_store
from broker.storage.objectstore.base import ObjectStore
from broker.storage.read.lookup import FoundStream, find_stream
from broker.storage.read.snapshot import Snapshot, read_snapshot

__all__ = ["FoundStream", "Message", "Missing", "ObjectStore", "Snapshot", "find_stream", "open_store",
           "read_messages", "read_snapshot"]
