"""Keys as text: the examples of nats-io's documents are keys, and other texts are not."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.base.nkeys import (
    ACCOUNT,
    CURVE,
    OPERATOR,
    SERVER,
    USER,
    KeyPair,
    decode_base64url,
    decode_signature,
    encode_base64url,
    is_public_key,
    public_key,
    raw_key,
    seed_text,
    verify,
)

SEED = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
PUBLIC = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
"""The public key in nats-server's documentation."""

KINDS = (OPERATOR, ACCOUNT, USER, SERVER, CURVE)
keys = st.binary(min_size=32, max_size=32)


def test_the_documented_example() -> None:
    """The seed in the documentation has that public key, which verifies its signatures."""
    pair = KeyPair.of_seed(SEED)
    assert pair.public == PUBLIC
    assert verify(PUBLIC, b"nonce", pair.sign(b"nonce"))
    assert not verify(PUBLIC, b"other", pair.sign(b"nonce"))
    assert not verify(PUBLIC, b"nonce", b"")
    assert SEED not in repr(pair) + str(vars(pair))


@given(st.sampled_from(KINDS), keys)
def test_text_and_back(kind: str, key: bytes) -> None:
    """A text begins with its kind, and is no key of another kind."""
    text = public_key(kind, key)
    assert (text[0], len(text)) == (kind, 56)
    assert raw_key(text, kind) == raw_key(text) == key
    assert [other for other in KINDS if is_public_key(text, other)] == [kind]
    assert not is_public_key(seed_text(kind, key), kind)


@given(st.sampled_from(KINDS), keys)
def test_seeds(kind: str, secret: bytes) -> None:
    """A seed's text gives the same pair."""
    assert KeyPair.of_seed(seed_text(kind, secret)).public == KeyPair(kind, secret).public


@given(st.sampled_from(KINDS), keys, st.integers(0, 55), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_a_changed_character_is_noticed(kind: str, key: bytes, at: int, char: str) -> None:
    """The checksum covers every character."""
    text = public_key(kind, key)
    assert is_public_key(text[:at] + char + text[at + 1:], kind) is (text[at] == char)


@given(st.one_of(st.text(max_size=60),
                 st.binary(max_size=40).map(lambda raw: base64.b32encode(raw).decode().rstrip("="))))
def test_any_text(text: str) -> None:
    """Text that is no key raises ValueError, and no other error."""
    for kind in KINDS:
        assert not is_public_key(text, kind)
    with pytest.raises(ValueError, match="invalid seed"):
        KeyPair.of_seed(text)
    assert not verify(text, b"x", b"y")


@given(st.binary())
def test_base64(data: bytes) -> None:
    """A signature is decoded in either alphabet, and a token in one, without padding."""
    assert decode_base64url(encode_base64url(data)) == data == decode_signature(base64.b64encode(data).decode())


@pytest.mark.parametrize("text", ["a", "a=", "a+/b", "ab==", "é", "a b", "a\0"])
def test_what_is_not_base64(text: str) -> None:
    """Padding and the other alphabet are refused, as by Go's decoder."""
    with pytest.raises(ValueError):
        decode_base64url(text)
