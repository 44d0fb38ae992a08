"""Records whose bodies are plain values, as a writer of another version or a damaged store may have them."""

from __future__ import annotations

from typing import Any

from broker.storage.format.records.body import RecordBody
from broker.storage.format.records.table import BODIES
from broker.storage.log.open_block import OpenBlock

__all__ = ["add_record"]


def add_record(block: OpenBlock[Any], kind: int, body: object, must_understand: bool = True) -> None:
    """Add a record of any ``kind``, in the version that this broker writes; ``body`` is what msgpack packs."""
    known = BODIES.get(kind)
    values = {"KIND": kind, "VERSION": 1 if known is None else known.VERSION, "MUST_UNDERSTAND": must_understand,
              "encode": lambda self: body, "decode": None}
    block.add(type("PlainBody", (RecordBody,), values)())
