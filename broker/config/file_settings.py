"""The result of reading a file (``broker.config.file``, which a start without a file does not import)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

__all__ = ["EMPTY", "FileSettings", "PlacedKey"]

EMPTY = "config has no values or is empty"
"""The end of the notice about a file without settings."""


class PlacedKey(str):
    """A key of a file, with its place there, for messages."""

    __slots__ = ("place",)
    place: str

    def __new__(cls, text: str, place: str) -> Self:
        key = super().__new__(cls, text)
        key.place = place
        return key


@dataclass(slots=True)
class FileSettings:
    """A file's values, by the paths of their settings; ``stores`` are the stores it names for streams."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    """``FILE:LINE:COLUMN`` by path, for errors found later."""
    stores: dict[str, str] = field(default_factory=dict)
    """Store URL by the place in the file that names it."""
    jetstream: bool | None = None
    authorization: bool = False
    """True if there is an ``authorization`` block, even an empty one."""

    notices: list[str] = field(default_factory=list)
    blocks: dict[str, Any] = field(default_factory=dict)
    """The content of the file for a nats-server in front of the broker, if there are workers."""

    digest: str = ""
    """A hash of the contents."""
