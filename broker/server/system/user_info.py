"""``$SYS.REQ.USER.INFO``: in every account, a user's request about itself.

Source: nats-server, server/events.go (userInfoReq), server/client.go (publicPermissions, claimExpiration).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from broker.access.accounts import Permissions, SubjectPermission
from broker.server.accounts.directory import Accounts
from broker.server.connection.client import Client
from broker.server.sharing.service_imports import Requester
from broker.server.system.requests import BAD_REQUEST, Request, RequestError

__all__ = ["SUBJECT", "user_info"]

SUBJECT: Final = "$SYS.REQ.USER.INFO"


def user_info(request: Request, accounts: Accounts, now_ns: Callable[[], int]) -> None:
    """Answer the requesting client. Raises: RequestError if no client sent the request."""
    if not request.reply:
        return
    client = request.source
    while isinstance(client, Requester):
        client = client.source
    if not isinstance(client, Client):
        raise RequestError("Bad Request", BAD_REQUEST)
    data: dict[str, Any] = {"user": client.identity().get("user", ""), "account": client.account.name}
    if (account := accounts.get(client.account.name)) is not None:
        data["account_name"] = account.settings.name_tag or account.name
    login = client.login
    if login.name_tag:
        data["user_name"] = login.name_tag
    if login.rules is not None:
        data["permissions"] = _shown(login.rules.permissions)
    if login.expires_at_ns is not None:
        data["expires"] = (login.expires_at_ns - now_ns()) // 1_000_000_000 * 1_000_000_000
    request.answer(data, compressible=False)  # nats-server does not compress this answer either


def _shown(permissions: Permissions) -> dict[str, Any]:
    shown: dict[str, Any] = {"publish": _subjects(permissions.publish), "subscribe": _subjects(permissions.subscribe)}
    responses = permissions.allow_responses
    if responses is not None:
        shown["responses"] = {"max": responses.max_msgs, "ttl": responses.expires_ns}
    return shown


def _subjects(permission: SubjectPermission) -> dict[str, list[str]]:
    shown = {"allow": list(permission.allow or ()), "deny": list(permission.deny)}
    return {name: subjects for name, subjects in shown.items() if subjects}
