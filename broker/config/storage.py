"""The settings of the store: its place, its keys, and how the logs are written to it, compacted and checked."""

from __future__ import annotations

from broker.config import kinds
from broker.config.section import Section, setting

__all__ = ["StorageSettings"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MS, SECOND, MINUTE = 1_000_000, 1_000_000_000, 60_000_000_000


class StorageSettings(Section):
    """The store, and how logs are written to it."""

    url: str = setting(
        "", kinds.text, "Place of the streams: file:///dir, s3://bucket/prefix or memory://; unset: a temporary "
        "directory.", "jetblock.store")
    shards: int = setting(
        0, kinds.integer(0, 256), "Number of the store's shards, 1 to 256; more can be had at any start, fewer if the "
        "others have no streams. Unset: as many as the store has, 1 at first.", "jetblock.shards")
    own: tuple[int, ...] | str | None = setting(
        None, kinds.shard_numbers, "Shards that this broker takes, such as [0, 3], if several brokers own the store; "
        "it stands by for the others; auto: its share of all shards. Unset: all.", "jetblock.own")
    s3_endpoint: str = setting(
        "", kinds.text, "URL of the S3 service; unset: AWS_ENDPOINT_URL, else AWS.", "jetstream.object_store.endpoint",
        variable="S3_ENDPOINT")
    s3_region: str = setting(
        "", kinds.text, "S3 region; unset: from the usual AWS settings.", "jetstream.object_store.region",
        variable="S3_REGION")
    s3_access_key_id: str = setting(
        "", kinds.text, "Access key; unset: the usual AWS credential chain.", "jetstream.object_store.access_key_id",
        variable="S3_ACCESS_KEY_ID", secret=True)
    s3_secret_access_key: str = setting(
        "", kinds.text, "Secret of the access key.", "jetstream.object_store.secret_access_key",
        variable="S3_SECRET_ACCESS_KEY", secret=True)
    key: str = setting(
        "", kinds.text, "Master key that encrypts the store: a text with 32 random bytes, file:PATH of such a text, or "
        "aws-kms:KEY; unset: the store is not encrypted.",
        "jetstream.key", "jetstream.ek", "jetstream.encryption_key", secret=True)
    prev_key: str = setting(
        "", kinds.text, "The master key that the store had before, while it is changed.", "jetstream.prev_key",
        "jetstream.prev_ek", "jetstream.prev_encryption_key", secret=True)
    cipher: str = setting(
        "chacha", kinds.choice("chacha", "chachapoly", "aes"), "Cipher of an encrypted store: chacha (or chachapoly) "
        "is ChaCha20-Poly1305, aes is AES-256-GCM.", "jetstream.cipher")
    commit_interval_ns: int | None = setting(
        None, kinds.duration_ns(0, 10 * SECOND), "Least time between the beginnings of two puts of a log, except for "
        "batches and full segments; unset: 0 for a directory, 20ms for S3, where each put costs money.",
        "jetblock.commit_interval")
    commit_burst: int = setting(
        0, kinds.integer(0, 1_000_000), "Puts that may begin before the commit_interval is over, after as many "
        "intervals without a put.",
        "jetblock.commit_burst")
    sync_interval_ns: int | None = setting(
        None, kinds.sync_interval, "On a directory: interval of syncs; a power cut may lose what was acknowledged "
        "since the last one. Unset, or always: messages are synced before PubAcks.", "jetstream.sync_interval",
        "jetstream.sync")
    journal: bool = setting(
        True, kinds.boolean, "On a directory: acknowledge and deliver once a journal has the commit, and store "
        "many in one segment. false: each commit is a segment.", "jetblock.journal")
    segment_bytes: int = setting(
        4 * MIB, kinds.size(64 * KIB, 64 * MIB), "Raw bytes at which a segment is full and is put at once.",
        "jetblock.segment_bytes")
    puts_in_flight: int = setting(
        4, kinds.integer(1, 16), "Segments of one log that are put at the same time, 1 to 16.",
        "jetblock.puts_in_flight")
    tail_bytes_max: int = setting(
        256 * MIB, kinds.size(MIB), "Bytes of all messages of a shard that are sequenced and not yet stored; past it "
        "publishers wait, and are then refused.", "jetblock.tail_bytes_max")
    cache_bytes: int = setting(
        64 * MIB, kinds.size(0), "Bytes of blocks in memory for readers; up to a quarter more for blocks that are read "
        "ahead.", "jetblock.cache_bytes")
    cache_directory: str = setting(
        "", kinds.text, "Folder on a local disk that keeps what was read from a bucket for later reads, until the "
        "broker stops; unset: none.", "jetblock.cache_directory")
    cache_directory_bytes: int = setting(
        10 * GIB, kinds.size(64 * MIB), "Bytes of that folder at most.", "jetblock.cache_directory_bytes")
    reserve_bytes: int = setting(
        16 * MIB, kinds.size(0), "Room kept in a directory or bucket, so that purges and deletes can be stored when it "
        "is full; at most a sixteenth of a disk. 0: none.", "jetblock.reserve")
    lease_ns: int = setting(
        15 * SECOND, kinds.duration_ns(100 * MS), "On S3: time without a sign of life after which a standby takes "
        "over, and an owner that could not write stops answering.", "jetblock.lease")
    put_timeout_ns: int = setting(
        5 * SECOND, kinds.duration_ns(50 * MS), "Longest time for one request to the store before it is retried.",
        "jetblock.put_timeout")
    reader_grace_ns: int = setting(
        10 * MINUTE, kinds.duration_ns(0), "Time for which the store keeps objects that nothing names any more, unless "
        "it is full: Spark queries that planned to read them need it.", "jetblock.reader_grace")
    erase_delay_ns: int = setting(
        30 * SECOND, kinds.duration_ns(0), "Time for which secure deletes are gathered before the broker rewrites the "
        "objects that hold them, because rewriting costs the same for many.", "jetblock.erase_delay")
    inbox_interval_ns: int = setting(
        60 * SECOND, kinds.duration_ns(0), "Interval at which the broker checks for requests to adopt staged messages, "
        "with one listing each; 0: only on request.", "jetblock.inbox_interval")
    staged_grace_ns: int = setting(
        24 * 60 * MINUTE, kinds.duration_ns(MINUTE), "Time for which staged messages stay in the store if no request "
        "names them.", "jetblock.staged_grace")
    compaction: bool = setting(
        True, kinds.boolean, "Merge small and half-dead blocks into larger objects in the background.",
        "jetblock.compaction")
    compaction_bytes_per_second: int = setting(
        16 * MIB, kinds.size(64 * KIB), "Bytes that compaction reads and writes in a second at most.",
        "jetblock.compaction_bytes_per_second")
    compaction_cpu: int = setting(
        20, kinds.integer(1, 100), "Share of one core that compaction uses at most, in percent.",
        "jetblock.compaction_cpu")
    scrub_interval_ns: int = setting(
        7 * 24 * 60 * MINUTE, kinds.duration_ns(), "Interval at which all stored objects are read and checked in the "
        "background, from one beginning to the next; 0: never.", "jetblock.scrub_interval")
    scrub_bytes_per_second: int = setting(
        MIB, kinds.size(KIB), "Bytes that this check reads in a second at most; an object counts as at least 64 KiB.",
        "jetblock.scrub_bytes_per_second")
    compression: str = setting(
        "zstd", kinds.choice("zstd", "none"), "Compression of blocks: zstd or none.", "jetblock.compression")

    @property
    def is_shared(self) -> bool:
        """True if other brokers own shards of the store and serve its domain, too."""
        return self.own is not None
