"""The report of an erasure: a JSON document with a signature, and the same as one page of HTML.

The report has sequences, keys of objects and checksums. It never has a subject, a header or a payload: it may be shown
to anybody, and kept for longer than the messages.

    {"format": "jetblock erasure 1", …, "signature": {"by": NKey, "signature": base64url of Ed25519}}

Signed are the bytes of the document without ``signature``, as JSON with sorted keys and without white space.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from broker.base.html_page import facts_table, page, rows_table
from broker.base.nkeys import KeyPair, decode_signature, encode_base64url, verify
from broker.base.output import size

__all__ = ["FORMAT", "SEED_VARIABLE", "BadReport", "html", "read", "sign", "signer"]

FORMAT: Final = "jetblock erasure 1"
SEED_VARIABLE: Final = "JETBLOCK_ERASURE_SEED"
_KIND: Final = "U"


class BadReport(Exception):
    """A report cannot be used; ``str()`` gives the reason."""


def signer(path: str) -> KeyPair:
    """Return the key that signs: the NKey seed in the file ``path``, else in the environment, else a new one.

    Raises: BadReport.
    """
    seed = os.environ.get(SEED_VARIABLE, "")
    if path:
        try:
            with open(path, encoding="utf-8") as file:
                seed = file.read()
        except (OSError, UnicodeError) as error:
            raise BadReport(f"{path}: cannot be read: {error}") from None
    if not seed.strip():
        return KeyPair(_KIND, secrets.token_bytes(32))
    try:
        return KeyPair.of_seed(seed.strip())
    except ValueError:
        raise BadReport(f"{path or SEED_VARIABLE}: the seed in it is not valid: make one with `nk -gen user`") from None


def sign(report: dict[str, Any], pair: KeyPair) -> dict[str, Any]:
    """Return the report with its signature."""
    signature = {"by": pair.public, "signature": encode_base64url(pair.sign(_signed(report)))}
    return {**report, "signature": signature}


def read(text: str, name: str, by: str = "") -> dict[str, Any]:
    """Return a report after a check of its signature; ``by``: the public key that must have signed it, "" for any.

    Raises: BadReport.
    """
    try:
        report = json.loads(text)
        signature = report["signature"]
        public, sealed = str(signature["by"]), decode_signature(signature["signature"])
    except (ValueError, KeyError, TypeError):
        raise BadReport(f"{name}: this is no report of an erasure") from None
    if report.get("format") != FORMAT:
        raise BadReport(f"{name}: format {report.get('format')!r}: this release knows {FORMAT!r}")
    if not verify(public, _signed(report), sealed):
        raise BadReport(f"{name}: the signature does not match: the report was changed")
    if by and public != by:
        raise BadReport(f"{name}: it is signed by {public}, not by {by}")
    return dict(report)


def _signed(report: Mapping[str, Any]) -> bytes:
    unsigned = {key: value for key, value in report.items() if key != "signature"}
    return json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def html(report: Mapping[str, Any]) -> str:
    """Return the report as one page without references to anything else."""
    facts = {name: report[key] for name, key in (
        ("Store", "store"), ("Account", "account"), ("Stream", "stream"), ("Erasure", "erasure"),
        ("Chosen by", "chosen_by"), ("Requested", "requested"), ("Due", "due"), ("Done", "done")) if report.get(key)}
    facts["Signed by"] = report["signature"]["by"]
    if report.get("key"):
        facts["Key destroyed"] = report["key"]
    parts = [facts_table(facts), "<h2>Streams</h2>", rows_table(
        ("Stream", "Incarnation", "Sequences"),
        [(one["stream"], one["incarnation"], one["sequences"].replace(",", ", ")) for one in report["streams"]])]
    parts += ["<h2>Deleted objects</h2>", _objects(report["deleted"])]
    parts += ["<h2>Objects that replace them</h2>", _objects(report["made"])]
    for heading, key in (("Not erased", "not_erased"), ("Not covered", "not_covered")):
        items = "".join(rows_table(("",), [(one,) for one in report[key]]))
        parts.append(f"<h2>{heading}</h2>{items}")
    return page("Erasure", f"Erasure of messages of {report['stream']}", "".join(parts))


def _objects(objects: list[dict[str, Any]]) -> str:
    return rows_table(("Key", "Size", "SHA-256", "Note"), [
        (one["key"], size(one["size"]), one["sha256"], one.get("note", "")) for one in objects], ("Size",))
