"""What somebody may have meant by a word that is none of those there are."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean", "nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """The one that is most like ``word``, whatever its case; "" where none is."""
    from difflib import get_close_matches  # only who has made a mistake pays for it

    names = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), names, 1, 0.6)
    return names[near[0]] if near else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean WORD?`` to end a message with, or ""."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""
