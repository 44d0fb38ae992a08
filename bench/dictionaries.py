"""A measurement that shows whether Zstandard dictionaries would pay, for JSON lines of some 220 bytes.

    python -m bench.dictionaries

Rows are numbers of lines that share a compressed frame. The dictionary is trained on other lines of the same kind, and
is not counted. See docs/adr/0009-no-dictionaries.md.
"""

from __future__ import annotations

import json
import random

import zstandard

_LEVEL = 1
"""The level with which blocks are compressed."""
_LINES = 60_000
_TRAINED_ON = 8000
_MESSAGES_A_FRAME = (1, 4, 16, 64, 256, 600)
_DICTIONARY_BYTES = (8 << 10, 32 << 10, 112 << 10)
_TOPICS = [("orders", "order accepted"), ("billing", "payment captured"), ("auth", "login failed"),
           ("search", "query executed"),
           ("cart", "item added to cart"), ("shipping", "parcel handed to carrier"), ("mail", "mail queued"),
           ("stock", "stock level changed")]


def json_lines(count: int) -> list[bytes]:
    """Return log lines of services, as they come: with times, hosts, random ids and numbers."""
    rng = random.Random(1)
    lines = []
    for i in range(count):
        service, message = rng.choice(_TOPICS)
        lines.append(json.dumps({
            "time": f"2026-11-22T10:{i // 60 % 60:02d}:{i % 60:02d}.{rng.randrange(10**6):06d}Z",
            "level": rng.choice(["info", "info", "info", "warn", "error"]), "service": service,
            "host": f"node-{rng.randrange(40):03d}", "trace": f"{rng.getrandbits(64):016x}",
            "user": rng.randrange(100_000), "message": message, "amount": round(rng.random() * 1000, 2),
            "path": f"/api/v1/{service}/{rng.randrange(5000)}"}).encode())
    return lines


def main() -> None:
    lines = json_lines(_LINES)
    trained_on, lines = lines[:_TRAINED_ON], lines[_TRAINED_ON:]
    dictionaries = [zstandard.train_dictionary(size, trained_on) for size in _DICTIONARY_BYTES]
    print("| messages a frame | raw bytes | no dictionary |",
          " | ".join(f"{size >> 10} KiB" for size in _DICTIONARY_BYTES), "|")
    print("|---:|---:|---:|" + len(dictionaries) * "---:|")
    for count in _MESSAGES_A_FRAME:
        frames = [b"".join(lines[at:at + count]) for at in range(0, min(len(lines), 80 * count), count)]
        raw = sum(map(len, frames))
        plain = _compressed(frames, zstandard.ZstdCompressor(level=_LEVEL))
        cells = []
        for dictionary in dictionaries:
            size = _compressed(frames, zstandard.ZstdCompressor(level=_LEVEL, dict_data=dictionary))
            cells.append(f"{size / raw:.3f} ({size / plain - 1:+.0%})")
        print(f"| {count} | {raw // len(frames)} | {plain / raw:.3f} |", " | ".join(cells), "|")


def _compressed(frames: list[bytes], compressor: zstandard.ZstdCompressor) -> int:
    return sum(len(compressor.compress(frame)) for frame in frames)


if __name__ == "__main__":
    main()
