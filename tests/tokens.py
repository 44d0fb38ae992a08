"""Tokens for tests: an operator, accounts and users, all made from names, in version 2 as ``nsc`` makes them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from broker.base.nkeys import ACCOUNT, OPERATOR, USER, KeyPair
from broker.jwt.token import encode_token
from tests.keys import key, signed

__all__ = ["LOGIN", "NO_LIMITS", "account", "activation", "configuration", "connect", "operator", "user"]

LOGIN = "authorization { timeout: 60 }"
"""A line of a configuration: the default, 2 s, may be too short for a test's client on a busy machine."""
NO_LIMITS: dict[str, Any] = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True,
                             "conn": -1, "leaf": -1}


def operator(name: str = "O", *, signer: KeyPair | None = None, **nats: Any) -> str:
    pair = key(OPERATOR, name)
    # The time is the same in each run: a reload takes another token for another operator.
    return encode_token({"sub": pair.public, "name": name, "nats": {"type": "operator", **nats}}, signer or pair,
                        1_700_000_000)


def account(name: str = "A", *, signer: KeyPair | None = None, limits: Mapping[str, Any] | None = None,
            exp: int = 0, iat: int = 0, top: Mapping[str, Any] | None = None, **nats: Any) -> str:
    """Return an account's token; ``limits`` are the only ones, ``top`` is added to the members beside ``nats``."""
    claims = {"sub": key(ACCOUNT, name).public, "name": name, **(top or {}),
              "nats": {"type": "account", "limits": {**NO_LIMITS, **(limits or {})}, **nats}}
    return encode_token(claims | ({"exp": exp} if exp else {}), signer or key(OPERATOR, "O"), iat or _now())


def user(name: str = "u", of: str = "A", *, signer: KeyPair | None = None, scoped: bool = False, exp: int = 0,
         iat: int = 0, nbf: int = 0, pair: KeyPair | None = None, top: Mapping[str, Any] | None = None,
         **nats: Any) -> str:
    """Return a user's token. ``signer``: a signing key of the account; ``scoped``: without limits of its own; ``top``
    is added to the members beside ``nats``."""
    limits = {} if scoped else {"subs": -1, "data": -1, "payload": -1}
    if signer is not None:
        nats = {"issuer_account": key(ACCOUNT, of).public, **nats}
    claims = {"sub": (pair or key(USER, name)).public, "name": name, "nats": {"type": "user", **limits, **nats}}
    times = {field: at for field, at in (("exp", exp), ("nbf", nbf)) if at}
    return encode_token({**claims, **times, **(top or {})}, signer or key(ACCOUNT, of), iat or _now())


def activation(subject: str, kind: str, *, of: str, to: str, signer: KeyPair | None = None, exp: int = 0, iat: int = 0,
               **more: Any) -> str:
    """Return a permission for account ``to`` to import from account ``of``."""
    nats = {"type": "activation", "subject": subject, "kind": kind, **more}
    if signer is not None:
        nats["issuer_account"] = key(ACCOUNT, of).public
    claims = {"sub": key(ACCOUNT, to).public, "nats": nats}
    return encode_token(claims | ({"exp": exp} if exp else {}), signer or key(ACCOUNT, of), iat or _now())


def configuration(accounts: Mapping[str, str], *lines: str, operator_token: str = "", system: str = "SYS") -> str:
    """Return a configuration file with these accounts' tokens, by name, and the system account."""
    tokens = {"SYS": account("SYS"), **accounts}
    preload = "\n".join(f"  {key(ACCOUNT, name).public}: {token}" for name, token in tokens.items())
    named = f"system_account: {key(ACCOUNT, system).public}" if system else ""
    return "\n".join([f"operator: {operator_token or operator()}", "resolver: MEMORY", LOGIN, named, *lines,
                      f"resolver_preload {{\n{preload}\n}}", ""])


def connect(info: bytes, token: str, name: str = "u", *, pair: KeyPair | None = None, **fields: Any) -> bytes:
    """Return the CONNECT of a user with that token, who signs as the user ``name``."""
    return signed(info, pair or key(USER, name), jwt=token, **fields)


def _now() -> int:
    return int(time.time())


def described(token: str) -> Any:
    """Return a token's claims for inspection."""
    from broker.base.nkeys import decode_base64url

    return json.loads(decode_base64url(token.split(".")[1]))
