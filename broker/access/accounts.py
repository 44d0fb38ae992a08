"""Users, their permissions, and accounts: plain values, valid by construction.

A pattern is a subject with wildcards. A pattern for subscriptions may have a queue group, or a pattern for its name,
after a space: "foo v1.*".
"""

from __future__ import annotations

from typing import Final

from broker.access.sharing import Export, Import, SubjectMapping, without_repetitions
from broker.base.value import Value, fields
from broker.protocol.subject import is_valid

__all__ = ["ANONYMOUS", "CONNECTION_TYPES", "DEFAULT_ACCOUNT", "NO_LIMIT", "NO_LIMITS", "SYSTEM_ACCOUNT",
           "AccountLimits", "AccountSettings", "NkeyUser", "OuterTrace", "Permissions", "ResponsePermission",
           "SubjectPermission", "User", "split_pattern"]

DEFAULT_ACCOUNT = "$G"
"""The account of users without one."""

SYSTEM_ACCOUNT = "$SYS"

NO_LIMIT: Final = -1
"""The number for "no limit". In tokens, any other negative number allows nothing."""

CONNECTION_TYPES: Final = frozenset(
    {"STANDARD", "WEBSOCKET", "LEAFNODE", "LEAFNODE_WS", "MQTT", "MQTT_WS", "IN_PROCESS"})

ANONYMOUS = "nats-anonymous"
"""The user of clients without credentials if only the system account has users. It has no password or other secret."""


class SubjectPermission(Value):
    """Allowed and denied patterns. ``allow`` None: everything; for publishes, () allows nothing."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


class ResponsePermission(Value):
    """The number of responses to one message, and the time for them; negative: no limit."""

    max_msgs: int = 1
    expires_ns: int = 120_000_000_000


class Permissions(Value):
    """The permissions of one user, or the default permissions of an account. Raises: ValueError for an invalid
    pattern."""

    publish: SubjectPermission = SubjectPermission()
    subscribe: SubjectPermission = SubjectPermission()
    allow_responses: ResponsePermission | None = None
    """Permission to publish to the reply subjects of received messages, too; alone, it permits nothing else."""

    def __post_init__(self) -> None:
        for pattern in (*(self.publish.allow or ()), *self.publish.deny):
            if split_pattern(pattern)[1]:
                raise ValueError(f"invalid subject {pattern!r} in permissions to publish: it names a queue group")
        for pattern in (*(self.subscribe.allow or ()), *self.subscribe.deny):
            split_pattern(pattern)


class User(Value, hidden=["password"]):
    """A user who may connect; ``password`` may be a bcrypt hash."""

    user: str
    password: str = ""
    account: str = DEFAULT_ACCOUNT
    permissions: Permissions | None = None
    """The user's permissions; None: the account's default permissions."""

    connection_types: frozenset[str] = frozenset()
    """The types of connection that this user may use; empty: all."""

    expires_at_ns: int | None = None
    proxy_required: bool = False
    """True if this user may connect through trusted proxies only."""


class NkeyUser(Value):
    """A user who logs in with a private key; the public key, ``U…``, is the name."""

    nkey: str
    account: str = DEFAULT_ACCOUNT
    permissions: Permissions | None = None
    connection_types: frozenset[str] = frozenset()
    proxy_required: bool = False


TIER: Final = "R1"
"""The tier of all streams: each has one owner, like a stream without replicas on nats-server."""


class AccountLimits(Value):
    """An account's JetStream limits, in bytes and counts, by their wire names.

    -1: no limit (0, too, for the per-stream bytes and ack pending).
    """

    max_memory: int = -1
    max_storage: int = -1
    max_streams: int = -1
    max_consumers: int = -1
    max_ack_pending: int = -1
    memory_max_stream_bytes: int = -1
    storage_max_stream_bytes: int = -1
    max_bytes_required: bool = False
    tiers: tuple[tuple[str, AccountLimits], ...] = ()
    """The limits for each number of replicas, if claims have them. The other fields are then the limits of ``TIER``."""

    def bytes_max(self, storage: str) -> int:
        """Return the limit on all streams of one storage kind."""
        return self.max_memory if storage == "memory" else self.max_storage

    def to_json(self) -> dict[str, int]:
        """Return the ``limits`` member of account info."""
        return {name: getattr(self, name) for name in fields(self) if name != "tiers"}


NO_LIMITS: Final = AccountLimits()


class OuterTrace(Value):
    """The destination of trace events for messages with an outer trace (``traceparent``), and their share in
    percent."""

    dest: str
    sampling: int = 100


class AccountSettings(Value):
    """A configured account. A limit of -1 means that the account has none."""

    name: str
    jetstream: AccountLimits | None = None
    """The JetStream limits; None: no JetStream."""

    default_permissions: Permissions | None = None
    """The permissions of users without their own; None: everything is allowed."""

    name_tag: str = ""
    """The name that logs and monitoring show if the account's name is a key."""

    max_connections: int = -1
    max_leafnodes: int = -1
    max_subscriptions: int = -1
    """The most subscriptions of one connection."""

    max_payload: int = -1
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    mappings: tuple[SubjectMapping, ...] = ()
    outer_trace: OuterTrace | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "exports", without_repetitions(self.exports))

    def payload_bytes_max(self, server_max: int) -> int:
        """Return the most bytes of a message, headers included; ``server_max`` is the server's max_payload."""
        return server_max if self.max_payload == NO_LIMIT else min(server_max, self.max_payload)


def split_pattern(text: str) -> tuple[bytes, bytes]:
    """Return the subject of a pattern, and its queue group or b"". Raises: ValueError."""
    words = text.encode().split()
    if not 1 <= len(words) <= 2 or not all(map(is_valid, words)):
        raise ValueError(f"invalid subject {text!r} in permissions")
    return words[0], words[1] if len(words) == 2 else b""
