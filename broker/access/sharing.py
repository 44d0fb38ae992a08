"""Exports and imports between accounts, and mappings within one: plain values, and the rules between them.

    export    a stream (messages go out) or a service (requests come in) that other accounts may import
    import    a stream or service of another account, under a local subject
    mapping   messages published to one subject go to another subject

Source: nats-server, server/accounts.go (checkStreamExportApproved, checkServiceImportsForCycles, AddWeightedMappings).
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, Protocol

from broker.access.sharing_index import ImportList, exports_for, is_covered
from broker.base.value import Value
from broker.protocol.subject import is_literal, is_valid, subset
from broker.protocol.subject_transform import SubjectTransform, TransformError, check_mapping, numbered, unnumbered

__all__ = ["Destination", "Export", "Import", "Latency", "SubjectMapping", "export_of", "import_problem",
           "imports_in_use", "latency_problem", "local_subject", "mapping_problem", "sharing_problems",
           "without_repetitions"]

_CYCLE_STEPS_MAX = 20_000
"""The steps of one search for a cycle, past which one counts as found: some accounts have very many paths."""


class Latency(Value):
    """The subject of a service's latencies, and their ``sampling`` in percent; 0: if a request's headers ask for it."""

    subject: str
    sampling: int = 100


class Export(Value):
    """An exported stream or service. ``accounts``: None: public; (): accounts with an activation token."""

    kind: Literal["stream", "service"]
    subject: str
    accounts: tuple[str, ...] | None = None
    response_type: Literal["singleton", "stream", "chunked"] = "singleton"
    response_threshold_ns: int = 0
    """The time in which a response must come; 0: nats-server's default of 2 minutes."""

    latency: Latency | None = None
    account_token_position: int = 0
    """The position, from 1, of the subject token that must be the importing account's name; 0: none."""

    allow_trace: bool = False


class Import(Value):
    """An imported stream or service; ``subject`` is the exporting account's."""

    kind: Literal["stream", "service"]
    account: str
    subject: str
    to: str = ""
    """The local subject; "": the same."""

    prefix: str = ""
    """The local prefix of a stream's subject."""

    share: bool = False
    """True if the service gets information about the requesting client."""

    allow_trace: bool = False
    activated: bool = False
    """True if an activation token permits the import; the reader of the import has checked the token."""


class Destination(Value):
    """A destination of a mapping, for a share of the messages."""

    subject: str
    weight: int = 100
    """The share in percent."""

    cluster: str = ""
    """The name of the cluster in which the destination counts; "": all clusters."""


class SubjectMapping(Value):
    """A mapping. If the weights sum up to less than 100 %, the rest keeps ``source``, unless that is a destination."""

    source: str
    destinations: tuple[Destination, ...]


class Sharer(Protocol):
    """The part of an account that sharing needs."""

    @property
    def name(self) -> str: ...

    @property
    def exports(self) -> tuple[Export, ...]: ...

    @property
    def imports(self) -> tuple[Import, ...]: ...


def without_repetitions(exports: Sequence[Export]) -> tuple[Export, ...]:
    """Merge exports of one kind and subject: a repeated export adds accounts to the first, and never makes it public.

    Source: nats-server, server/accounts.go (addServiceExportWithResponseAndAccountPos, setExportAuth).
    """
    found: dict[tuple[str, str], Export] = {}
    for export in exports:
        before = found.get((export.kind, export.subject))
        if before is not None and export.latency is not None:
            # Latency results are checked against the exports before the one that configures them.
            del found[export.kind, export.subject]
        found[export.kind, export.subject] = export if before is None else _added(before, export)
    return tuple(found.values())


def _added(before: Export, export: Export) -> Export:
    restricts = export.accounts is not None or export.account_token_position > 0
    accounts = before.accounts
    if export.accounts is not None:
        accounts = tuple(dict.fromkeys((*(before.accounts or ()), *export.accounts)))
    return export.replace(
        accounts=accounts,
        account_token_position=export.account_token_position if restricts else before.account_token_position,
        response_type=export.response_type if export.response_type != "singleton" else before.response_type,
        latency=export.latency or before.latency, allow_trace=export.allow_trace or before.allow_trace)


def mapping_problem(mapping: SubjectMapping) -> str:
    """Return why nats-server would refuse the destinations, apart from their functions; "": it would not."""
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
    """Return the importing account's subject: a destination with references to the exporting account's subject."""
    return one.to or (f"{one.prefix.removesuffix('.')}.{one.subject}" if one.prefix else one.subject)


def _without_functions(subject: str) -> str:
    """Shorten functions such as ``{{partition(3, 1)}}``: their spaces and dots do not count in the subject."""
    before, opening, rest = subject.partition("{{")
    if not opening:
        return subject
    _, closing, after = rest.partition("}}")
    return before + "f" + _without_functions(after) if closing else subject


def sharing_problems(accounts: Sequence[Sharer]) -> Iterator[tuple[str, str]]:
    """Return the errors between the accounts' exports and imports: account and reason, in nats-server's words."""
    by_name = {account.name: account for account in accounts}
    for kind in ("stream", "service"):
        for account in accounts:
            for export in account.exports:
                if export.kind == kind:
                    for why in _export_problems(account, export, by_name):
                        yield account.name, why
    added: dict[str, ImportList[Import]] = {}
    for kind in ("stream", "service"):
        for account in accounts:
            for one in account.imports:
                if one.kind != kind:
                    continue
                why = import_problem(account, one, by_name, added)
                if why:
                    yield account.name, why
                else:
                    if account.name not in added:
                        added[account.name] = imports_in_use()
                    added[account.name].append(one)
    # nats-server adds the imports of one account after those of another in any order: some cycles show in one order
    # only.
    for account in accounts:
        imports = added.get(account.name, imports_in_use())
        for one in imports:
            # An account's own imports have the order in which they are listed.
            if _forms_cycle(account, one, by_name, ChainMap({account.name: imports.before(one)}, added)):
                yield account.name, f'Error adding {one.kind} import "{one.subject}": {_CYCLE}'


def _export_problems(account: Sharer, export: Export, accounts: Mapping[str, Sharer]) -> Iterator[str]:
    unknown = [name for name in export.accounts or () if name not in accounts]
    for name in unknown:
        yield f'"{name}" account not defined for {export.kind} export'
    position, tokens = export.account_token_position, export.subject.split(".")
    if position and (position > len(tokens) or tokens[position - 1] != "*"):
        yield f'Error adding {export.kind} export "{export.subject}": sublist: invalid subject'
    elif export.latency is not None and (why := latency_problem(account.exports, export)):
        yield (f'Error adding service latency sampling for "{export.subject}" on subject "{export.latency.subject}": '
               f"{why}")


def latency_problem(exports: Sequence[Export], export: Export) -> str:
    """Return why the latencies of ``export``, one of an account's ``exports``, cannot be published; "": they can."""
    if export.latency is None:
        return ""
    results = export.latency.subject
    if not (is_valid(results.encode()) and is_literal(results.encode())) or is_covered(exports, export, results):
        # Results that are requests to a service would be measured, too: nats-server checks the services so far.
        return "invalid publish subject"
    return "bad service response type" if export.response_type != "singleton" else ""


def import_problem(account: Sharer, one: Import, accounts: Mapping[str, Sharer],
                   added: Mapping[str, ImportList[Import]]) -> str:
    """Return why ``account`` cannot import ``one`` beside the imports ``added`` already, by account; "": it can."""
    exporter = accounts.get(one.account)
    if exporter is None:
        return f'"{one.account}" account not defined for {one.kind} import'
    error = f'Error adding {one.kind} import "{one.subject}": '
    here = local_subject(one)
    if one.kind == "service" and not (is_valid(one.subject.encode()) and is_valid(here.encode())):
        return error + "sublist: invalid subject"
    if any(map(str.isspace, _without_functions(here))):
        # nats-server permits it for a stream, but receivers would read a line end as the end of the operation.
        return error + "the local subject can not contain white space"
    if not _authorized(exporter, account.name, one):
        return f"{error}{one.kind} import not authorized"
    if one.prefix and not is_literal(one.prefix.encode()):
        return error + "stream import prefix can not contain wildcard tokens"
    mine = added.get(account.name)
    if _forms_cycle(account, one, accounts, added):
        return error + _CYCLE
    if one.kind == "stream" and mine is not None and mine.same_subject(one) is not None:
        return error + "stream import already exists"
    if one.kind == "service" and mine is not None and (same := mine.same_place(one, here.encode())) is not None:
        return (f'{error}duplicate service import subject "{here}", previously used in import for account '
                f'"{one.account}", subject "{same.subject}"')
    return error + why if (why := _transform_problem(one, here)) else ""


def imports_in_use() -> ImportList[Import]:
    """Return an empty list of imports of one account."""
    return ImportList(_subjects_here)


def export_of(exporter: Sharer, one: Import) -> Export | None:
    """Return the export that covers ``one``; an export of the same subject precedes wider ones."""
    return next(iter(_exports_of(exporter, one)), None)


def _exports_of(exporter: Sharer, one: Import) -> list[Export]:
    """Return the export of the same subject, or else all wider ones."""
    return exports_for(exporter.exports, one.kind, one.subject)


def _authorized(exporter: Sharer, importer: str, one: Import) -> bool:
    """Return whether the exporting account permits this import. Where several wider exports cover it, nats-server asks
    any one of them; here all must permit it."""
    exports = _exports_of(exporter, one)
    return bool(exports) and all(_permits(export, importer, one) for export in exports)


def _permits(export: Export, importer: str, one: Import) -> bool:
    position = export.account_token_position
    if position:
        # A wildcard in that position, as in an import of the export's own subject, is no account's name.
        tokens = one.subject.split(".")
        return position <= len(tokens) and tokens[position - 1] == importer
    return export.accounts is None or one.activated or importer in export.accounts


def _transform_problem(one: Import, here: str) -> str:
    """Return why the exporting account's subject cannot become the local one, or the reverse; "": it can."""
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


_CYCLE = "import forms a cycle"


def _forms_cycle(account: Sharer, one: Import, accounts: Mapping[str, Sharer],
                 added: Mapping[str, ImportList[Import]]) -> bool:
    """Return whether what ``one`` imports comes, through other imports, from ``account`` itself."""
    looked_for = ([_subjects_here(one)] if one.kind == "service" else
                  [local_subject(one).encode(), one.subject.encode()])
    return any(_cycle(accounts[one.account], subject, one.kind, {account.name}, accounts, added)
               for subject in looked_for)


def _cycle(account: Sharer, wanted: bytes, kind: str, visited: set[str], accounts: Mapping[str, Sharer],
           added: Mapping[str, ImportList[Import]]) -> bool:
    """Return whether ``account`` has a colliding import from one of ``visited``, directly or through other accounts.

    The search is depth-first, and ``visited`` has the accounts on the way. nats-server's search keeps the accounts of
    other branches, too, so it sometimes refuses accounts that share with one another in several ways.
    """
    path: list[str] = []
    branches = [_leading_on(account, wanted, kind, added)]
    for _ in range(_CYCLE_STEPS_MAX):
        step = next(branches[-1], None)
        if step is not None:
            importer, exporter, onward = step
            if exporter in visited:
                return True
            visited.add(importer)
            path.append(importer)
            branches.append(_leading_on(accounts[exporter], onward, kind, added))
            continue
        branches.pop()
        if not branches:
            return False
        visited.discard(path.pop())
    return True


def _leading_on(account: Sharer, wanted: bytes, kind: str,
                added: Mapping[str, ImportList[Import]]) -> Iterator[tuple[str, str, bytes]]:
    """Return the imports of ``account`` that collide with ``wanted``: importer, exporter, and the subject there."""
    if kind == "stream" and not exports_for(account.exports, "stream", wanted.decode()):
        return
    imports = added.get(account.name)
    for one in imports.colliding(kind, wanted) if imports is not None else ():
        # Requests to a service are sent under the exporter's subject; messages of a stream arrive under the local one.
        here = _subjects_here(one)
        yield account.name, one.account, here if subset(here, wanted) else wanted


def _subjects_here(one: Import) -> bytes:
    """Return the importing account's subjects as a pattern."""
    here = local_subject(one).encode()
    return here if is_literal(one.subject.encode()) else unnumbered(here)
