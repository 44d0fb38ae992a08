"""Why a shard's objects could not be read, sorted by what the reader does next.

    Corrupt          these bytes are not what was written: retrying cannot help, another copy or an operator can
    VersionUnknown   a newer broker wrote them: upgrade this reader
    RecordUnknown    one record of one stream must be understood and is not: that stream is offline, the others are not
    CutOff           objects were swept while they were being read: start again from the newest root
"""

from __future__ import annotations

__all__ = ["Corrupt", "CutOff", "FormatError", "RecordUnknown", "VersionUnknown"]


class CutOff(Exception):
    """The log moved on while it was read, and something the reader relied on is gone: the object ``key``, "" for no single one."""

    def __init__(self, why: str, key: str = "") -> None:
        super().__init__(why)
        self.key = key


class FormatError(Exception):
    """Bytes of the store that this reader cannot use.

    ``name`` is the object (the last part of its key), ``section`` the part of it, ``offset`` where in the object that
    part, or the fault within it, begins.
    """

    def __init__(self, name: str, section: str, offset: int, why: str) -> None:
        super().__init__(f"{name}: {section} at byte {offset}: {why}")
        self.name = name
        self.section = section
        self.offset = offset
        self.why = why

    def __reduce__(self) -> tuple[type[FormatError], tuple[object, ...]]:
        return type(self), (self.name, self.section, self.offset, self.why)


class Corrupt(FormatError):
    """A checksum, a bound or an identity failed."""


class VersionUnknown(FormatError):
    """Intact, but of a version, codec or cipher that is newer than this reader."""


class RecordUnknown(VersionUnknown):
    """An intact record with the must-understand bit, of a kind or version that this reader does not know."""

    def __init__(self, name: str, section: str, offset: int, why: str, stream_id: int, kind: int, version: int) -> None:
        super().__init__(name, section, offset, why)
        self.stream_id = stream_id
        self.kind = kind
        self.version = version

    def __reduce__(self) -> tuple[type[FormatError], tuple[object, ...]]:
        return type(self), (self.name, self.section, self.offset, self.why, self.stream_id, self.kind, self.version)
