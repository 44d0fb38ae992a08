"""The subjects that a user may publish and subscribe to.

    allow  deny   a publish to S, or a subscription of S, is permitted
    ─────  ─────  ─────────────────────────────────────────────────────────────────────────────
    none   none   always
    A      none   if a pattern of A covers S
    A      D      if in addition no pattern of D covers S;
                  a wider subscription is permitted, but gets no message on a subject that D covers

A pattern for subscriptions may name a queue group: "foo v1" or "foo v1.*". Such an ``allow`` permits that group only,
and such a ``deny`` forbids that group only. ``allow_responses`` permits publishing to the reply subjects of delivered
messages, limited in number and time.

All connections of a user share its ``AccessRules``; each connection has its own ``ReplyPermissions``.

Source: nats-server, server/client.go (setPermissions, canSubscribeInternal, pubAllowedFullCheck, checkDenySub,
responseAllowed, pruneReplyPerms).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from broker.access.accounts import Permissions, ResponsePermission, split_pattern
from broker.protocol.subject import collide, is_literal, subset
from broker.server.routing.sublist import Sublist

__all__ = ["AccessRules", "PublishRules", "ReplyPermissions", "SubscribeRules"]

_SUBJECTS_REMEMBERED: Final = 4096
"""Bound on the cache of one user's publish subjects; beyond it the older half is dropped."""

_REPLIES_MAX: Final = 1 << 20
"""Bound on the reply subjects that one connection may publish to; beyond it the oldest is dropped."""


class AccessRules:
    """Compiled permissions. All connections of a user share them, with their caches of subjects."""

    def __init__(self, permissions: Permissions) -> None:
        self.permissions = permissions
        allow, deny = permissions.publish.allow, permissions.publish.deny
        if allow is None and permissions.allow_responses is not None:
            allow = ()
        self.publish = PublishRules(allow, deny) if allow is not None or deny else None
        """Rules for publishing; None: every publish is permitted."""

        allow, deny = permissions.subscribe.allow, permissions.subscribe.deny
        self.subscribe = SubscribeRules(allow or (), deny) if allow or deny else None
        """Rules for subscribing; None: every subscription is permitted."""

    def replies(self, now_ns: Callable[[], int]) -> ReplyPermissions | None:
        """Return the reply permissions of one connection; None if none are configured or needed."""
        terms = self.permissions.allow_responses
        return ReplyPermissions(terms, self.publish, now_ns) if terms is not None and self.publish is not None else None


class _Pattern:
    """A pattern with the attributes that the sublist needs."""

    __slots__ = ("queue", "subject")

    def __init__(self, text: str) -> None:
        self.subject, self.queue = split_pattern(text)


def _patterns(texts: Iterable[str]) -> tuple[list[_Pattern], Sublist[_Pattern]]:
    found = [_Pattern(text) for text in texts]
    tree: Sublist[_Pattern] = Sublist()
    for pattern in found:
        tree.insert(pattern)
    return found, tree


class PublishRules:
    """The subjects that may be published to, apart from responses."""

    def __init__(self, allow: Iterable[str] | None, deny: Iterable[str]) -> None:
        self._allow = _patterns(allow)[1] if allow is not None else None
        self._deny = _patterns(deny)[1]
        self._known: dict[bytes, bool] = {}

    def permits(self, subject: bytes) -> bool:
        known = self._known.get(subject)
        if known is None:
            known = ((self._allow is None or bool(self._allow.match(subject).plain))
                     and not self._deny.match(subject).plain)
            if len(self._known) >= _SUBJECTS_REMEMBERED:
                for old in list(islice(self._known, _SUBJECTS_REMEMBERED // 2)):
                    del self._known[old]
            self._known[subject] = known
        return known


class SubscribeRules:
    """The subjects that may be subscribed to, and the messages that a wide subscription does not receive."""

    def __init__(self, allow: Iterable[str], deny: Iterable[str]) -> None:
        self._allowed, self._allow = _patterns(allow)
        self._all_allowed = not self._allowed
        self._denied, self._deny = _patterns(deny)

    def permits(self, subject: bytes, queue: bytes) -> bool:
        """Return whether a subscription to ``subject``, in the group ``queue`` if any, is permitted."""
        if not self._all_allowed:
            match = self._allow.match(subject)
            permitted = bool(match.plain)
            if queue and match.groups:
                permitted = _covers(match.groups, queue)
            if not permitted:
                return False
        return not self._denies(subject, queue)

    def filter(self, subject: bytes, queue: bytes) -> Callable[[bytes], bool] | None:
        """Return a predicate for the subjects that a permitted subscription must not receive; None: there are none."""
        if not queue and is_literal(subject):
            return None
        if not any(collide(pattern.subject, subject) for pattern in self._denied):
            return None
        return self.denials(queue)

    def permits_some(self, subject: bytes, queue: bytes) -> bool:
        """Return whether a server may subscribe: as ``permits``, but its pattern may be wider than what is allowed.

        Source: nats-server, server/client.go (canSubscribeInternal, for leaf nodes).
        """
        if self.permits(subject, queue):
            return True
        return (not is_literal(subject) and any(collide(pattern.subject, subject) for pattern in self._allowed)
                and not self._denies(subject, queue))

    def filter_some(self, subject: bytes, queue: bytes) -> Callable[[bytes], bool] | None:
        """Return a predicate like ``filter`` for a subscription of a server, which may be wider than is permitted."""
        if self._all_allowed or self.permits(subject, queue):
            return self.filter(subject, queue)
        return lambda subject: not self.permits(subject, queue)

    def denials(self, queue: bytes) -> Callable[[bytes], bool]:
        """Return a predicate for the subjects denied to subscriptions in the group ``queue``, if any."""
        return lambda subject: self._denies(subject, queue)

    def _denies(self, subject: bytes, queue: bytes) -> bool:
        match = self._deny.match(subject)
        return bool(match.plain) or bool(queue and match.groups and _covers(match.groups, queue))


def _covers(groups: Iterable[bytes], queue: bytes) -> bool:
    """Return whether one of ``groups``, which are names or patterns of queue groups, covers ``queue``."""
    return any(queue == group or (not is_literal(group) and subset(queue, group)) for group in groups)


class ReplyPermissions:
    """The reply subjects that one connection may publish to because it received messages with them."""

    __slots__ = ("_left", "_now_ns", "_rules", "_terms")

    def __init__(self, terms: ResponsePermission, rules: PublishRules, now_ns: Callable[[], int]) -> None:
        self._terms = terms
        self._rules = rules
        self._now_ns = now_ns
        # For each reply subject, oldest first: the number of responses left, and the time of its message.
        self._left: dict[bytes, tuple[int, int]] = {}

    def received(self, replies: Iterable[bytes]) -> None:
        """Record that messages with these reply subjects were delivered; b"" is no reply subject."""
        left = self._left
        now_ns = self._now_ns()
        for reply in replies:
            # As on nats-server, delivering a message again while a response to it is permitted uses up one response.
            if reply and not self._rules.permits(reply) and not self._use(reply, now_ns):
                left[reply] = (self._terms.max_msgs, now_ns)
        while left:
            oldest = next(iter(left))
            if len(left) <= _REPLIES_MAX and not self._expired(left[oldest][1], now_ns):
                break
            del left[oldest]

    def clear(self) -> None:
        """End the permission to respond to the messages delivered until now."""
        self._left.clear()

    def permits(self, reply: bytes) -> bool:
        """Return whether ``reply`` may be published to now."""
        known = self._left.get(reply)
        return known is not None and not self._expired(known[1], self._now_ns())

    def use(self, reply: bytes) -> bool:
        """Use up one response to ``reply``. Returns: whether it is permitted."""
        return self._use(reply, self._now_ns())

    def _use(self, reply: bytes, now_ns: int) -> bool:
        known = self._left.get(reply)
        if known is None:
            return False
        count, received_at_ns = known
        if self._expired(received_at_ns, now_ns):
            del self._left[reply]
            return False
        if count == 1:
            del self._left[reply]
        else:
            self._left[reply] = (count - 1, received_at_ns)
        return True

    def _expired(self, received_at_ns: int, now_ns: int) -> bool:
        return 0 < self._terms.expires_ns < now_ns - received_at_ns
