"""The codec of writers that encrypt: it seals sections under the keys of their owners (``keyring``)."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any, Final
from zlib import crc32

from broker.storage.format.codec import Compression
from broker.storage.format.errors import KeyMissing
from broker.storage.format.keyring import (
    KEY_VARIABLE,
    KEYS,
    SALT_BYTES,
    SECTIONS_MAX,
    Cipher,
    DataKey,
    aead_of,
    associated_data,
)
from broker.storage.format.section import SECTIONS, Compressed, SectionCodec, SectionHeader, SectionPosition

__all__ = ["KnownKeysCodec", "SealingCodec", "staging_codec"]

_SESSIONS_MAX: Final = 16_384


class _Session:
    """A data key with one salt: the counter gives each section a nonce of its own."""

    __slots__ = ("aead", "counter", "prefix")

    def __init__(self, key: DataKey, salt: bytes, aead: Any) -> None:
        self.prefix = key.key_id + salt
        self.aead = aead
        self.counter = count()


class SealingCodec(SectionCodec):
    """Seals sections by a cipher, and opens all. Several threads may use it.

    Args: ``key_of`` returns the key of an owner (a stream's incarnation, or 0), in any thread. ``randbytes`` must never
        return the same bytes in two processes. ``adopt``: see ``SectionCodec``.
    """

    __slots__ = ("_adopt", "_cipher", "_key_of", "_randbytes", "_sessions")

    sealing = True

    def __init__(self, cipher: Cipher, key_of: Callable[[int], DataKey], compression: Compression = Compression.ZSTD,
                 randbytes: Callable[[int], bytes] = os.urandom, *,
                 adopt: Callable[[int], object] = lambda _: None) -> None:
        super().__init__(compression)
        self._adopt = adopt
        self._cipher = cipher
        self._key_of = key_of
        self._randbytes = randbytes
        self._sessions: dict[int, _Session] = {}

    def expect(self, owner: int) -> None:
        self._key_of(owner)

    def adopt(self, owner: int) -> None:
        self._adopt(owner)

    def plain_before(self, owner: int) -> int:
        return self._key_of(owner).since

    def seal(self, section: Compressed, at: SectionPosition, fixed: bytes = b"", crc: int | None = None
             ) -> tuple[SectionHeader, bytes]:
        data, raw_bytes, compression = section
        form = compression | self._cipher << 8
        session = self._sessions.get(at[2]) or self._begin(at[2])
        number = next(session.counter)
        if number >= SECTIONS_MAX:
            session = self._begin(at[2])
            number = next(session.counter)
        nonce = number.to_bytes(4, "little") + self._randbytes(8)
        stored = b"%b%b%b" % (session.prefix, nonce, session.aead.encrypt(
            nonce, data, associated_data(at, raw_bytes, form, fixed)))
        return (raw_bytes, len(stored), crc32(stored), form), stored

    def _begin(self, owner: int) -> _Session:
        """Draw a salt for an owner. Two threads may do so at once: then both salts are used."""
        key, salt = self._key_of(owner), self._randbytes(SALT_BYTES)
        session = _Session(key, salt, aead_of(self._cipher, key.secret, salt))
        if len(self._sessions) >= _SESSIONS_MAX:
            self._sessions.clear()
        self._sessions[owner] = session
        return session

    def forget(self, owner: int) -> None:
        """Ask for the key of an owner again at the next section."""
        self._sessions.pop(owner, None)


class KnownKeysCodec(SealingCodec):
    """Seals the sections of streams whose keys this process has, and no others.

    It is for segments that a reader makes in memory: readers refuse plain sections of encrypted streams.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(Cipher.AES, _known_key)

    def seal(self, section: Compressed, at: SectionPosition, fixed: bytes = b"", crc: int | None = None
             ) -> tuple[SectionHeader, bytes]:
        if KEYS.of_stream(at[2]) is None:
            return SectionCodec.seal(self, section, at, fixed, crc)
        return super().seal(section, at, fixed)


def _known_key(stream_id: int) -> DataKey:
    key = KEYS.of_stream(stream_id)
    assert key is not None
    return key


def staging_codec(stream_id: int, number: int | None = None) -> SectionCodec:
    """Return the codec for messages that are staged for a stream; ``number``: for requests to the owner of this shard.

    It encrypts if this process has opened the stream's store and the store is encrypted. A process that has a master
    key, and has opened no store, cannot know that. Raises: KeyMissing.
    """
    found = KEYS.shard_of(stream_id, number)
    if found is None and KEY_VARIABLE in os.environ:
        if not KEYS.loaders:
            raise KeyMissing(b"", f"this process has {KEY_VARIABLE}, and has not read the keys of the stream's store: "
                                  f"open the store in this process, by jetblock.store, or pass codec=PLAIN if the "
                                  f"store is not encrypted")
        missing = KEYS.load()
        found = KEYS.shard_of(stream_id, number)
        if found is None and missing is not None:
            raise missing
    if found is None:
        return SECTIONS
    cipher, shard = found
    return SealingCodec(cipher, lambda owner: shard if not owner else _known_key(owner))
