"""The tokens between a server and an authorization service: a request, and a response with a user's token in it.

Source: nats-io/jwt, v2/authorization_claims.go; nats-server, server/auth_callout.go (processClientOrLeafCallout).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.base.nkeys import KeyPair
from broker.jwt.claims import ResponseClaims, UserClaims, response_claims, user_claims
from broker.jwt.token import TokenError, encode_token
from broker.jwt.validation import response_issues, user_issues

__all__ = ["SUBJECT", "XKEY_HEADER", "CalloutError", "Expected", "read_response", "request_token"]

SUBJECT: Final = "$SYS.REQ.USER.AUTH"
XKEY_HEADER: Final = "Nats-Server-Xkey"
_AUDIENCE: Final = "nats-authorization-request"


class CalloutError(Exception):
    """A response that admits nobody. The text is the reason, for the log."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The user, server and account that a response must name."""

    user: str
    """The public key made for this request."""

    server_id: str
    account: str
    """The service's account."""


def request_token(subject: str, user: str, parts: Mapping[str, Any], keys: KeyPair, now: int, expires: int) -> str:
    """Return a request about one client. ``parts``: server_id, client_info, connect_opts, and perhaps client_tls."""
    nats = {**{name: _without_unknown(part) for name, part in parts.items()}, "user_nkey": user,
            "type": "authorization_request"}
    return encode_token({"aud": _AUDIENCE, "exp": expires, "sub": subject, "nats": nats}, keys, now)


def read_response(text: str, expected: Expected, now: int) -> tuple[ResponseClaims, UserClaims]:
    """Decode and check a response; return it and its user. Raises: CalloutError."""
    account = expected.account
    if not text:
        raise CalloutError(f'Auth callout violation: "no reason supplied" on account "{account}"')
    try:
        response = response_claims(text)
    except TokenError as error:
        raise CalloutError(_capital(str(error))) from None
    if issues := response_issues(response, now):
        raise CalloutError(f"Authorization response had validation errors: {issues[0].why}")
    if response.subject != expected.user:
        raise CalloutError("Auth callout violation: auth callout response is not for expected user")
    if response.audience != expected.server_id:
        raise CalloutError("Auth callout violation: auth callout response is not for server")
    if response.error:
        raise CalloutError(f"Auth callout service returned an error: {response.error}")
    try:
        user = user_claims(response.jwt)
    except TokenError as error:
        raise CalloutError(_capital(str(error))) from None
    if problems := user_issues(user, now):
        raise CalloutError(f"Error validating user JWT: {problems[0].why}")
    if user.subject != expected.user:
        raise CalloutError(f'Expected authorized user of "{expected.user}" but got "{user.subject}" on account '
                           f'"{account}"')
    return response, user


def _without_unknown(part: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out unknown members, except ``protocol``, which is always sent."""
    return {name: value for name, value in part.items() if value or name == "protocol"}


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
