"""NATS tokens as text: ``header.claims.signature``, each in URL-safe base64, signed with an nkey.

A token is untrusted bytes until its signature is checked. All errors are ``TokenError`` in the words of nats-io/jwt,
which responses to claims requests repeat. A valid signature proves that the issuer's key made the token, and not that
the issuer is trusted.

    version 2   the signature covers header and claims; kind and tags are members of ``nats``
    version 1   it covers the claims alone; kind and tags are members beside ``nats``

Source: nats-io/jwt, v2/decoder.go, header.go, claims.go, genericlaims.go.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from broker.base.nkeys import (
    ACCOUNT,
    OPERATOR,
    SERVER,
    KeyPair,
    decode_base64url,
    encode_base64url,
    is_public_key,
    verify,
)
from broker.jwt.fields import Fields, TokenError

__all__ = ["TOKEN_CHARS_MAX", "Token", "TokenError", "decode_token", "encode_token", "undecorated"]

TOKEN_CHARS_MAX: Final = 1 << 20
_VERSION_MAX: Final = 2
_ALGORITHMS: Final = ("ed25519", "ed25519-nkey")
_NOT_BASE64: Final = re.compile(r"[^A-Za-z0-9_\-\r\n]")
_PREFIX_BYTES: Final = {OPERATOR: 112, ACCOUNT: 0, SERVER: 104}
_ISSUERS: Final = {
    "operator": (OPERATOR,), "account": (ACCOUNT, OPERATOR), "user": (ACCOUNT,), "activation": (ACCOUNT, OPERATOR),
    "authorization_request": (SERVER,), "authorization_response": (ACCOUNT,)}
"""The kinds of keys that may sign each kind of token; any key may sign other kinds."""

_DECORATED: Final = re.compile(r"\s*(?:-{3,}[^\n]*-{3,}\r?\n)(.+)(?:\r?\n\s*-{3,}[^\n]*-{3,}(?:\r?\n|\Z))")
"""A token between lines of dashes, as in nats-io/jwt, creds_utils.go; the last line may end with the file."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token whose signature was checked."""

    kind: str
    """The kind: operator, account, user, activation, authorization_response, …; "" if the token has none."""

    version: int
    fields: Fields
    """All claims of the token."""

    text: str


def decode_token(text: str, *, generic: bool = False) -> Token:
    """Decode a token and check its signature. Raises: TokenError.

    Args: generic: accept any kind of token; its header then decides what the signature covers.
    """
    if len(text) > TOKEN_CHARS_MAX:
        raise TokenError(f"token size {len(text)} exceeds maximum of {TOKEN_CHARS_MAX} bytes: token too large")
    chunks = text.split(".")
    if len(chunks) != 3:
        raise TokenError("expected 3 chunks")
    header = Fields.parse(_decoded(chunks[0]))
    kind, algorithm = header.text("typ"), header.text("alg")
    if kind.upper() != "JWT":
        raise TokenError(f'not supported type "{kind}"')
    if algorithm.lower() not in _ALGORITHMS:
        raise TokenError(f'unexpected "{algorithm}" algorithm')
    fields = Fields.parse(_decoded(chunks[1]))
    if generic:
        kind, version = "", 1 if algorithm == _ALGORITHMS[0] else _VERSION_MAX
    else:
        kind, version = _identity(fields)
    signature = _decoded(chunks[2])
    signed, name = (chunks[1], "V1") if version <= 1 else (f"{chunks[0]}.{chunks[1]}", "V2")
    issuer = fields.text("iss")
    if not verify(issuer, signed.encode("utf-8", "replace"), signature):
        raise TokenError(f"claim failed {name} signature verification")
    wanted = _ISSUERS.get(kind)
    if wanted is not None and not any(is_public_key(issuer, one) for one in wanted):
        prefixes = " ".join(str(_PREFIX_BYTES[one]) for one in wanted)
        raise TokenError(f"unable to validate expected prefixes - [{prefixes}]")
    return Token(kind, version, fields, text)


def encode_token(claims: dict[str, Any], pair: KeyPair, issued_at: int) -> str:
    """Return a signed token of version 2. ``iss``, ``iat``, ``jti`` and the version in ``nats`` are added to
    ``claims``."""
    body = {**claims, "iss": pair.public, "iat": issued_at, "nats": {**claims["nats"], "version": _VERSION_MAX}}
    digest = hashlib.sha512(json.dumps(body, separators=(",", ":")).encode()).digest()[:32]
    body["jti"] = base64.b32encode(digest).decode().rstrip("=")
    signed = ".".join(encode_base64url(json.dumps(part, separators=(",", ":")).encode())
                      for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body))
    return f"{signed}.{encode_base64url(pair.sign(signed.encode()))}"


def undecorated(text: str) -> str:
    """Return the first token between lines of dashes in a file, or the whole text if there are none."""
    found = _DECORATED.search(text)
    return (found[1] if found else text).strip()


def _identity(fields: Fields) -> tuple[str, int]:
    """Return kind and version."""
    nats = fields.inner("nats")
    kind, version = fields.text("type"), 1
    if not kind:
        kind, version = nats.text("type"), nats.integer("version")
    if version > _VERSION_MAX:
        raise TokenError("JWT was generated by a newer version ")
    if kind in _ISSUERS and not kind.startswith("authorization") and version not in (1, 2):
        raise TokenError(f"library supports version {_VERSION_MAX} or less - received {version}")
    if kind in ("cluster", "server"):
        raise TokenError(f"{kind.capitalize()}Claims are not supported")
    return kind, version if kind in _ISSUERS else -1


def _decoded(chunk: str) -> bytes:
    try:
        return decode_base64url(chunk)
    except ValueError:
        found = _NOT_BASE64.search(chunk)
        at = found.start() if found else len(chunk.replace("\r", "").replace("\n", "")) // 4 * 4
        raise TokenError(f"illegal base64 data at input byte {at}") from None
