"""Which messages a query wants: by subject, sequence and time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from broker.protocol.subject import matches

__all__ = ["Selection"]


@dataclass(frozen=True)
class Selection:
    """All bounds are inclusive; None is no bound. ``subjects`` are NATS patterns of which one must match; the tests
    that Spark pushed down must hold all."""

    subjects: tuple[bytes, ...] | None = None
    equal: frozenset[bytes] | None = None
    prefixes: tuple[bytes, ...] = ()
    suffixes: tuple[bytes, ...] = ()
    contains: tuple[bytes, ...] = ()
    first_seq: int = 1
    last_seq: int | None = None
    first_ns: int | None = None
    last_ns: int | None = None

    def matches_subject(self, subject: bytes) -> bool:
        """Whether a message on ``subject`` may be wanted."""
        return ((self.equal is None or subject in self.equal)
                and all(subject.startswith(p) for p in self.prefixes)
                and all(subject.endswith(s) for s in self.suffixes)
                and all(c in subject for c in self.contains)
                and (self.subjects is None or any(matches(p, subject) for p in self.subjects)))

    def needs_subject(self) -> bool:
        """Whether any test looks at the subject."""
        return not (self.subjects is None and self.equal is None and not self.prefixes and not self.suffixes
                    and not self.contains)

    def needs_time(self) -> bool:
        """Whether any test looks at the time."""
        return self.first_ns is not None or self.last_ns is not None

    def narrowed(self, filter: object) -> tuple[Selection, bool]:
        """This selection and one filter that Spark pushes down; whether Spark need not apply it again."""
        return replace(self), False
