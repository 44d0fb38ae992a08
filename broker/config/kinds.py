"""Converting one configured value from any source to the type of its setting.

A file has typed values (``128KB`` is already an int there); the environment and the command line have text. A ``Kind``
takes both and returns the setting's type, or raises ``ValueError`` with a text that continues ``<name> ``: "must be a
duration such as 100ms …". The caller adds the value, unless it is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from broker.base.gotime import format_duration, parse_duration

__all__ = ["DEFAULT_MAX_CONSUMERS", "SYNC_INTERVAL_NS", "Kind", "boolean", "bound", "choice", "consumers",
           "duration_ns", "fingerprints", "handshake_first", "header_fields", "http_url", "integer", "limit", "name",
           "names", "networks", "origins", "parse_duration_ns", "parse_size", "port", "shard_numbers", "size",
           "sync_interval", "text"]

MASK = "[REDACTED]"
"""The text that replaces a secret wherever settings are shown. It is refused as a value: everybody would know it."""

Kind = Callable[[Any], Any]
"""Converts a configured value to the setting's value. Raises: ValueError with a description of valid values."""

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SIZE = re.compile(r"(-?\d+)\s*(?:([kmgtpe])(b|i|ib)?)?", re.IGNORECASE)
_TRUE = frozenset({"true", "yes", "on", "1", "t", "enabled", "enable"})
_FALSE = frozenset({"false", "no", "off", "0", "f", "disabled", "disable"})
_INT64_MAX = (1 << 63) - 1
_SHA256 = re.compile("[0-9a-f]{64}")
_HANDSHAKE_FIRST_AUTO_NS = 50_000_000
SYNC_INTERVAL_NS = 120_000_000_000
"""nats-server's default of ``sync_interval``."""
DEFAULT_MAX_CONSUMERS = 1000
"""nats-server's default for the consumers of a stream."""
_FIELD_NAME = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def parse_duration_ns(words: str) -> int:
    """Parse ``300ms``, ``1h30m`` or ``2`` (seconds, as in old nats-server files); return nanoseconds."""
    try:
        return parse_duration(f"{words}s" if _NUMBER.fullmatch(words) else words)
    except ValueError:
        raise ValueError("must be a duration such as 100ms, 2s, 1m30s or a number of seconds") from None


def parse_size(words: str) -> int:
    """Parse ``128KB``, ``64MiB``, ``1k`` or plain bytes; k is 1000; kb, ki and kib are 1024, as in nats-server."""
    found = _SIZE.fullmatch(words)
    if not found:
        raise ValueError("must be a size such as 64MB, 128KiB or a number of bytes")
    number, letter, rest = int(found[1]), found[2], found[3]
    if letter:
        number *= (1024 if rest else 1000) ** ("kmgtpe".index(letter.lower()) + 1)
    if not -_INT64_MAX <= number <= _INT64_MAX:
        raise ValueError("is out of range")
    return number


def _bounded(number: int, low: int | None, high: int | None, show: Callable[[int], str]) -> int:
    if (low is not None and number < low) or (high is not None and number > high):
        if low is not None and high is not None:
            raise ValueError(f"must be between {show(low)} and {show(high)}")
        raise ValueError(f"must be at least {show(low)}" if low is not None else f"must be at most {show(high or 0)}")
    return number


def integer(low: int | None = None, high: int | None = None) -> Kind:
    """A whole number within bounds, both inclusive."""
    def parse(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("must be a whole number")
        return _bounded(value, low, high, str)
    return parse


def bound(value: Any) -> int:
    """A whole number used as a limit; 0 for no limit, which may also be written -1."""
    number: int = integer(-1)(value)
    return max(number, 0)


def limit(value: Any) -> int:
    """A limit like ``bound``, but any negative number means no limit, as in nats-server's ``limits``."""
    number: int = integer()(value)
    return max(number, 0)


def consumers(value: Any) -> int:
    """A limit of consumers: 0 means nats-server's default, and a negative number no limit."""
    number: int = integer()(value)
    return number or DEFAULT_MAX_CONSUMERS


def size(low: int | None = 0, high: int | None = None) -> Kind:
    """A number of bytes; -1 if ``low`` allows it."""
    def parse(value: Any) -> int:
        if isinstance(value, str):
            value = parse_size(value.strip())
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError("must be a size such as 64MB, 128KiB or a number of bytes")
        return _bounded(value, low, high, lambda n: f"{n} bytes")
    return parse


def duration_ns(low_ns: int = 0, high_ns: int | None = None) -> Kind:
    """A duration in nanoseconds; bare numbers are seconds."""
    def parse(value: Any) -> int:
        if isinstance(value, bool):
            raise ValueError("must be a duration such as 100ms, 2s or 1m")
        if isinstance(value, int | float):
            value = str(value)
        if not isinstance(value, str):
            raise ValueError("must be a duration such as 100ms, 2s or 1m")
        return _bounded(parse_duration_ns(value.strip()), low_ns, high_ns, format_duration)
    return parse


def sync_interval(value: Any) -> int | None:
    """``always``, which becomes None, or a duration; 0 means nats-server's default."""
    if isinstance(value, str) and value.strip().lower() == "always":
        return None
    try:
        found: int = duration_ns(0)(value)
    except ValueError:
        raise ValueError("must be always, or a duration such as 2m or 500ms") from None
    return found or SYNC_INTERVAL_NS


def port(value: Any) -> int:
    """A TCP port; -1 asks for any free one (as 0 does)."""
    try:
        number = integer()(value)
    except ValueError:
        raise ValueError("must be a port number, or -1 for any free one") from None
    if not -1 <= number <= 65535:
        raise ValueError("must be a port between 1 and 65535, or -1 for any free one")
    return -1 if number == 0 else number


def boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError("must be true or false")


def text(value: Any) -> str:
    """Any text. Numbers keep their written form, because a numeric password or name is rarely quoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError("must be text")


def name(value: Any) -> str:
    """Text in one word."""
    found = text(value)
    if " " in found:
        raise ValueError("cannot contain spaces")
    return found


def choice(*words: str) -> Kind:
    def parse(value: Any) -> str:
        word = text(value).strip().lower()
        if word not in words:
            raise ValueError("must be one of " + ", ".join(words))
        return word
    return parse


def shard_numbers(value: Any) -> tuple[int, ...] | str | None:
    """A list of numbers of shards, or one text in which commas (or spaces) separate them; "auto"; "" and null for all.
    """
    if value is None or value == "":
        return None
    if value == "auto":
        return "auto"
    items = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if isinstance(items, int) and not isinstance(items, bool):
        items = [items]
    if not isinstance(items, list | tuple):
        raise ValueError("must be a list of shard numbers, such as [0, 3], or auto")
    number = integer(0, 255)
    return tuple(sorted({number(item) for item in items}))


def names(value: Any) -> tuple[str, ...]:
    """A list of words, or one text in which commas (or spaces) separate them."""
    if isinstance(value, str):
        return tuple(word for word in re.split(r"[,\s]+", value) if word)
    if isinstance(value, list | tuple):
        return tuple(text(item) for item in value)
    raise ValueError("must be a word or a list of words")


def http_url(value: Any) -> str:
    """An http:// or https:// address; "" for none."""
    found = text(value)
    if found and not re.fullmatch(r"https?://[^/\s]+\S*", found):
        raise ValueError("must be an address such as http://127.0.0.1:4318")
    return found


def networks(value: Any) -> tuple[str, ...]:
    """IP addresses and networks, such as 10.0.0.0/8."""
    from ipaddress import ip_network

    found = names(value)
    for one in found:
        try:
            ip_network(one, strict=False)
        except ValueError:
            raise ValueError("must be IP addresses or networks such as 10.0.0.0/8") from None
    return found


def fingerprints(value: Any) -> tuple[str, ...]:
    """SHA-256 digests in lower-case hex."""
    found = tuple(word.lower() for word in names(value))
    for word in found:
        if not _SHA256.fullmatch(word):
            raise ValueError("must be a list of hex-encoded sha256 of DER encoded SubjectPublicKeyInfo")
    return found


def handshake_first(value: Any) -> int | None:
    """A handshake before INFO: None: no; 0: yes; otherwise the nanoseconds to wait for a client's handshake."""
    word = value.strip().lower() if isinstance(value, str) else value
    if word in (False, "false", "off"):
        return None
    if word in (True, "true", "on"):
        return 0
    if word in ("auto", "auto_fallback"):
        return _HANDSHAKE_FIRST_AUTO_NS
    try:
        return parse_duration(word) if isinstance(word, str) else int("")
    except ValueError:
        raise ValueError("must be true, false, auto or a duration such as 300ms") from None


def origins(value: Any) -> tuple[str, ...]:
    """Origins of web pages."""
    from urllib.parse import urlsplit  # takes 10 ms to import, and is rarely needed

    found = names(value)
    for one in found:
        parts = urlsplit(one)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be absolute URLs with http or https scheme and a host")
        try:
            parts.port  # noqa: B018 (reading it checks it)
        except ValueError:
            raise ValueError("must be URLs with a port between 0 and 65535") from None
    return found


def texts(value: Any) -> tuple[tuple[str, str], ...]:
    """A block of names and texts."""
    if not isinstance(value, dict) or not all(isinstance(inner, str) for inner in value.values()):
        raise ValueError("must be a block of names and texts")
    return tuple(value.items())


def header_fields(value: Any) -> tuple[tuple[str, str], ...]:
    """HTTP header fields, except those that WebSocket itself needs."""
    if not isinstance(value, dict):
        raise ValueError("must be a block of header fields and their values")
    for key, inner in value.items():
        if not isinstance(inner, str) or not _FIELD_NAME.fullmatch(key) or not inner.isprintable():
            raise ValueError(f"must be a block of header fields and their values; {key!r} is none")
        low = key.lower()
        if low in ("host", "content-length", "connection", "upgrade",
                   "nats-no-masking") or low.startswith("sec-websocket-"):
            raise ValueError(f'cannot have an invalid header "{key}"')
    return tuple(value.items())
