"""A file's ``auth_callout { … }``.

Source: nats-server, server/opts.go (parseAuthCallout).
"""

from __future__ import annotations

from typing import Any

from broker.access.accounts import DEFAULT_ACCOUNT
from broker.base.nkeys import ACCOUNT, CURVE, is_public_key
from broker.config import kinds
from broker.config.callout import CalloutSettings
from broker.config.reading.findings import Findings, aliases, go_type, go_value
from broker.config.syntax import Value

__all__ = ["read_callout"]

_KEYS = aliases("issuer", "account acc", "auth_users users", "xkey key", "allowed_accounts")


def read_callout(value: Value, found: Findings) -> CalloutSettings | None:
    if not isinstance(value.value, dict):
        found.wrong(value, f"Expected authorization callout to be a map/struct, got {go_value(value)}")
        return None
    before = len(found.errors)
    given: dict[str, Any] = {"account": DEFAULT_ACCOUNT, "issuer": "", "auth_users": ()}
    for name, written, inner in found.fields(value, _KEYS, 'Unknown field "{}" parsing authorization callout'):
        if name in ("auth_users", "allowed_accounts"):
            what = "auth_users field" if name == "auth_users" else "allowed accounts field"
            if not isinstance(inner.value, list):
                found.wrong(inner, f"Expected {what} to be an array, got {go_type(inner)}")
            else:
                given[name] = tuple(found.texts(written, inner) or ())
            continue
        given[name] = found.convert(kinds.text, written, inner) or given.get(name, "")
        if name == "issuer" and not is_public_key(given[name], ACCOUNT):
            found.wrong(inner, f'Expected callout user to be a valid public account nkey, got "{given[name]}"')
        elif name == "xkey" and not is_public_key(given[name], CURVE):
            found.wrong(inner, f'Expected callout xkey to be a valid public xkey, got "{given[name]}"')
    if len(found.errors) == before and not given["issuer"]:
        found.wrong(value, "Authorization callouts require an issuer to be specified")
    if len(found.errors) == before and not given["auth_users"]:
        found.wrong(value, "Authorization callouts require authorized users to be specified")
    return CalloutSettings(**given) if len(found.errors) == before else None
