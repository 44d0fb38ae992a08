"""Login by client certificate: ``verify_and_map``.

The TLS handshake verified the certificate. This module maps one of its names to a user:

    e-mail addresses, DNS names, URIs     in this order, unchanged
    the subject                           as a distinguished name: "CN=app,OU=NATS,O=Example", in any order of its parts

CONNECT's user name is ignored. A user with a password must also send the password.

Source: nats-server, server/auth.go (checkClientTLSCertSubject), internal/ldap/dn.go; RFC 4514.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from cryptography import x509
from cryptography.x509.oid import ExtensionOID

from broker.access.accounts import User
from broker.server.auth.login import Credentials, Decision, Refusal
from broker.server.auth.users import UserAuthenticator

__all__ = ["CertificateAuthenticator", "read_name"]

Subject = tuple[frozenset[tuple[str, str]], ...]
"""A distinguished name: its relative names in the order of RFC 4514, each a set of types and values."""

_TYPES: Final = {
    "2.5.4.3": "CN", "2.5.4.5": "SERIALNUMBER", "2.5.4.6": "C", "2.5.4.7": "L", "2.5.4.8": "ST", "2.5.4.9": "STREET",
    "2.5.4.10": "O", "2.5.4.11": "OU", "2.5.4.17": "POSTALCODE", "0.9.2342.19200300.100.1.25": "DC",
}
_PAIR: Final = re.compile(r'\s*([A-Za-z0-9.]+)=((?:[^\\,+]|\\[ "#+,;<=>\\]|\\[0-9A-Fa-f]{2})*)([,+]|$)')
_ESCAPE: Final = re.compile(r'\\([0-9A-Fa-f]{2}|.)')


class CertificateAuthenticator:
    """Passes the user that the certificate names to ``authenticator``, which checks the password."""

    wants_nonce = False

    def __init__(self, users: Iterable[User], authenticator: UserAuthenticator) -> None:
        self._authenticator = authenticator
        self._users = {user.user: user for user in users}
        self._subjects: list[tuple[Subject, User]] = []
        for user in self._users.values():
            try:
                self._subjects.append((read_name(user.user), user))
            except ValueError:
                pass  # not a distinguished name
        self._reordered = [(frozenset(subject), user) for subject, user in self._subjects]

    def decide(self, credentials: Credentials) -> Decision | None:
        encoded = credentials.connection.certificate
        if encoded is None:
            return Refusal("User required in cert, no peer certificates found")
        certificate = x509.load_der_x509_certificate(encoded)
        user = self._find(certificate, credentials.connection.connection_type)
        if user is None:
            return Refusal(f"User in cert [{certificate.subject.rfc4514_string()!r}], not found")
        return self._authenticator.decide_for(user.user, credentials)

    def _find(self, certificate: x509.Certificate, connection_type: str) -> User | None:
        def is_allowed(user: User | None) -> bool:
            return user is not None and (not user.connection_types or connection_type in user.connection_types)

        for name in _alternative_names(certificate):
            if is_allowed(user := self._users.get(name)):
                return user
        subject = _subject(certificate.subject)
        parts = frozenset(subject)
        exact = (user for known, user in self._subjects if known == subject and is_allowed(user))
        reordered = (user for known, user in self._reordered if known == parts and is_allowed(user))
        return next(exact, None) or next(reordered, None)


def read_name(text: str) -> Subject:
    """Parse a distinguished name. Raises: ValueError if ``text`` is none."""
    found: list[frozenset[tuple[str, str]]] = []
    pairs: list[tuple[str, str]] = []
    at = 0
    while True:
        match = _PAIR.match(text, at)
        if match is None:
            raise ValueError(f"{text!r} is no distinguished name")
        kind, value, end = match.groups()
        if value.startswith("#"):
            raise ValueError("unsupported BER encoding")
        pairs.append((kind.upper(), _unescaped(value)))
        if end != "+":
            found.append(frozenset(pairs))
            pairs = []
        if not end:
            return tuple(found)
        at = match.end()


def _unescaped(value: str) -> str:
    bare = value.rstrip(" ")
    if bare.endswith("\\"):  # an escaped blank is part of the value
        bare += " "

    def byte(match: re.Match[str]) -> bytes:
        inner = match[1]
        return bytes([int(inner, 16)]) if len(inner) == 2 else inner.encode()

    parts, at = [], 0
    for match in _ESCAPE.finditer(bare):
        parts += [bare[at:match.start()].encode(), byte(match)]
        at = match.end()
    return b"".join([*parts, bare[at:].encode()]).decode("utf-8", "replace")


def _subject(name: x509.Name) -> Subject:
    """Return a certificate's subject in the order of RFC 4514, which writes the last part first."""
    return tuple(frozenset((_TYPES.get(one.oid.dotted_string, one.oid.dotted_string), str(one.value)) for one in part)
                 for part in reversed(name.rdns))


def _alternative_names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    assert isinstance(found, x509.SubjectAlternativeName)
    kinds = (x509.RFC822Name, x509.DNSName, x509.UniformResourceIdentifier)
    return [name for kind in kinds for name in found.get_values_for_type(kind)]
