"""The operations of a client that are no messages, as values.

They are apart from the parser because that module may be compiled, and a compiled class has no slots to compare.
"""

from __future__ import annotations

__all__ = ["Connect", "Err", "Ping", "Pong", "Sub", "Unsub"]


class _Value:
    """Base of operations: equality and display by slots, for tests."""

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__slots__)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"


class Connect(_Value):
    """A CONNECT; ``arg`` is the JSON text as received."""

    __slots__ = ("arg",)

    def __init__(self, arg: bytes) -> None:
        self.arg = arg


class Sub(_Value):
    """A SUB; ``queue`` is b"" for a plain subscription."""

    __slots__ = ("queue", "sid", "subject")

    def __init__(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        self.subject = subject
        self.queue = queue
        self.sid = sid


class Unsub(_Value):
    """An UNSUB; ``max`` is -1 if there is none."""

    __slots__ = ("max", "sid")

    def __init__(self, sid: bytes, max: int) -> None:
        self.sid = sid
        self.max = max


class Ping(_Value):
    __slots__ = ()


class Pong(_Value):
    __slots__ = ()


class Err(_Value):
    """An error that the client reports; the server closes the connection."""

    __slots__ = ("arg",)

    def __init__(self, arg: bytes) -> None:
        self.arg = arg
