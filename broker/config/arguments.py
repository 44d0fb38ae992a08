"""Parsers of command-line options for argparse's ``type``; their errors describe valid values."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import TypeVar

from broker.config.kinds import parse_duration_ns, parse_size

__all__ = ["bytes_number", "duration_ns", "natural", "seconds"]

_T = TypeVar("_T")


def duration_ns(text: str) -> int:
    """Parse ``15s``, ``250ms``, ``1m30s`` or a number of seconds; return nanoseconds."""
    return _parsed(parse_duration_ns, text)


def seconds(text: str) -> float:
    """Parse a duration like ``duration_ns``; return seconds."""
    return duration_ns(text) / 1e9


def bytes_number(text: str) -> int:
    """Parse ``4MiB``, ``64k`` or a number of bytes."""
    return _parsed(parse_size, text)


def natural(text: str) -> int:
    """Parse a whole number that is not negative."""
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"invalid value {text!r}: it must be a whole number, 0 or more")
    return int(text)


def _parsed(parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise ArgumentTypeError(f"invalid value {text!r}: it {error}") from None
