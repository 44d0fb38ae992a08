"""An upstream as a plain value: another NATS system, whose streams are mirrored or sourced here."""

from __future__ import annotations

from broker.access.accounts import DEFAULT_ACCOUNT
from broker.base.value import Value
from broker.config.leafnodes import LeafTls

__all__ = ["UpstreamSettings"]


class UpstreamSettings(Value, hidden=["urls", "password", "token", "nkey"]):
    """An upstream. ``urls`` may have passwords, and ``nkey`` is a seed."""

    name: str = ""
    """The name by which mirrors and sources reach it: ``$JS.<name>.API``."""

    urls: tuple[str, ...] = ()
    account: str = DEFAULT_ACCOUNT
    """The account of this server whose streams may copy from it."""

    user: str = ""
    password: str = ""
    token: str = ""
    credentials: str = ""
    """The path of a file with a user's token and seed; "": none."""

    nkey: str = ""
    tls: LeafTls | None = None
    inbox_prefix: str = "_INBOX"
    """The beginning of all subjects to which the upstream answers and delivers."""
