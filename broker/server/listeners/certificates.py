"""TLS settings as OpenSSL needs them: certificates, authorities for clients' certificates, versions and ciphers.

Files are read once, at the start or at a reload. If a file is invalid, ``TlsError`` is raised and nothing changes.

Source: nats-server, server/opts.go (GenTLSConfig), server/client.go (matchesPinnedCert).
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections import deque
from functools import cached_property
from typing import Any, Final

from broker.config.settings import CertificateFiles, TlsSettings
from broker.server.connection.cipher_suites import INSECURE, OPENSSL_NAMES, TLS_1_3
from broker.server.listeners.tls import HandshakeTurns

__all__ = ["TlsError", "TlsParameters"]

_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_CURVES: Final = {"X25519": "X25519", "CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}


class TlsError(ValueError):
    """TLS settings that cannot be used; the text names the file or the value."""


class TlsParameters:
    """The TLS parameters of one port. Raises: TlsError."""

    def __init__(self, settings: TlsSettings) -> None:
        self.settings = settings
        self.verify = settings.verify or settings.verify_and_map
        files = settings.certificates or (CertificateFiles(settings.cert_file, settings.key_file),)
        contexts = [_context(settings, pair, self.verify) for pair in files]
        self.context = contexts[0]
        with open(files[0].cert_file, "rb") as file:
            self._certificate = file.read()
        if len(contexts) > 1:
            _choose_by_name(contexts, [_names(pair.cert_file) for pair in files])
        self.turns = HandshakeTurns()
        self._begun: deque[int] = deque()

    @cached_property
    def not_after_ns(self) -> int:
        """Time at which the first certificate expires, Unix UTC."""
        # The import takes 30 ms and is rarely needed.
        from cryptography import x509

        return int(x509.load_pem_x509_certificate(self._certificate).not_valid_after_utc.timestamp()) * 1_000_000_000

    def admits(self, now_ns: int) -> bool:
        """Count a handshake that begins. Returns: False if it would exceed ``connection_rate_limit``."""
        limit = self.settings.connection_rate_limit
        if not limit:
            return True
        begun = self._begun
        while begun and begun[0] <= now_ns - 1_000_000_000:
            begun.popleft()
        if len(begun) >= limit:
            return False
        begun.append(now_ns)
        return True

    def objection(self, tls: ssl.SSLObject, now_ns: int) -> str:
        """Return why the client of a completed handshake may not connect, although OpenSSL verified it; "" if it
        may."""
        if self.verify and tls.session_reused and not _is_valid(tls, now_ns):
            return "tls: failed to verify certificate: certificate has expired"
        pinned = self.settings.pinned_certs
        if pinned:
            certificate = tls.getpeercert(binary_form=True)
            if certificate is None or _fingerprint(certificate) not in pinned:
                return "certificate not pinned"
        return ""


def _context(settings: TlsSettings, files: CertificateFiles, verify: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[settings.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _choose_ciphers(context, settings)
    try:
        for path in (files.cert_file, files.key_file):
            open(path, "rb").close()  # OpenSSL's error does not name the unreadable one of the two files
        context.load_cert_chain(files.cert_file, files.key_file, _no_password)
    except OSError as error:
        raise TlsError(f"error parsing X509 certificate/key pair: {_why(error, files)}") from None
    if verify:
        context.verify_mode = ssl.CERT_REQUIRED
        # An intermediate certificate can be a trust anchor, too.
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
        _load_authorities(context, settings.ca_file)
        # OpenSSL does not verify the certificate of a resumed session again, so no TLS 1.3 session is resumed. TLS 1.2
        # also resumes by session ID, which Python cannot switch off: ``_is_valid`` checks such sessions.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    if not path:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        return
    try:
        open(path, "rb").close()
        context.load_verify_locations(path)
    except ssl.SSLError:
        raise TlsError(f"failed to parse root ca certificate: {path} has none in PEM") from None
    except OSError as error:
        raise TlsError(f"open {path}: {(error.strerror or str(error)).lower()}") from None


def _choose_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    for name in settings.cipher_suites:
        if name not in OPENSSL_NAMES and name not in TLS_1_3:
            raise TlsError(f"unrecognized cipher {name}")
    weak = [name for name in settings.cipher_suites if name in INSECURE]
    if weak and not settings.allow_insecure_cipher_suites:
        raise TlsError("insecure cipher suites configured without 'allow_insecure_cipher_suites' option set: "
                       + ", ".join(weak))
    chosen = [OPENSSL_NAMES[name] for name in settings.cipher_suites if name in OPENSSL_NAMES]
    if chosen:
        try:
            context.set_ciphers(":".join(chosen))
        except ssl.SSLError:
            raise TlsError(f"OpenSSL has none of the cipher suites {', '.join(settings.cipher_suites)}") from None
    for name in settings.curve_preferences:
        if name not in _CURVES:
            raise TlsError(f"unrecognized curve preference {name}")
    if len(settings.curve_preferences) > 1:
        raise TlsError("curve_preferences can name one curve, or be left out for all of them: Python's ssl can "
                       "restrict key exchange to one")
    for name in settings.curve_preferences:
        context.set_ecdh_curve(_CURVES[name])


def _choose_by_name(contexts: list[ssl.SSLContext], names: list[frozenset[str]]) -> None:
    """Use the first certificate, unless the client requests a name that another one has."""
    def choose(tls: ssl.SSLObject | ssl.SSLSocket, wanted: str | None, _: Any) -> None:
        if wanted is not None:
            name = wanted.lower()
            wildcard = "*." + name.partition(".")[2]
            tls.context = next((context for context, known in zip(contexts, names, strict=True)
                                if name in known or wildcard in known), contexts[0])

    contexts[0].sni_callback = choose


def _names(path: str) -> frozenset[str]:
    """Return the DNS names of a certificate in PEM."""
    # The import takes 30 ms and is rarely needed.
    from cryptography import x509

    with open(path, "rb") as file:
        certificate = x509.load_pem_x509_certificate(file.read())
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName))


def _is_valid(tls: ssl.SSLObject, now_ns: int) -> bool:
    """Return whether all certificates that the client of a resumed session once presented are valid at this time.

    The server keeps these certificates with the session for two hours, since it issues no tickets.
    """
    # SSLObject has get_unverified_chain() from Python 3.13 on; the object below it has it from 3.10 on.
    chain = tls._sslobj.get_unverified_chain()  # type: ignore[attr-defined]
    if not chain:
        return False
    for certificate in chain:
        fields = certificate.get_info()
        begin, end = (ssl.cert_time_to_seconds(fields[name]) for name in ("notBefore", "notAfter"))
        if not begin * 1_000_000_000 <= now_ns <= end * 1_000_000_000:
            return False
    return True


def _fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate's public key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = x509.load_der_x509_certificate(certificate).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _no_password() -> str:
    """Refuse encrypted keys; without this callback OpenSSL prompts for the password on the terminal."""
    raise OSError(0, "the private key is encrypted")


def _why(error: OSError, files: CertificateFiles) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "tls: private key does not match public key"
        reason = (error.reason or "no certificate and key in PEM").lower().replace("_", " ")
        return f"{files.cert_file}, {files.key_file}: {reason}"
    where = f"open {error.filename}: " if error.filename else ""
    return where + (os.strerror(error.errno).lower() if error.errno else error.strerror or str(error))
