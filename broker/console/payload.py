"""How the bytes of a message are shown: JSON, text, MessagePack or hexadecimal."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["PREVIEW_BYTES", "VIEWS", "preview", "show"]

VIEWS = ("auto", "json", "text", "msgpack", "hex")

PREVIEW_BYTES = 64 * 1024
"""The largest payload that lists read; a larger one is read when it is opened."""
_SHOWN_BYTES = 256 * 1024
"""Bytes of a payload that are shown; more would make the browser slow. The whole one can be downloaded."""


def show(data: bytes, view: str = "auto") -> tuple[str, str, str]:
    """Return the view that was used, the text to show, and a remark, which is "" if there is none.

    A payload that is not what ``view`` says is shown as hexadecimal, with a remark.
    """
    if view == "auto":
        view = _guess(data)
    shown, cut = data[:_SHOWN_BYTES], len(data) > _SHOWN_BYTES
    remark = f"The first {_SHOWN_BYTES // 1024} KiB of {len(data):,} bytes are shown." if cut else ""
    try:
        match view:
            case "json" if not cut:
                return view, json.dumps(json.loads(data), indent=2, ensure_ascii=False), remark
            case "json" | "text":
                return view, shown.decode("utf-8", "replace" if cut or view == "json" else "strict"), remark
            case "msgpack" if not cut:
                return view, json.dumps(_plain(_unpack(data)), indent=2, ensure_ascii=False), remark
            case "msgpack":
                return "hex", _hex(shown), f"{remark} A MessagePack value of this size is not decoded."
    except (ValueError, RecursionError):
        return "hex", _hex(shown), f"{remark} These bytes are not {_NAMES[view]}.".strip()
    return "hex", _hex(shown), remark


_NAMES = {"json": "JSON", "text": "UTF-8 text", "msgpack": "MessagePack"}


def preview(data: bytes, width: int = 120) -> str:
    """Return one line that begins as the payload does."""
    if not data:
        return ""
    head = data[:4 * width]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3 or not error.start:
            return " ".join(f"{byte:02x}" for byte in head[:width // 3])
        text = head[:error.start].decode()
    return " ".join(text.split())[:width]


def _guess(data: bytes) -> str:
    head = data[:1024].lstrip()
    if head[:1] in (b"{", b"["):
        return "json"
    try:
        text = data[:_SHOWN_BYTES].decode()
    except UnicodeDecodeError as error:
        if error.start >= min(len(data), _SHOWN_BYTES) - 3:
            return "text"
        return _guess_binary(data)
    if all(char.isprintable() or char in "\r\n\t" for char in text[:1024]):
        return "text"
    return _guess_binary(data)


def _guess_binary(data: bytes) -> str:
    """Return ``msgpack`` for one map or array of MessagePack and no byte more; a number would be any byte."""
    if len(data) > _SHOWN_BYTES or not (0x80 <= data[0] <= 0x9F or 0xDC <= data[0] <= 0xDF):
        return "hex"
    try:
        _unpack(data)
    except (ValueError, RecursionError):
        return "hex"
    return "msgpack"


def _unpack(data: bytes) -> Any:
    import msgpack

    try:
        return msgpack.unpackb(data, timestamp=3, strict_map_key=False)
    except (msgpack.UnpackException, TypeError) as error:
        raise ValueError(str(error)) from None


def _plain(value: Any) -> Any:
    """Return ``value`` with what JSON does not have as text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _hex(data: bytes) -> str:
    lines = []
    for at in range(0, min(len(data), 16 * 1024), 16):
        row = data[at:at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)
