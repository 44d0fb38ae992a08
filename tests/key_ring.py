"""Makes this process forget all keys of encrypted stores, as another process has none."""

from __future__ import annotations

import pytest

from broker.storage.format.keyring import KEYS, KeyRing

__all__ = ["forget_keys"]


def forget_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the ring of keys empty, until the test ends."""
    for name, value in vars(KeyRing()).items():
        monkeypatch.setattr(KEYS, name, value)
    monkeypatch.setattr("broker.storage.keys.reading._used", set())
    monkeypatch.setattr("broker.storage.keys.reading._codecs", {})
