"""Certificates for tests, made when they are needed: an authority, servers' and clients' certificates signed by it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

__all__ = ["Authority", "Files"]

_START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class Files:
    """A certificate and its key, as files."""

    cert: str
    key: str
    der: bytes


class Authority:
    """An authority that writes the certificates it signs into ``directory``; ``ca`` is the file with its own
    certificate."""

    def __init__(self, directory: Path, name: str = "authority", parent: Authority | None = None,
                 end: datetime.datetime = _END) -> None:
        """Make the authority. Args: ``parent`` signs this authority's certificate, which is then sent with each one
        that it signs."""
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name.from_rfc4514_string(f"CN={name}")
        issuer = parent or self
        self._certificate = (
            issuer._builder(self._subject, self._key.public_key(), end)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(issuer._key, hashes.SHA256()))
        own = self._certificate.public_bytes(Encoding.PEM)
        self._chain = own + parent._chain if parent is not None else b""
        self.ca = str(directory / f"{name}.pem")
        Path(self.ca).write_bytes(own)

    def server(self, name: str = "server", dns: Iterable[str] = ("localhost",)) -> Files:
        """Return a server's certificate for ``dns`` and 127.0.0.1."""
        names: list[x509.GeneralName] = [x509.DNSName(one) for one in dns]
        return self._sign(name, f"CN={name}", [*names, x509.IPAddress(ipaddress.ip_address("127.0.0.1"))],
                          ExtendedKeyUsageOID.SERVER_AUTH)

    def client(self, name: str, subject: str = "CN=client", names: Iterable[x509.GeneralName] = (),
               end: datetime.datetime = _END) -> Files:
        """Return a client's certificate; ``subject`` has the form of RFC 4514."""
        return self._sign(name, subject, list(names), ExtendedKeyUsageOID.CLIENT_AUTH, end)

    def trust(self, client: Files | None = None) -> ssl.SSLContext:
        """Return the context of a client: trust in this authority, and perhaps a certificate.

        The authority's certificates have no key identifiers, as those that some tools make. Go's clients accept them,
        and so does Python before 3.13.
        """
        context = ssl.create_default_context(cafile=self.ca)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return context

    def _sign(self, name: str, subject: str, names: list[x509.GeneralName], usage: x509.ObjectIdentifier,
              end: datetime.datetime = _END) -> Files:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(x509.Name.from_rfc4514_string(subject), key.public_key(), end)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.add_extension(x509.ExtendedKeyUsage([usage]),
                                            critical=False).sign(self._key, hashes.SHA256())
        cert, private = self._directory / f"{name}.pem", self._directory / f"{name}-key.pem"
        cert.write_bytes(certificate.public_bytes(Encoding.PEM) + self._chain)
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return Files(str(cert), str(private), certificate.public_bytes(Encoding.DER))

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey,
                 end: datetime.datetime) -> x509.CertificateBuilder:
        return (x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject).public_key(key)
                .serial_number(x509.random_serial_number()).not_valid_before(_START).not_valid_after(end))
