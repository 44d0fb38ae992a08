"""``v1/keys/<shard>-<id>``: data keys of a shard and its streams, wrapped.

    master key ── wraps ──> key of this object ── wraps (AES-256-GCM) ──> data keys

A shard has any number of these objects: its keys are those of all of them. A writer puts another one when a stream is
created, and merges them from time to time. A key that one of them lists as destroyed is not used, even if another one
still has it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.storage.format.document import decode_document, encode_document, field
from broker.storage.format.errors import Corrupt, VersionUnknown
from broker.storage.format.header import ObjectKind, Position
from broker.storage.format.keyring import KEY_BYTES, KEY_ID_BYTES, NONCE_BYTES, Cipher, DataKey

__all__ = ["Destroyed", "WrappedKey", "WrappedKeys", "unwrap_secret", "wrap_secret"]

_NOWHERE: Final = Position(0, 0)


class WrappedKey(NamedTuple):
    """A data key that is wrapped by the key of its object."""

    key_id: bytes
    owner: int
    since: int
    wrapped: bytes


class Destroyed(NamedTuple):
    """A data key that was destroyed, with its owner and the time."""

    key_id: bytes
    owner: int
    at_ns: int


class WrappedKeys(NamedTuple):
    """One object.

    Attributes: ``master`` is the name of the master key that wrapped this object's key, ``wrapped``. ``cipher`` is that
        of its writer: programs that own no shard use it, too.
    """

    shard: int
    keys_id: int
    cipher: Cipher
    master: str
    wrapped: bytes
    keys: Sequence[WrappedKey]
    destroyed: Sequence[Destroyed] = ()

    def encode(self, nonce: bytes) -> bytes:
        """Return the whole object."""
        body = {"shard": self.shard, "cipher": int(self.cipher), "master": self.master, "wrapped": self.wrapped,
                "keys": [list(key) for key in self.keys], "destroyed": [list(key) for key in self.destroyed]}
        return encode_document(ObjectKind.KEYS, _NOWHERE, nonce, body, self.keys_id)

    @classmethod
    def decode(cls, data: bytes, shard: int, keys_id: int) -> WrappedKeys:
        """Decode the object with this shard and id in its key. Raises: Corrupt; VersionUnknown."""
        header, body = decode_document(data, ObjectKind.KEYS, None, keys_id)
        name = header.name
        if field(body, "shard", int, name) != shard:
            raise Corrupt(name, "shard", 72, "it belongs to another shard")
        keys = _rows(field(body, "keys", list, name), (bytes, int, int, bytes), name)
        destroyed = _rows(field(body, "destroyed", list, name), (bytes, int, int), name)
        cipher = field(body, "cipher", int, name)
        if cipher not in set(Cipher):
            raise VersionUnknown(name, "cipher", 72, f"cipher {cipher}: not this reader's")
        return cls(shard, keys_id, Cipher(cipher), field(body, "master", str, name),
                   field(body, "wrapped", bytes, name), [WrappedKey(*row) for row in keys],
                   [Destroyed(*row) for row in destroyed])

    def unwrap(self, secret: bytes) -> list[DataKey]:
        """Return the data keys; ``secret`` is the key of this object. Raises: Corrupt."""
        try:
            return [DataKey(key.key_id, key.owner, unwrap_secret(secret, key.wrapped, _bound(self.shard, *key[:3])),
                            key.since) for key in self.keys]
        except ValueError as error:
            raise Corrupt(f"keys {self.keys_id:016x}", "keys", 84, str(error)) from None

    @classmethod
    def wrap(cls, shard: int, keys_id: int, cipher: Cipher, master: str, wrapped: bytes, secret: bytes,
             keys: Sequence[DataKey], destroyed: Sequence[Destroyed] = ()) -> WrappedKeys:
        """Return the object with these data keys; ``secret`` is its key, and ``wrapped`` the same key, wrapped."""
        return cls(shard, keys_id, cipher, master, wrapped, [
            WrappedKey(key.key_id, key.owner, key.since,
                       wrap_secret(secret, key.secret, _bound(shard, key.key_id, key.owner, key.since)))
            for key in keys], destroyed)


def _bound(shard: int, key_id: bytes, owner: int, since: int) -> bytes:
    return b"%d %b %d %d" % (shard, key_id, owner, since)


def wrap_secret(key: bytes, secret: bytes, bound: bytes) -> bytes:
    """Return ``secret``, wrapped by ``key`` and bound to these bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, secret, bound)


def unwrap_secret(key: bytes, wrapped: bytes, bound: bytes) -> bytes:
    """Return the secret that ``wrap_secret`` wrapped. Raises: ValueError for another key, or other bytes."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        secret = AESGCM(key).decrypt(wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], bound)
    except (InvalidTag, ValueError):
        raise ValueError("a wrapped key was changed, or another key wrapped it") from None
    if len(secret) != KEY_BYTES:
        raise ValueError(f"a wrapped key has {len(secret)} bytes")
    return secret


def _rows(rows: list[Any], kinds: tuple[type, ...], name: str) -> list[Any]:
    for row in rows:
        if type(row) is not list or tuple(map(type, row)) != kinds or len(row[0]) != KEY_ID_BYTES:
            raise Corrupt(name, "keys", 72, "a row has other fields")
    return rows
