"""Suggestions for a misspelled word."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word most similar to ``word``, ignoring case; "" if none is similar."""
    from difflib import get_close_matches  # imported only after a mistake

    names = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), names, 1, 0.6)
    return names[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean WORD?`` as the end of a message, or ""."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""
