"""Data keys, and the bytes of a section under a cipher.

    stored section    key id 8 | salt 16 | nonce 12 | ciphertext | tag 16

A data key seals the sections of one owner: of a stream, or of a shard for what belongs to no stream (owner 0). No
section is sealed under the data key itself. The key of a section is HKDF-Expand (RFC 5869) of the data key, with the
cipher and the salt as its info. A writer draws a salt for each owner and process run, and a new one after
``SECTIONS_MAX`` sections.

    nonce             counter 4 | random 8

The counter makes nonces differ under one salt, whatever the random part is. The random part makes them differ if the
memory of a running writer is copied, as a snapshot of a virtual machine is.

Associated data are the position of the section, its bytes before compression, its form, and the fixed part of the core,
index or page in front of its header. So a section that was moved, or whose fixed part was changed, cannot be opened.

``KEYS`` has the keys of this process. An id is random, and a reader finds it in the section, so one ring serves all
stores of a process. docs/adr/0022-encryption.md has the reasons.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from broker.storage.format.codec import Stored, Undecodable
from broker.storage.format.errors import KeyMissing

__all__ = ["KEYS", "KEY_BYTES", "KEY_ID_BYTES", "KEY_VARIABLE", "NONCE_BYTES", "NOT_SETTLED", "OVERHEAD",
           "PREFIX_BYTES", "SALT_BYTES", "SECTIONS_MAX", "Cipher", "DataKey", "KeyRing", "aead_of", "associated_data",
           "cipher_of"]

KEY_VARIABLE: Final = "JETBLOCK_KEY"
"""The environment variable with the master key, for programs that have no configuration."""

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
PREFIX_BYTES: Final = KEY_ID_BYTES + SALT_BYTES
"""Key id and salt, which select the key of a section."""
OVERHEAD: Final = PREFIX_BYTES + NONCE_BYTES + _TAG_BYTES
"""The bytes that a cipher adds to a section."""
SECTIONS_MAX: Final = 1 << 24
"""The most sections under one salt."""
NOT_SETTLED: Final = 1 << 32
"""The ``since`` of a key that was drawn before the state of its stream was known. No epoch is so high."""

_DATA_AT: Final = PREFIX_BYTES + NONCE_BYTES
_AEADS_MAX: Final = 16_384
_POSITION: Final = struct.Struct("<QIQQBQII")

OwnedPosition = tuple[tuple[int, int], int, int, int, int]
"""A ``SectionPosition``: position and id of the object, owner, kind and number of the section."""


class Cipher(IntEnum):
    """The cipher of a section, the second byte of its form. Numbers are permanent and never reused.

    1 is that of golden objects, which stand for those of a newer release.
    """

    NONE = 0
    AES = 2
    """AES-256-GCM"""
    CHACHA = 3
    """ChaCha20-Poly1305"""


class DataKey(NamedTuple):
    """A key of one owner: a stream's incarnation, or 0 for a shard.

    ``since`` is the first epoch in which everything of the stream was sealed; 0: all epochs. A plain section of that
    epoch or a later one is refused. ``NOT_SETTLED``: the next owner of the shard says which epoch that is.
    """

    key_id: bytes
    owner: int
    secret: bytes
    since: int = 0

    def __repr__(self) -> str:
        return f"<DataKey {self.key_id.hex()} of {self.owner:016x}>"


def cipher_of(form: int) -> int:
    """Return the cipher in a form."""
    return form >> 8 & 0xFF


def aead_of(cipher: int, secret: bytes, salt: bytes) -> Any:
    """Return the cipher's implementation with the key that is derived from ``secret`` and ``salt``."""
    # Imported here: a reader of plain stores, such as Spark's executors, need not have this package.
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = b"jetblock section %d " % cipher + salt
    key = HKDFExpand(SHA256(), KEY_BYTES, info).derive(secret)
    return AESGCM(key) if cipher == Cipher.AES else ChaCha20Poly1305(key)


def associated_data(at: OwnedPosition, raw_bytes: int, form: int, fixed: bytes) -> bytes:
    """Return the data that a section is bound to."""
    position, object_id, owner, kind, number = at
    return _POSITION.pack(owner, *position, object_id, kind, number, raw_bytes, form) + fixed


class KeyRing:
    """The data keys of a process. Several threads may use it.

    Attributes: ``loaders`` are called, in order, when a section's key is unknown; each may add keys.
    """

    def __init__(self) -> None:
        self.loaders: list[Callable[[], object]] = []
        self._keys: dict[bytes, DataKey] = {}
        self._destroyed: set[bytes] = set()
        self._since: dict[int, int] = {}
        self._of_stream: dict[int, tuple[DataKey, ...]] = {}
        """A stream has several keys if two shards had its blocks when its store became encrypted."""
        self._shards: dict[int, dict[int, tuple[Cipher, DataKey]]] = {}
        """The ciphers and keys of the shards that have a key of a stream, by stream and number of the shard: a ring may
        have keys of several stores."""
        self._aeads: dict[bytes, Any] = {}

    def add(self, keys: Iterable[DataKey]) -> None:
        """Add keys."""
        for key in keys:
            self._keys[key.key_id] = key
            if key.owner:
                # Two shards may have the key of a stream that moves. What it leaves in the first one may be plain.
                self._since[key.owner] = max(self._since.get(key.owner, 0), key.since)
                self._of_stream[key.owner] = (*self._others(key), key)

    def settle(self, key: DataKey) -> None:
        """Replace a key whose ``since`` was not settled."""
        self._keys[key.key_id] = key
        self._of_stream[key.owner] = (*self._others(key), key)
        self._since[key.owner] = max(one.since for one in self._of_stream[key.owner])

    def _others(self, key: DataKey) -> list[DataKey]:
        return [one for one in self._of_stream.get(key.owner, ()) if one.key_id != key.key_id]

    def add_shard(self, number: int, cipher: Cipher, keys: Iterable[DataKey]) -> None:
        """Note which streams have keys in a shard, and the cipher of its writers; ``keys`` are those of the shard."""
        keys = list(keys)
        for shard in [key for key in keys if not key.owner]:
            for key in keys:
                if key.owner:
                    self._shards[key.owner] = self._shards.get(key.owner, {}) | {number: (cipher, shard)}

    def shard_of(self, stream_id: int, number: int | None = None) -> tuple[Cipher, DataKey] | None:
        """Return the cipher and the key of a shard, or of any shard, that has a key of a stream; None: none is known.
        """
        shards = self._shards.get(stream_id, {}) if stream_id in self._of_stream else {}
        return next(iter(shards.values()), None) if number is None else shards.get(number)

    def destroy(self, key_ids: Iterable[bytes]) -> None:
        """Forget keys that were destroyed: their sections count as damaged."""
        for key_id in key_ids:
            self._destroyed.add(key_id)
            if (key := self._keys.pop(key_id, None)) is not None:
                if others := self._others(key):
                    self._of_stream[key.owner] = tuple(others)
                else:
                    self._since.pop(key.owner, None)
                    self._of_stream.pop(key.owner, None)
            for prefix in [prefix for prefix in self._aeads.copy() if prefix.startswith(key_id)]:
                self._aeads.pop(prefix, None)

    def get(self, key_id: bytes) -> DataKey | None:
        """Return the key with this id, if it is known."""
        return self._keys.get(key_id)

    def of_stream(self, stream_id: int) -> DataKey | None:
        """Return the key of a stream, or one of them, if it is known."""
        keys = self._of_stream.get(stream_id)
        return None if keys is None else keys[-1]

    def all_of_stream(self, stream_id: int) -> tuple[DataKey, ...]:
        """Return all known keys of a stream."""
        return self._of_stream.get(stream_id, ())

    def plain_before(self, owner: int) -> int:
        """Return the epoch before which parts of a stream may be plain, 0: none are, because all were sealed or the
        stream has no key."""
        return self._since.get(owner, 0)

    def refuses_plain(self, at: OwnedPosition) -> bool:
        """Return whether a plain section at this position was put in place of a sealed one.

        A staged run has no epoch, and an inline part of a page has no position: both may be plain unless their stream
        never had plain sections.
        """
        since = self._since.get(at[2])
        return since is not None and (not since or at[0][0] >= since)

    def open(self, form: int, stored: Stored, at: OwnedPosition, raw_bytes: int, fixed: bytes) -> bytes:
        """Return the bytes that were sealed, perhaps compressed.

        Raises: Undecodable if they are not those of this position, or their key was destroyed; KeyMissing.
        """
        from cryptography.exceptions import InvalidTag

        if len(stored) < OVERHEAD:
            raise Undecodable("it is shorter than its cipher needs")
        cipher = cipher_of(form)
        prefix = bytes(stored[:PREFIX_BYTES])
        key = self._key(prefix[:KEY_ID_BYTES])
        if key.owner != at[2]:
            raise Undecodable("it is sealed under the key of another stream")
        which = prefix + bytes((cipher,))
        aead = self._aeads.get(which)
        if aead is None:
            if len(self._aeads) >= _AEADS_MAX:
                self._aeads.clear()
            aead = self._aeads[which] = aead_of(cipher, key.secret, prefix[KEY_ID_BYTES:])
        try:
            data: bytes = aead.decrypt(stored[PREFIX_BYTES:_DATA_AT], stored[_DATA_AT:],
                                       associated_data(at, raw_bytes, form, fixed))
        except InvalidTag:
            raise Undecodable("it was changed, or belongs to another place: its cipher does not confirm it") from None
        return data

    def load(self) -> KeyMissing | None:
        """Call all loaders; return why one of them cannot load its keys."""
        missing: KeyMissing | None = None
        for load in self.loaders:
            try:
                load()
            except KeyMissing as error:  # perhaps of another store
                missing = error
        return missing

    def _key(self, key_id: bytes) -> DataKey:
        key = self._keys.get(key_id)
        if key is None and key_id not in self._destroyed:
            missing = self.load()
            key = self._keys.get(key_id)
            if key is None and missing is not None:
                raise missing
            if key is None and (self.loaders or self._keys) and key_id not in self._destroyed:
                raise Undecodable(f"it is sealed under a key that the store does not have: {key_id.hex()}")
        if key is None:
            if key_id in self._destroyed:
                raise Undecodable("its key was destroyed")
            raise KeyMissing(key_id)
        return key


KEYS: Final = KeyRing()
"""The keys of this process."""
