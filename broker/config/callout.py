"""The settings of an authorization service, which decides about clients, as a plain value."""

from __future__ import annotations

from broker.base.value import Value

__all__ = ["CalloutSettings"]


class CalloutSettings(Value):
    """``account`` is the service's. The broker itself decides about ``auth_users``, of which the service is one."""

    issuer: str
    """The account key that signs the service's responses."""

    account: str
    auth_users: tuple[str, ...]
    xkey: str = ""
    """The service's curve key, which requests are encrypted for; "": they are not encrypted."""

    allowed_accounts: tuple[str, ...] = ()
    """The accounts whose users the service decides about; (): all."""
