"""An account's ``msg_trace``: a destination, or a block of ``dest`` and ``sampling``.

Source: nats-server, server/opts.go parseAccountMsgTrace.
"""

from __future__ import annotations

from broker.access.accounts import OuterTrace
from broker.config.reading.findings import Findings, aliases, go_type
from broker.config.syntax import Value
from broker.protocol.subject import is_literal, is_valid

__all__ = ["read_outer_trace"]


def read_outer_trace(written: str, value: Value, found: Findings) -> OuterTrace | None:
    """Read the setting; None without a destination, or after an error."""
    if isinstance(value.value, str):
        dest = _read_dest(written, value, found)
        return OuterTrace(dest) if dest else None
    if not isinstance(value.value, dict):
        found.wrong(value, f'Expected account message trace "{written}" to be a string or a map/struct, got '
                           f'{go_type(value)}')
        return None
    dest, sampling = "", 0
    for name, key, inner in found.fields(value, aliases("dest", "sampling"),
                                         f'Unknown field "{{}}" parsing account message trace map/struct "{written}"'):
        if name == "dest":
            dest = _read_dest(key, inner, found)
        else:
            sampling = _read_sampling(key, inner, found)
    if sampling and not dest:
        found.notice(value, "Trace destination sampling ignored since no destination was set")
    return OuterTrace(dest, sampling or 100) if dest else None


def _read_dest(written: str, value: Value, found: Findings) -> str:
    if not isinstance(value.value, str):
        found.wrong(value, f'Field "{written}" should be a string, got {go_type(value)}')
        return ""
    subject = value.value.encode()
    if not (is_valid(subject) and is_literal(subject)):
        found.wrong(value, f'Trace destination "{value.value}" is not valid')
        return ""
    return value.value


def _read_sampling(written: str, value: Value, found: Findings) -> int:
    """Read percent; 0 after an error."""
    given = value.value
    if isinstance(given, str):
        digits = given.removesuffix("%")
        if not digits.lstrip("+-").isascii() or not digits.lstrip("+-").isdigit() or len(digits) > 9:
            found.wrong(value, f'Invalid trace destination sampling value "{given}"')
            return 0
        given = int(digits)
    if not isinstance(given, int) or isinstance(given, bool):
        found.wrong(value, f'Trace destination sampling field "{written}" should be an integer or a percentage, '
                           f"got {go_type(value)}")
        return 0
    if not 1 <= given <= 100:
        found.wrong(value, f"Ttrace destination sampling value {given} is invalid, needs to be [1..100]")
        return 0
    return given
