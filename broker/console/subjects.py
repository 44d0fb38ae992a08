"""The subjects of a stream as a tree, of which only the levels that are looked at are made."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

__all__ = ["Branch", "SubjectTree"]


class Branch(NamedTuple):
    """A token below a prefix. Attributes: ``deeper``: True if there are subjects that go on after the token."""

    subject: str
    token: str
    messages: int
    subjects: int
    deeper: bool


class SubjectTree:
    """Subjects in order, with their messages added up, so that a level costs its tokens and not its subjects."""

    def __init__(self, messages: dict[str, int]) -> None:
        self._subjects = sorted(messages)
        self._sums = [0, *accumulate(messages[subject] for subject in self._subjects)]

    def __len__(self) -> int:
        return len(self._subjects)

    def level(self, prefix: str, most: int) -> tuple[list[Branch], int]:
        """Return up to ``most`` tokens below a prefix ("", or one that ends with a dot), and the subjects left out."""
        found: dict[str, Branch] = {}
        at, end = self._range(prefix)
        while at < end:
            token, dot, _ = self._subjects[at][len(prefix):].partition(".")
            after = self._range(f"{prefix}{token}.")[1] if dot else at + 1
            if token not in found and len(found) >= most:
                return list(found.values()), end - at
            before = found.get(token, Branch(prefix + token, token, 0, 0, False))
            found[token] = before._replace(
                messages=before.messages + self._sums[after] - self._sums[at],
                subjects=before.subjects + after - at, deeper=before.deeper or bool(dot))
            at = after
        return list(found.values()), 0

    def _range(self, prefix: str) -> tuple[int, int]:
        if not prefix:
            return 0, len(self._subjects)
        # "/" is the character after "."
        return bisect_left(self._subjects, prefix), bisect_left(self._subjects, f"{prefix[:-1]}/")
