"""The treatment of each key of nats-server's configuration, found by giving jetblock a file with the key.

``nats_server_keys.txt`` has every key that nats-server 2.15 knows, by its path (``[]``: in a list, ``A``: a name).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from broker.config.file import read_file
from broker.config.settings import ConfigError

__all__ = ["KEYS", "fate", "table"]

KEYS = (Path(__file__).parent / "nats_server_keys.txt").read_text().split()

_REFUSED = re.compile(r'"(\S+)" ((?:is not supported|needs other servers|is nothing that jetblock).*)')
_NO_EFFECT = re.compile(r"(\S+) has no effect here: (.*)")
ACCEPTED = "accepted"
CELL_MAX = 150
"""Characters of the keys in one row of the table."""
SAMPLES = {
    "authorization.users.[].nkey": "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4",
    "accounts.A.nkey": "AAAACAQDAQCQMBYIBEFAWDANBYHRAEISCMKBKFQXDAMRUGY4DUPB776S",
    "accounts.A.jetstream.cluster_traffic": "owner",
    **dict.fromkeys(("accounts.A.limits.max_leafnodes", "accounts.A.limits.max_leafs"), "1")}
"""Valid values of keys that are refused, or have no effect, only with a valid value."""


def fate(key: str) -> tuple[str, str]:
    """Return the part of a key that jetblock's answer is about, and "accepted", or why it is refused or has no effect.

    Raises: ValueError if jetblock does not know the key.
    """
    *_, last = parts = key.split(".")
    value = SAMPLES.get(key, "true")
    for part in reversed(parts):
        value = f"[ {value} ]" if part == "[]" else f"{{ {part}: {value} }}"
    try:
        lines = read_file("x", {}, lambda _path: value).notices
    except ConfigError as error:
        lines = str(error).splitlines()
    for line in lines:
        found = _REFUSED.search(line)
        if found is not None and found[1] in parts:
            return key[:key.index(found[1]) + len(found[1])], found[2].partition(", not ")[0]
    for line in lines:
        found = _NO_EFFECT.search(line)
        if found is not None and found[1] == last:
            return key, f"has no effect here: {found[2]}"
        if f'nknown field "{last}"' in line:
            raise ValueError(f"{key} is refused as unknown: {line}")
    return key, ACCEPTED


def table() -> Iterator[str]:
    """Yield the rows: one for each block and treatment of its keys, or several if there are many keys."""
    rows: dict[tuple[str, str], dict[str, None]] = {}
    for key in KEYS:
        block, words = fate(key)
        above, _, last = block.rpartition(".")
        rows.setdefault((above.replace(".[]", ""), words), {})[last] = None
    for (above, words), keys in sorted(rows.items()):
        for line in wrap(" ".join(f"`{key}`" for key in keys), CELL_MAX, break_on_hyphens=False):
            yield f"| {f'`{above}`' if above else ''} | {line} | {words} |\n"
