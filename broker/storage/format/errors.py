"""The errors of reading a shard's objects, sorted by what the reader does next.

    Corrupt          the bytes differ from those written: retrying cannot help, another copy or an operator can
    VersionUnknown   a newer broker wrote them: upgrade this reader
    RecordUnknown    a record that must be understood is unknown: its stream is offline, others are not
    CutOff           objects were swept while they were being read: start again from the newest root
    KeyMissing       they are encrypted, and this process has no key for them: configure the key
"""

from __future__ import annotations

__all__ = ["Corrupt", "CutOff", "FormatError", "KeyMissing", "RecordUnknown", "VersionUnknown"]


class CutOff(Exception):
    """An object that the reader relied on was deleted while it read the log: ``key``, or "" for no single one."""

    def __init__(self, why: str, key: str = "") -> None:
        super().__init__(why)
        self.key = key


class KeyMissing(Exception):
    """A section is encrypted, and this process does not have its key.

    This is no FormatError: nothing is damaged, so nobody may treat the section's stream as damaged.
    """

    def __init__(self, key_id: bytes, why: str = "") -> None:
        super().__init__(why or f"it is encrypted under the data key {key_id.hex()}, and there is no key to open it: "
                                "set JETBLOCK_KEY, or jetstream { key } in a configuration")
        self.key_id = key_id
        self.why = why

    def __reduce__(self) -> tuple[type[KeyMissing], tuple[bytes, str]]:
        return type(self), (self.key_id, self.why)


class FormatError(Exception):
    """Bytes of the store that this reader cannot use.

    ``name`` is the object (the last part of its key), ``section`` the part of it. ``offset`` is where in the object
    that part, or the fault within it, begins.
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
    """A checksum, a bound or an identity does not match."""


class VersionUnknown(FormatError):
    """Intact bytes of a version, codec or cipher that is newer than this reader."""


class RecordUnknown(VersionUnknown):
    """An intact record with the must-understand bit, of a kind or version that this reader does not know."""

    def __init__(self, name: str, section: str, offset: int, why: str, stream_id: int, kind: int, version: int) -> None:
        super().__init__(name, section, offset, why)
        self.stream_id = stream_id
        self.kind = kind
        self.version = version

    def __reduce__(self) -> tuple[type[FormatError], tuple[object, ...]]:
        return type(self), (self.name, self.section, self.offset, self.why, self.stream_id, self.kind, self.version)
