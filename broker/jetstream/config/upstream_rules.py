"""The rules for a stream's configuration about other streams and subjects: mirror, sources, transforms, republishing.

Pure decisions over values, in nats-server's order (stream_rules calls them). ``neighbours`` has the existing streams;
a mirror or source may name one that does not exist yet.

Source: nats-server 2.15, server/stream.go checkStreamCfgLocked, addStreamWithAssignment, composeIName.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence

from broker.jetstream.config.stream import StreamConfig, StreamSource
from broker.jetstream.wire.error_table import ApiErrors
from broker.jetstream.wire.errors import ApiError, invalid_config
from broker.jetstream.wire.ids import short_hash
from broker.protocol.subject import collide, is_literal, is_valid
from broker.protocol.subject_shapes import SHAPES_MAX, SubjectShapes, first_overlap, first_subset, overlapping
from broker.protocol.subject_transform import SubjectTransform, TransformError, check_mapping

__all__ = ["check_cycles", "check_filter_subjects", "check_mirror", "check_prefixes", "check_republish", "check_shapes",
           "check_sources", "check_transform", "is_asset_name", "source_name", "stream_name"]

_NOT_IN_NAMES = frozenset(" \t\r\n\f.*>\\/")
_API = "$JS.API"

Neighbours = Mapping[str, StreamConfig]
"""The account's existing streams, by name (may include the stream in question)."""


def is_asset_name(name: str) -> bool:
    """Return whether ``name`` is valid for a stream or consumer (apart from its length)."""
    return bool(name) and _NOT_IN_NAMES.isdisjoint(name)


def stream_name(source: StreamSource) -> str:
    """Return the origin as headers and info show it: its name, and hashes that distinguish origins of the same name."""
    name = source.name
    if source.external is not None:
        name += ":" + short_hash(source.external.api)
    if source.consumer is not None:
        name += ":C=" + short_hash(source.consumer.name)
    return name


def source_name(source: StreamSource) -> str:
    """Return the name that distinguishes the sources of one stream: origin, filters, destinations,
    separated by spaces."""
    transforms = source.subject_transforms
    filters = [one.src or ">" for one in transforms] or [source.filter_subject or ">"]
    return " ".join((stream_name(source), "\f".join(filters), "\f".join(one.dest or ">" for one in transforms) or ">"))


# --- mirrors and sources ----------------------------------------------------------------------------------------------

def check_mirror(config: StreamConfig, neighbours: Neighbours, pedantic: bool) -> None:
    """Check the mirror, and let it inherit direct gets."""
    mirror = config.mirror
    if mirror is None:
        return
    for broken, err_code in (
        (config.first_seq > 0, ApiErrors.MIRROR_WITH_FIRST_SEQ),
        (bool(config.subjects), ApiErrors.MIRROR_WITH_SUBJECTS),
        (bool(config.sources), ApiErrors.MIRROR_WITH_SOURCES),
        (config.allow_msg_counter, ApiErrors.MIRROR_WITH_COUNTERS),
        (config.allow_atomic, ApiErrors.MIRROR_WITH_ATOMIC_PUBLISH),
        (config.allow_batched, ApiErrors.MIRROR_WITH_BATCH_PUBLISH),
        (config.allow_msg_schedules, ApiErrors.MIRROR_WITH_MSG_SCHEDULES),
        (not _consumer_fits(mirror), ApiErrors.MIRROR_DURABLE_CONSUMER_CFG_INVALID),
        (bool(mirror.filter_subject and mirror.subject_transforms), ApiErrors.MIRROR_MULTIPLE_FILTERS_NOT_ALLOWED),
    ):
        if broken:
            raise ApiError(err_code)
    if config.subject_delete_marker_ttl > 0:
        raise invalid_config("subject delete markers forbidden on mirrors")
    _check_transforms(mirror, invalid_filter=ApiErrors.MIRROR_INVALID_SUBJECT_FILTER,
                      invalid_destination=ApiErrors.MIRROR_INVALID_TRANSFORM_DESTINATION)
    filters = _transformed(mirror)
    if first_overlap(filters) < len(filters):
        raise ApiError(ApiErrors.MIRROR_OVERLAPPING_SUBJECT_FILTERS)
    if mirror.external is not None:
        return
    if not is_asset_name(mirror.name):
        raise ApiError(ApiErrors.MIRROR_INVALID_STREAM_NAME)
    origin = neighbours.get(mirror.name)
    if origin is not None:
        if 0 < config.max_msg_size < origin.max_msg_size:
            raise ApiError(ApiErrors.MIRROR_MAX_MESSAGE_SIZE_TOO_BIG)
        if pedantic and config.mirror_direct != origin.allow_direct:
            raise ApiError(ApiErrors.PEDANTIC, err="origin stream has direct get set, mirror has it disabled")
        config.mirror_direct = origin.allow_direct


def check_sources(config: StreamConfig, neighbours: Neighbours) -> None:
    """Check the sources."""
    if config.sources and config.allow_msg_schedules:
        raise ApiError(ApiErrors.SOURCE_WITH_MSG_SCHEDULES)
    names: set[str] = set()
    consumers: set[tuple[str, str]] = set()
    for source in config.sources:
        if source is None or not is_asset_name(source.name):
            raise ApiError(ApiErrors.SOURCE_INVALID_STREAM_NAME)
        if (name := source_name(source)) in names:
            raise ApiError(ApiErrors.SOURCE_DUPLICATE_DETECTED)
        names.add(name)
        if source.filter_subject and source.subject_transforms:
            raise ApiError(ApiErrors.SOURCE_MULTIPLE_FILTERS_NOT_ALLOWED)
        _check_transforms(source, invalid_filter=ApiErrors.SOURCE_INVALID_SUBJECT_FILTER,
                          invalid_destination=ApiErrors.SOURCE_INVALID_TRANSFORM_DESTINATION)
        filters = _transformed(source)
        if first_subset(filters) < len(filters):
            raise ApiError(ApiErrors.SOURCE_OVERLAPPING_SUBJECT_FILTERS)
        if not _consumer_fits(source):
            raise ApiError(ApiErrors.SOURCE_DURABLE_CONSUMER_CFG_INVALID)
        if source.consumer is not None:
            external = source.external
            consumer = source.name + (":" + external.api if external is not None else ""), source.consumer.name
            if consumer in consumers:
                raise ApiError(ApiErrors.SOURCE_DURABLE_CONSUMER_DUPLICATE_DETECTED)
            consumers.add(consumer)
        origin = neighbours.get(source.name) if source.external is None else None
        if origin is not None and 0 < config.max_msg_size < origin.max_msg_size:
            raise ApiError(ApiErrors.SOURCE_MAX_MESSAGE_SIZE_TOO_BIG)


def check_prefixes(config: StreamConfig, neighbours: Neighbours) -> None:
    """Check the prefixes of other accounts and domains."""
    upstream = [source for source in [config.mirror, *config.sources] if source is not None]
    external = [source.external for source in upstream if source.external is not None]
    if not external:
        return
    origins = dict.fromkeys(source.name for source in upstream if source.external is None and source.name in neighbours)
    subjects = [subject for name in origins for subject in neighbours[name].subjects]
    prefixes = [one.deliver for one in external if one.deliver]
    invalid = next((i for i, prefix in enumerate(prefixes) if not _is_publishable(prefix)), len(prefixes))
    if (i := _first_delivery_cycle(prefixes[:invalid], subjects)) < invalid:
        prefix = prefixes[i]
        subject = next(one for one in subjects if collide(one.encode(), f"{prefix}.{one}".encode()))
        raise ApiError(ApiErrors.STREAM_EXTERNAL_DEL_PREFIX_OVERLAPS, prefix=prefix, subject=subject)
    if invalid < len(prefixes):
        raise ApiError(ApiErrors.STREAM_INVALID_EXTERNAL_DELIVERY_SUBJ, prefix=prefixes[invalid])
    for prefix in [one.api for one in external if one.api]:
        if not _is_publishable(prefix):
            quoted = json.dumps(prefix, ensure_ascii=False)
            raise invalid_config(f"stream external api prefix {quoted} must be a valid subject without wildcards")
        if collide(prefix.encode(), _API.encode()):
            raise ApiError(ApiErrors.STREAM_EXTERNAL_API_OVERLAP, prefix=prefix, subject=_API)


def _first_delivery_cycle(prefixes: Sequence[str], subjects: Sequence[str]) -> int:
    """Return the index of the first prefix P with a subject S such that S overlaps P.S; ``len(prefixes)`` if there is
    none.

    S is shorter than P.S, so it ends in ``>``. The two overlap if S overlaps P.> and each token of S that follows the
    place of P overlaps the token of S that P.S has there.
    """
    found = len(prefixes)
    open_ended = [one.encode() for one in subjects if one.endswith(">")]
    if not open_ended:
        return found
    for length in {prefix.count(".") + 1 for prefix in prefixes}:
        here = [i for i, prefix in enumerate(prefixes) if prefix.count(".") + 1 == length]
        repeating = [subject for subject in open_ended if _repeats(subject.split(b".")[:-1], length)]
        hits = overlapping([prefixes[i].encode() + b".>" for i in here], repeating)
        found = min(found, *(here[i] for i in hits[:1]), found)
    return found


def _repeats(tokens: Sequence[bytes], length: int) -> bool:
    """Return whether each token overlaps the one ``length`` places before it."""
    return all(one == other or b"*" in (one, other) for one, other in zip(tokens[length:], tokens, strict=False))


def check_cycles(config: StreamConfig, neighbours: Neighbours) -> None:
    """Refuse a cycle of mirrors and sources with overlapping subjects. Raises: ApiError 10052."""
    to_visit, visited, known = deque([config]), set(), {config.name}
    while to_visit:
        here = to_visit.popleft()
        visited.add(here.name)
        origins = [(source.name, source.filter_subject.encode()) for source in here.sources
                   if source is not None and source.external is None]
        if here.mirror is not None and here.mirror.external is None:
            origins.append((here.mirror.name, b""))
        back = {filter_subject for name, filter_subject in origins if name in visited}
        if b"" in back or (back and overlapping(list(back), here.subjects_bytes)):
            raise invalid_config("detected cycle")
        for name, _ in origins:
            if name not in known and name in neighbours:
                known.add(name)
                to_visit.append(neighbours[name])


def check_filter_subjects(config: StreamConfig) -> None:
    """Check the filters without transforms: nats-server does so last, with its own error. Raises: ApiError 10049."""
    for source, kind in [(config.mirror, "mirror"), *((source, "source") for source in config.sources)]:
        if source is None or not source.filter_subject or is_valid(source.filter_subject.encode()):
            continue
        colon = "" if kind == "mirror" else ":"
        raise ApiError(ApiErrors.STREAM_CREATE,
                       err=f"subject filter '{source.filter_subject}' for the {kind}{colon} invalid subject")


def _consumer_fits(source: StreamSource) -> bool:
    consumer = source.consumer
    if consumer is None:
        return True
    return (is_asset_name(consumer.name) and _is_publishable(consumer.deliver_subject)
            and not source.opt_start_seq and source.opt_start_time is None and not source.filter_subject)


def check_shapes(patterns: Sequence[bytes], what: str) -> None:
    """Refuse subjects whose wildcards are in too many different places: the work of a check grows with their number.

    Raises: ApiError 10052.
    """
    if len(patterns) > SHAPES_MAX and len(SubjectShapes(patterns)) > SHAPES_MAX:
        raise invalid_config(f"{what} have wildcards in more than {SHAPES_MAX} different places")


def _is_publishable(subject: str) -> bool:
    return is_valid(subject.encode()) and is_literal(subject.encode())


def _check_transforms(source: StreamSource, *, invalid_filter: int, invalid_destination: int) -> None:
    for transform in source.subject_transforms:
        if transform.src and not is_valid(transform.src.encode()):
            raise ApiError(invalid_filter, err=f"invalid subject {transform.src}")
        try:
            check_mapping(transform.src.encode(), transform.dest.encode())
        except TransformError as error:
            raise ApiError(invalid_destination, err=error) from None


def _transformed(source: StreamSource) -> list[bytes]:
    """Return the subjects that the transforms of a mirror or source begin with. Raises: ApiError 10052."""
    subjects = [transform.src.encode() for transform in source.subject_transforms]
    check_shapes(subjects, "subject transforms")
    return subjects


# --- transforms and republishing --------------------------------------------------------------------------------------

def check_transform(config: StreamConfig) -> None:
    """Check the transform of published messages."""
    transform = config.subject_transform
    if transform is None:
        return
    if transform.src and not is_valid(transform.src.encode()):
        raise ApiError(ApiErrors.STREAM_TRANSFORM_INVALID_SOURCE, err=f"invalid subject {transform.src}")
    try:
        check_mapping(transform.src.encode(), transform.dest.encode())
    except TransformError as error:
        raise ApiError(ApiErrors.STREAM_TRANSFORM_INVALID_DESTINATION, err=error) from None


def check_republish(config: StreamConfig, pedantic: bool) -> None:
    """Check republishing, and fill in its source."""
    republish, transform = config.republish, config.subject_transform
    if republish is None:
        return
    if not republish.src:
        if pedantic:
            raise ApiError(ApiErrors.PEDANTIC, err="republish source can not be empty")
        republish.src = ">"
    if republish.src == republish.dest == ">" and transform is not None and config.subjects == [transform.src]:
        # Republish everything under its stored (transformed) subject, which is not one of the stream's.
        if pedantic:
            raise ApiError(ApiErrors.PEDANTIC, err="implicit republish based on subject transform")
        republish.src = republish.dest = transform.dest
    if overlapping([republish.dest.encode()], config.subjects_bytes):
        raise invalid_config("stream configuration for republish destination forms a cycle")
    try:
        if republish.dest:
            SubjectTransform(republish.src.encode(), republish.dest.encode())
    except TransformError:
        raise invalid_config(f"stream configuration for republish with transform from '{republish.src}' to "
                             f"'{republish.dest}' not valid") from None
