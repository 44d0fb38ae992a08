"""Values of command-line options, for argparse's ``type``: an error says what the value must be."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from broker.config.kinds import parse_duration_ns, parse_size

__all__ = ["bytes_number", "duration_ns", "natural", "seconds"]

_T = TypeVar("_T")


def duration_ns(text: str) -> int:
    """``15s``, ``250ms``, ``1m30s`` or a number of seconds, in nanoseconds."""
    return _parsed(parse_duration_ns, text)


def seconds(text: str) -> float:
    """As ``duration_ns``, in seconds."""
    return duration_ns(text) / 1e9


def bytes_number(text: str) -> int:
    """``4MiB``, ``64k`` or a number of bytes."""
    return _parsed(parse_size, text)


def natural(text: str) -> int:
    """A whole number that is not negative."""
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"invalid value {text!r}: it must be a whole number, 0 or more")
    return int(text)


def _parsed(parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise ArgumentTypeError(f"invalid value {text!r}: it {error}") from None
