"""The authorization service that decides who may connect, as a plain value."""

from __future__ import annotations

from broker.base.value import Value

__all__ = ["CalloutSettings"]


class CalloutSettings(Value):
    """``account`` is the service's; ``auth_users`` are decided here, the service itself among them."""

    issuer: str
    """The account key that signs the service's answers."""

    account: str
    auth_users: tuple[str, ...]
    xkey: str = ""
    """The service's curve key: requests are sealed for it. "": they are not."""

    allowed_accounts: tuple[str, ...] = ()
    """The accounts whose users it decides about; (): all."""
