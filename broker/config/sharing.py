"""Exports and imports between accounts, and mappings within one: plain values, and the constraints between them.

    an export   a stream (messages go out) or a service (requests come in) that other accounts may import
    an import   a stream or service of another account, under a local subject
    a mapping   messages published to one subject go to another

Source: nats-server, server/accounts.go (checkStreamExportApproved, checkServiceImportsForCycles, AddWeightedMappings).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from broker.protocol.subject import collide, is_literal, is_valid, subset
from broker.protocol.subject_transform import SubjectTransform, TransformError, check_mapping, numbered, unnumbered

__all__ = ["Destination", "Export", "Import", "Latency", "SubjectMapping", "export_of", "import_problem", "local_subject",
           "mapping_problem", "sharing_problems"]

_CYCLE_DEPTH_MAX = 1024
_CYCLE_STEPS_MAX = 20_000
"""Of one search for a cycle, past which it counts as found: accounts that share in many ways have very many paths."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Where a service's latencies are published; ``sampling`` in percent; 0: if a request's headers ask for it."""

    subject: str
    sampling: int = 100


@dataclass(frozen=True, slots=True)
class Export:
    """``accounts`` None: public; () with a token: accounts with an activation token."""

    kind: Literal["stream", "service"]
    subject: str
    accounts: tuple[str, ...] | None = None
    response_type: Literal["singleton", "stream", "chunked"] = "singleton"
    response_threshold_ns: int = 0
    """0: nats-server's default of 2 minutes."""

    latency: Latency | None = None
    account_token_position: int = 0
    """The position, from 1, of the subject token that must be the importing account's name; 0: none."""

    allow_trace: bool = False


@dataclass(frozen=True, slots=True)
class Import:
    """``subject`` is the exporting account's."""

    kind: Literal["stream", "service"]
    account: str
    subject: str
    to: str = ""
    """The local subject; "": the same."""

    prefix: str = ""
    """The local prefix of a stream's subject."""

    share: bool = False
    """Whether the service gets information about the requesting client."""

    allow_trace: bool = False
    activated: bool = False
    """Whether an activation token permits it, which was checked where the import was read."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a share of the messages."""

    subject: str
    weight: int = 100
    """Percent."""

    cluster: str = ""
    """Only in the cluster of this name; "": in all."""


@dataclass(frozen=True, slots=True)
class SubjectMapping:
    """The share that the weights leave of 100 % stays at ``source``, unless that is a destination itself."""

    source: str
    destinations: tuple[Destination, ...]


class Sharer(Protocol):
    """An account."""

    @property
    def name(self) -> str: ...

    @property
    def exports(self) -> tuple[Export, ...]: ...

    @property
    def imports(self) -> tuple[Import, ...]: ...


def mapping_problem(mapping: SubjectMapping) -> str:
    """Why nats-server would refuse the destinations, apart from their functions; "": it would not."""
    seen = set()
    totals: dict[str, int] = {}
    for one in mapping.destinations:
        if one.subject in seen:
            return f'duplicate entry for "{one.subject}"'
        seen.add(one.subject)
        totals[one.cluster] = totals.get(one.cluster, 0) + one.weight
        if totals[one.cluster] > 100:
            return "total weight needs to be <= 100"
        if not is_valid(_without_functions(one.subject).encode()):
            return f"invalid mapping destination: {one.subject}"
        try:
            check_mapping(mapping.source.encode(), one.subject.encode())
        except TransformError as error:
            return str(error)
    return ""


def local_subject(one: Import) -> str:
    """The importing account's subject: a destination that the exporting account's subject fills."""
    return one.to or (f"{one.prefix.removesuffix('.')}.{one.subject}" if one.prefix else one.subject)


def _without_functions(subject: str) -> str:
    """``{{partition(3, 1)}}`` may contain spaces and dots, which do not count in the subject."""
    before, opening, rest = subject.partition("{{")
    if not opening:
        return subject
    _, closing, after = rest.partition("}}")
    return before + "f" + _without_functions(after) if closing else subject


def sharing_problems(accounts: Sequence[Sharer]) -> Iterator[tuple[str, str]]:
    """The errors between the accounts' exports and imports: account, and why, in nats-server's words."""
    by_name = {account.name: account for account in accounts}
    for kind in ("stream", "service"):
        for account in accounts:
            for export in account.exports:
                if export.kind == kind:
                    for why in _export_problems(export, by_name):
                        yield account.name, why
    added: dict[str, list[Import]] = {}
    for kind in ("stream", "service"):
        for account in accounts:
            for one in account.imports:
                if one.kind != kind:
                    continue
                why = import_problem(account, one, by_name, added)
                if why:
                    yield account.name, why
                else:
                    added.setdefault(account.name, []).append(one)


def _export_problems(export: Export, accounts: Mapping[str, Sharer]) -> Iterator[str]:
    unknown = [name for name in export.accounts or () if name not in accounts]
    for name in unknown:
        yield f'"{name}" account not defined for {export.kind} export'
    position, tokens = export.account_token_position, export.subject.split(".")
    if position and (position > len(tokens) or tokens[position - 1] != "*"):
        yield f'Error adding {export.kind} export "{export.subject}": sublist: invalid subject'
    elif export.latency is not None:
        results = export.latency.subject
        why = "" if is_valid(results.encode()) and is_literal(results.encode()) else "invalid publish subject"
        if export.response_type != "singleton":
            why = why or "bad service response type"
        if why:
            yield (f'Error adding service latency sampling for "{export.subject}" on subject "{results}": {why}')


def import_problem(account: Sharer, one: Import, accounts: Mapping[str, Sharer],
                   added: Mapping[str, Sequence[Import]]) -> str:
    """Why ``account`` cannot import ``one`` beside the imports ``added`` already, by account; "": it can."""
    exporter = accounts.get(one.account)
    if exporter is None:
        return f'"{one.account}" account not defined for {one.kind} import'
    error = f'Error adding {one.kind} import "{one.subject}": '
    here = local_subject(one)
    if one.kind == "service" and not (is_valid(one.subject.encode()) and is_valid(here.encode())):
        return error + "sublist: invalid subject"
    if any(map(str.isspace, _without_functions(here))):
        # On nats-server a stream's may; a line end would be read as the next operation by who receives it.
        return error + "the local subject can not contain white space"
    if not _authorized(exporter, account.name, one):
        return f"{error}{one.kind} import not authorized"
    if one.prefix and not is_literal(one.prefix.encode()):
        return error + "stream import prefix can not contain wildcard tokens"
    mine = [other for other in added.get(account.name, ()) if (other.kind, other.account) == (one.kind, one.account)]
    looked_for = [here] if one.kind == "service" else [here, one.subject]
    for subject in looked_for:
        if _cycle(exporter, subject, one.kind, {account.name}, accounts, added, [_CYCLE_STEPS_MAX]):
            return error + "import forms a cycle"
    if one.kind == "stream" and any(other.subject == one.subject for other in mine):
        return error + "stream import already exists"
    if one.kind == "service" and (same := [other for other in mine if (other.to or other.subject) == here]):
        return (f'{error}duplicate service import subject "{here}", previously used in import for account '
                f'"{one.account}", subject "{same[0].subject}"')
    return error + why if (why := _transform_problem(one, here)) else ""


def export_of(exporter: Sharer, one: Import) -> Export | None:
    """The export that covers ``one``; one of the same subject precedes wider ones."""
    exports = {export.subject: export for export in exporter.exports if export.kind == one.kind}
    wider = (export for subject, export in exports.items() if subset(one.subject.encode(), subject.encode()))
    return exports.get(one.subject) or next(wider, None)


def _authorized(exporter: Sharer, importer: str, one: Import) -> bool:
    """Whether the exporting account permits this import."""
    export = export_of(exporter, one)
    if export is None:
        return False
    position = export.account_token_position
    if position:
        # A wildcard in that position, as in an import of the export's own subject, is no account's name.
        tokens = one.subject.split(".")
        return position <= len(tokens) and tokens[position - 1] == importer
    return export.accounts is None or one.activated or importer in export.accounts


def _transform_problem(one: Import, here: str) -> str:
    """Why the exporting account's subject cannot become the local one, or the reverse; "": it can."""
    source = one.subject.encode()
    if is_literal(source) or here == one.subject:
        return ""
    try:
        if one.kind == "stream":
            SubjectTransform(source, numbered(here.encode()), strict=True)
        else:
            SubjectTransform(unnumbered(source), numbered(here.encode()), strict=True)
    except TransformError as error:
        pair = f'"{one.subject}" to "{here}"' if one.kind == "stream" else f'"{here}" to "{one.subject}"'
        return f"failed to create mapping transform for {one.kind} import subject from {pair}: {error}"
    return ""


def _cycle(account: Sharer, subject: str, kind: str, visited: set[str], accounts: Mapping[str, Sharer],
           added: Mapping[str, Sequence[Import]], steps_left: list[int]) -> bool:
    """Whether the export ``subject`` of ``account`` is itself imported from one of ``visited``."""
    wanted = subject.encode()
    steps_left[0] -= 1
    if len(visited) >= _CYCLE_DEPTH_MAX or steps_left[0] < 0:
        return True
    if kind == "stream" and not any(export.kind == "stream" and subset(wanted, export.subject.encode())
                                    for export in account.exports):
        return False
    for one in added.get(account.name, ()):
        here = local_subject(one)
        # A service's requests go on under the exporter's subject, a stream's messages arrive under the local one.
        through = one.subject if kind == "service" else here
        if one.kind != kind or not collide(wanted, through.encode()):
            continue
        if one.account in visited:
            return True
        onward = here if subset(here.encode(), wanted) else subject
        if _cycle(accounts[one.account], onward, kind, visited | {account.name}, accounts, added, steps_left):
            return True
    return False
