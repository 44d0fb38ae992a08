"""NKeys: Ed25519 keys as text that begins with their kind, such as ``UDXU4RCS…`` for a user, and their signatures.

    text   base32 of   kind (1 byte)   key (32 bytes)   CRC-16 of both (2 bytes, little-endian)
    seed   base32 of   'S' and kind (2 bytes)   seed (32 bytes)   CRC-16

Without I/O. ``cryptography`` takes 30 ms to import, and is imported with the first signature.

Source: nats-io/nkeys, strkey.go, keypair.go, public.go.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["ACCOUNT", "CURVE", "KEY_CHARS", "OPERATOR", "SERVER", "USER", "CurveKeyPair", "KeyPair", "decode_base64url",
           "decode_signature", "encode_base64url", "is_public_key", "public_key", "raw_key", "seed_text",
           "split_credentials", "verify"]

OPERATOR, ACCOUNT, USER, SERVER, CURVE = "O", "A", "U", "N", "X"
"""The kinds of keys that jetblock knows, by the letter that begins their text."""

KEY_CHARS: Final = 56
_PREFIXES: Final = {OPERATOR: 14 << 3, ACCOUNT: 0, USER: 20 << 3, SERVER: 13 << 3, CURVE: 23 << 3}
_SEED: Final = 18 << 3
_SEALED: Final = b"xkv1"
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*")
_TOKEN: Final = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END")
_SEED_BLOCK: Final = re.compile(r"-----BEGIN USER NKEY SEED-----\s+(\S+)\s+-+END")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/]*={0,2}")


def public_key(kind: str, key: bytes) -> str:
    """Return the text of the public key ``key``."""
    return _text(bytes([_PREFIXES[kind]]) + key)


def raw_key(text: str, kind: str = "") -> bytes:
    """Return the 32 bytes of a public key, of ``kind`` if given. Raises: ValueError."""
    raw = _raw(text)
    if raw is None or len(raw) != 33 or raw[0] not in _PREFIXES.values() or (kind and raw[0] != _PREFIXES[kind]):
        raise ValueError("nkeys: invalid public key")
    return raw[1:]


def is_public_key(text: str, kind: str) -> bool:
    """Return whether ``text`` is a public key of ``kind``."""
    try:
        raw_key(text, kind)
    except ValueError:
        return False
    return True


def verify(public: str, message: bytes, signature: bytes) -> bool:
    """Return whether ``signature`` of ``message`` is by the private part of ``public``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(raw_key(public)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class KeyPair:
    """A key that signs, made from 32 secret bytes, which ``repr`` leaves out."""

    def __init__(self, kind: str, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key: Ed25519PrivateKey = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = public_key(kind, self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))
        """The public key's text."""

    @classmethod
    def of_seed(cls, seed: str) -> KeyPair:
        """Return the pair of the seed ``S…``. Raises: ValueError, without the seed in its text."""
        raw = _raw(seed)
        if raw is None or len(raw) != 34 or raw[0] & 0xF8 != _SEED:
            raise ValueError("nkeys: invalid seed")
        prefix = (raw[0] & 7) << 5 | raw[1] >> 3
        kinds = [kind for kind, known in _PREFIXES.items() if known == prefix]
        if not kinds:
            raise ValueError("nkeys: invalid seed")
        return cls(kinds[0], raw[2:])

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


class CurveKeyPair:
    """An X25519 key that encrypts messages for one reader, and proves to that reader who sent them.

        "xkv1"   nonce (24 bytes)   XSalsa20-Poly1305 box

    ``PyNaCl``, which has that box, takes 150 ms to import, and is imported here. Source: nats-io/nkeys, xkeys.go.
    """

    def __init__(self, secret: bytes) -> None:
        from nacl.public import PrivateKey

        self._key = PrivateKey(secret)
        self.public = public_key(CURVE, bytes(self._key.public_key))

    def seal(self, message: bytes, reader: str) -> bytes:
        """Encrypt ``message`` for ``reader``. Raises: ValueError if ``reader`` is no public curve key."""
        from nacl.public import Box, PublicKey

        return _SEALED + bytes(Box(self._key, PublicKey(raw_key(reader, CURVE))).encrypt(message))

    def open(self, sealed: bytes, sender: str) -> bytes:
        """Decrypt a message. Raises: ValueError if ``sender`` did not seal it for this key."""
        from nacl.exceptions import CryptoError
        from nacl.public import Box, PublicKey

        if not sealed.startswith(_SEALED):
            raise ValueError("nkeys: encrypted input wrong version")
        try:
            return Box(self._key, PublicKey(raw_key(sender, CURVE))).decrypt(sealed.removeprefix(_SEALED))
        except (CryptoError, ValueError):
            raise ValueError("nkeys: could not decrypt input") from None


def seed_text(kind: str, secret: bytes) -> str:
    """Return the text of the seed with these 32 bytes."""
    prefix = _PREFIXES[kind]
    return _text(bytes([_SEED | prefix >> 5, (prefix & 31) << 3]) + secret)


def split_credentials(text: str) -> tuple[str, str]:
    """Return the token and the seed of a user's credentials file. Raises: ValueError."""
    token, seed = _TOKEN.search(text), _SEED_BLOCK.search(text)
    if token is None or seed is None:
        raise ValueError("no credentials: a user's token and seed are expected in it")
    return token[1], seed[1]


def encode_base64url(data: bytes) -> str:
    """Encode as URL-safe base64 without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_base64url(text: str) -> bytes:
    """Decode URL-safe base64 without padding; line ends are ignored, as by Go's decoder. Raises: ValueError."""
    text = text.replace("\r", "").replace("\n", "")
    if not _BASE64URL.fullmatch(text):
        raise ValueError("illegal base64 data")
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def decode_signature(text: str) -> bytes:
    """Decode a signature in URL-safe or standard base64. Raises: ValueError."""
    try:
        return decode_base64url(text)
    except ValueError:
        if not _BASE64.fullmatch(text):
            raise
        return base64.b64decode(text)


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


def _raw(text: str) -> bytes | None:
    """Decode ``text`` and remove the checksum; None if the checksum is wrong."""
    try:
        raw = base64.b32decode(text + "=" * (-len(text) % 8))
    except ValueError:
        return None
    return raw[:-2] if binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little") else None
