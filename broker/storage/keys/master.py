"""Master keys, which wrap the keys of a store, and the settings that name them.

    file:/run/secrets/jetblock     the text in this file, without white space around it
    aws-kms:KEY                    a key of AWS KMS, by its id, ARN or alias; it never leaves the service
    any other text                 the text itself

A text is used through HKDF, as it is: it should have 32 random bytes, for instance from ``openssl rand -base64 32``.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from broker.storage.format.errors import KeyMissing
from broker.storage.format.keyring import KEY_VARIABLE
from broker.storage.format.wrapped_keys import unwrap_secret, wrap_secret

__all__ = ["PREVIOUS_VARIABLE", "BadKey", "LocalKey", "MasterKey", "Masters"]

PREVIOUS_VARIABLE: Final = "JETBLOCK_PREV_KEY"

_FILE: Final = "file:"
_KMS: Final = "aws-kms:"


class BadKey(Exception):
    """A setting names no usable master key; ``str()`` never contains the key."""


class MasterKey(Protocol):
    """A key that wraps others. Its calls block, unless it is ``local``.

    Attributes: ``name`` appears in the store, in errors and in logs.
    """

    name: str
    local: bool

    def wrap(self, secret: bytes) -> bytes:
        """Return ``secret``, wrapped. Raises: Transient; StoreRefused."""

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return the secret in ``wrapped``. Raises: KeyMissing if it is not this key's; Transient; StoreRefused."""


class LocalKey:
    """A master key made of a text."""

    local = True

    def __init__(self, text: bytes) -> None:
        self._secret = _derived(text, b"jetblock master key")
        self.name = _derived(text, b"jetblock key name").hex()[:16]

    def wrap(self, secret: bytes) -> bytes:
        return wrap_secret(self._secret, secret, b"")

    def unwrap(self, wrapped: bytes) -> bytes:
        try:
            return unwrap_secret(self._secret, wrapped, b"")
        except ValueError as error:
            raise KeyMissing(b"", f"the master key {self.name} does not open it: {error}") from None


def _derived(text: bytes, info: bytes) -> bytes:
    """Return HKDF (RFC 5869) with SHA-256 and without salt: 32 bytes."""
    extracted = hmac.digest(bytes(hashlib.sha256().digest_size), text, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


class Masters(NamedTuple):
    """The master key, and the previous one while a store may still have keys that it wrapped."""

    current: MasterKey
    previous: MasterKey | None = None

    @classmethod
    def of(cls, key: str, previous: str) -> Masters | None:
        """Return the keys that two settings name; None if there is no key. Raises: BadKey."""
        if not key:
            if previous:
                raise BadKey("there is a prev_key without a key: prev_key is the key that the store had before")
            return None
        return cls(_master(key), _master(previous) if previous else None)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str]) -> Masters | None:
        """Return the keys of a command, or of Spark. Raises: BadKey."""
        return cls.of(environ.get(KEY_VARIABLE, ""), environ.get(PREVIOUS_VARIABLE, ""))

    def named(self, name: str) -> MasterKey | None:
        """Return the key with this name."""
        return next((key for key in self if key is not None and key.name == name), None)


def _master(setting: str) -> MasterKey:
    if setting.startswith(_KMS):
        from broker.storage.keys.kms import KmsKey

        kms: MasterKey = KmsKey(setting.removeprefix(_KMS))
        return kms
    if setting.startswith(_FILE):
        path = setting.removeprefix(_FILE)
        try:
            text = Path(path).read_bytes().strip()
        except OSError as error:
            raise BadKey(f"no key can be read from {path}: {error.strerror or error}") from None
        if not text:
            raise BadKey(f"no key can be read from {path}: it is empty")
        return LocalKey(text)
    return LocalKey(setting.encode())
