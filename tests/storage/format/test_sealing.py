"""Sections under a cipher: they open at their place and nowhere else, and no nonce repeats."""

from __future__ import annotations

import random
import threading
from zlib import crc32

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from broker.storage.format import sealing
from broker.storage.format.codec import Undecodable
from broker.storage.format.errors import KeyMissing
from broker.storage.format.header import Position
from broker.storage.format.keyring import KEYS, OVERHEAD, Cipher, DataKey
from broker.storage.format.sealing import SealingCodec
from broker.storage.format.section import SECTIONS, SectionKind, SectionPosition, is_known, pack_header, unpack_header
from tests.key_ring import forget_keys

OWNER = 0x1234
AT: SectionPosition = (Position(3, 42), 7, OWNER, SectionKind.FRAME, 1)
FIXED = b"the fixed part"
RAWS = [b"", b"x", b"abc" * 500, random.Random(1).randbytes(3000)]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[int, DataKey]:
    """Two keys, in a ring that has no others."""
    forget_keys(monkeypatch)
    rng = random.Random(2)
    found = {owner: DataKey(rng.randbytes(8), owner, rng.randbytes(32)) for owner in (OWNER, OWNER + 1)}
    KEYS.add(found.values())
    return found


@pytest.mark.parametrize("cipher", [Cipher.AES, Cipher.CHACHA])
@pytest.mark.parametrize("raw", RAWS)
def test_a_section_opens_at_its_place_and_nowhere_else(keys: dict[int, DataKey], cipher: Cipher, raw: bytes) -> None:
    """Shows the round trip, and that each part of the position, the lengths and the fixed part are authenticated."""
    codec = SealingCodec(cipher, keys.__getitem__)
    section = codec.compress(raw)
    header, stored = codec.seal(section, AT, FIXED)
    assert is_known(header[3])
    assert header[:3] == (len(raw), len(section[0]) + OVERHEAD, crc32(stored))
    assert bytes(SECTIONS.open(header, stored, AT, FIXED)) == raw
    assert SECTIONS.unseal(header, stored, AT, FIXED) == section
    SECTIONS.check(header, stored, AT)
    assert raw[:16] not in stored or len(raw) < 3
    position, object_id, owner, kind, number = AT
    elsewhere: list[tuple[SectionPosition, bytes]] = [
        ((Position(4, 42), object_id, owner, kind, number), FIXED),
        ((Position(3, 43), object_id, owner, kind, number), FIXED),
        ((position, 8, owner, kind, number), FIXED), ((position, object_id, OWNER + 1, kind, number), FIXED),
        ((position, object_id, owner, SectionKind.INDEX, number), FIXED),
        ((position, object_id, owner, kind, 2), FIXED),
        (AT, b"the fixed Part"), (AT, b"")]
    for at, fixed in elsewhere:
        with pytest.raises(Undecodable):
            SECTIONS.open(header, stored, at, fixed)
    for other in ((len(raw) + 1, *header[1:]), (*header[:3], header[3] ^ 1)):
        with pytest.raises(Undecodable):
            SECTIONS.open(other, stored, AT, FIXED)


def test_ten_thousand_tampered_sections_are_refused(keys: dict[int, DataKey]) -> None:
    """Shows that a changed bit is refused although the attacker has set the checksum, and that so are cuts, additions,
    and parts of another section."""
    rng = random.Random(3)
    codec = SealingCodec(Cipher.CHACHA, keys.__getitem__)
    sealed = [codec.seal(codec.compress(raw), AT, FIXED) for raw in RAWS[1:]]
    for _ in range(10_000):
        header, stored = rng.choice(sealed)
        changed = bytearray(stored)
        match rng.randrange(4):
            case 0:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            case 1:
                del changed[rng.randrange(len(changed)):]
            case 2:
                changed += rng.randbytes(rng.randint(1, 20))
            case _:
                other = rng.choice(sealed)[1]
                end = rng.randint(1, min(len(other), len(changed)) - 1)
                changed[:end] = other[:end]
                if changed == stored:
                    continue
        with pytest.raises((Undecodable, KeyMissing)):
            SECTIONS.open((header[0], len(changed), crc32(changed), header[3]), bytes(changed), AT, FIXED)


@pytest.mark.parametrize("cipher", [Cipher.AES, Cipher.CHACHA])
def test_the_bytes_are_those_of_the_format_page(keys: dict[int, DataKey], cipher: Cipher) -> None:
    """Opens a section as another program would, by docs/FORMAT.md alone."""
    header, stored = SealingCodec(cipher, keys.__getitem__).seal((b"secret", 6, 0), AT, FIXED)
    key = keys[OWNER]
    assert stored[:8] == key.key_id
    derived = HKDFExpand(SHA256(), 32, b"jetblock section %d " % cipher + stored[8:24]).derive(key.secret)
    bound = b"".join((OWNER.to_bytes(8, "little"), (3).to_bytes(4, "little"), (42).to_bytes(8, "little"),
                      (7).to_bytes(8, "little"), b"\x03", (1).to_bytes(8, "little"), pack_header(header)[:4],
                      pack_header(header)[12:], FIXED))
    aead = (AESGCM if cipher == Cipher.AES else ChaCha20Poly1305)(derived)
    assert aead.decrypt(stored[24:36], stored[36:], bound) == b"secret"
    assert unpack_header(pack_header(header))[3] == cipher << 8


def test_no_nonce_repeats(keys: dict[int, DataKey], monkeypatch: pytest.MonkeyPatch) -> None:
    """Collects salts and nonces of four threads and two processes' codecs, over the bound of sections under one salt,
    with a generator that always returns the same bytes for nonces: then the counter alone makes them differ."""
    monkeypatch.setattr(sealing, "SECTIONS_MAX", 500)
    rng = random.Random(4)
    found: list[bytes] = []

    def seal(codec: SealingCodec) -> None:
        for number in range(1000):
            owner = OWNER + number % 2
            found.append(codec.seal((b"x", 1, 0), (Position(1, 1), 0, owner, SectionKind.FRAME, 0))[1][:36])

    codecs = [SealingCodec(Cipher.AES, keys.__getitem__,
                           randbytes=lambda size: bytes(8) if size == 8 else rng.randbytes(size)) for _ in range(2)]
    threads = [threading.Thread(target=seal, args=(codec,)) for codec in codecs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(set(found)) == 4000
    assert len({prefix[:24] for prefix in found}) >= 8


def test_a_plain_section_in_place_of_a_sealed_one_is_refused(keys: dict[int, DataKey]) -> None:
    """Shows that nobody without the key can put a message into a stream that was always encrypted."""
    header, stored = SECTIONS.seal((b"forged", 6, 0), AT)
    for call in (SECTIONS.open, SECTIONS.unseal):
        with pytest.raises(Undecodable, match="not encrypted"):
            call(header, stored, AT)
    KEYS.add([keys[OWNER]._replace(since=4)])
    assert SECTIONS.open(header, stored, AT) == b"forged", "epoch 3 was before the encryption"
    with pytest.raises(Undecodable, match="not encrypted"):
        SECTIONS.open(header, stored, (Position(4, 1), *AT[1:]))


def test_keys_that_are_unknown_loaded_later_or_destroyed(keys: dict[int, DataKey]) -> None:
    """Shows that a missing key is no damage, that a loader is asked for it, and that a destroyed one is."""
    key = DataKey(b"a new id", OWNER, bytes(32))
    header, stored = SealingCodec(Cipher.AES, lambda owner: key).seal((b"x", 1, 0), AT)
    with pytest.raises(Undecodable, match="a key that the store does not have"):
        SECTIONS.open(header, stored, AT)
    KEYS._keys.clear()
    with pytest.raises(KeyMissing, match="JETBLOCK_KEY"):
        SECTIONS.open(header, stored, AT)
    KEYS.loaders.append(lambda: KEYS.add([key]))
    assert SECTIONS.open(header, stored, AT) == b"x"
    KEYS.destroy([key.key_id])
    with pytest.raises(Undecodable, match="destroyed"):
        SECTIONS.open(header, stored, AT)
