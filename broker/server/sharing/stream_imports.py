"""An account's stream imports: its subscriptions receive messages of other accounts.

A subscription that overlaps an import's local subjects gets a *shadow*: a subscription in the exporting account, to
the overlap under that account's subjects:

    import  { account: A, subject: "orders.>", prefix: "a" }
    SUB a.orders.*   in the importing account     →   shadow on orders.* in A
    PUB orders.7     in A                         →   MSG a.orders.7

So a message that nobody imports costs nothing, and A's routes are cached as usual. Imports do not chain: a shadow has
no shadows.

Source: nats-server, server/client.go (addShadowSubscriptions, addShadowSub).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.access.sharing import Import, local_subject
from broker.protocol.subject import is_literal, subset
from broker.protocol.subject_transform import SubjectTransform, numbered, unnumbered
from broker.server.routing.router import Router
from broker.server.routing.subscription import Subscription

__all__ = ["StreamImport", "StreamImports"]


class StreamImport:
    """A stream import; ``router`` is the exporting account's. Raises: TransformError."""

    def __init__(self, settings: Import, router: Router) -> None:
        self.settings = settings
        self.router = router
        source, local = settings.subject.encode(), local_subject(settings).encode()
        self._source = source
        self.rename: Callable[[bytes], bytes]
        self._back: SubjectTransform | None = None
        self._same = False
        if is_literal(source):
            self.local = local
            self.rename = lambda subject: local
        elif local == source:
            self.local = local
            self._same = True
            self.rename = lambda subject: subject
        else:
            transform = SubjectTransform(source, numbered(local), strict=True)
            self.local = unnumbered(local)
            self._back = transform.reverse()
            self.rename = transform.apply

    def source_of(self, subject: bytes) -> bytes | None:
        """Return the exporting account's subjects that a subscription to ``subject`` receives; None if there are
        none."""
        if subject == self.local or subset(self.local, subject):
            return self._source
        part = subject if subset(subject, self.local) else overlap(subject, self.local)
        if part is None:
            return None
        return self._back.apply(part) if self._back is not None else part if self._same else self._source


class StreamImports:
    """The imports of one account (``broker.server.routing.neighbours.Shadows``)."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._imports: list[StreamImport] = []
        self._shadows: dict[Subscription, list[tuple[Router, Subscription]]] = {}

    def set(self, imports: Iterable[StreamImport]) -> None:
        """Replace all imports; subscriptions get their new shadows at once."""
        for sub in list(self._shadows):
            self.removed(sub)
        self._imports = list(imports)
        self._router.shadows = self if self._imports else None
        if self._imports:
            for sub in self._router.subscriptions():
                self.added(sub)

    def added(self, sub: Subscription) -> None:
        if sub.original is not None or sub.relay is not None or sub.ended:
            return
        shadows = []
        for one in self._imports:
            subject = one.source_of(sub.subject)
            if subject is not None:
                shadow = sub.shadow(subject, one.rename)
                shadow.account, shadow.allow_trace = self._router.name, one.settings.allow_trace
                one.router.add(shadow)
                shadows.append((one.router, shadow))
        if shadows:
            self._shadows[sub] = shadows

    def carries(self, account: str, subject: bytes) -> bool:
        return any(one.router.name == account and one.source_of(subject) == subject for one in self._imports)

    def end(self, subs: Iterable[Subscription]) -> None:
        by_router: dict[Router, list[Subscription]] = {}
        for sub in subs:
            for router, shadow in self._shadows.get(sub, ()):
                by_router.setdefault(router, []).append(shadow)
        for router, shadows in by_router.items():
            router.end(shadows)

    def removed(self, sub: Subscription) -> None:
        for router, shadow in self._shadows.pop(sub, ()):
            router.remove(shadow)


def overlap(subject: bytes, local: bytes) -> bytes | None:
    """Return a pattern for the subjects that match both patterns; None if there are none."""
    tokens, wanted = subject.split(b"."), local.split(b".")
    for at, token in enumerate(tokens[:len(wanted)]):
        if token == b"*" and wanted[at] != b">":
            tokens[at] = wanted[at]
    if tokens[-1] == b">" and len(wanted) >= len(tokens):
        tokens[-1:] = wanted[len(tokens) - 1:]
    both = b".".join(tokens)
    return both if both != subject and subset(both, local) else None
