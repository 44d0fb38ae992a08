"""Converts every object in the store from bytes to values and back; docs/FORMAT.md describes it byte by byte.

Owns the layout of each kind of object and the checks on it. Owns neither keys (``storage.paths``), nor when anything
is written (``storage.log``), nor the effect of a record on a stream's state (``storage.state``).

    header     the 64 bytes at the head of every object
    document   the small objects: a header and one msgpack map
    store      the store's own object;  claim: claims and seals;  checkpoint: roots  (all documents)
    opening    the segment that begins an epoch's log
    segment    an object of blocks: its directory, and where each block's core, index and frames are (runs too)
    block      a block's core: counts, outcome, removed ranges, records; and BlockRef, a block's place in the store
    index      a block's message index: columns, frame table, subject table
    subject_filter  the subjects that a block may have, if they are too many to list
    frame      about 128 KiB of bodies, compressed; decoded it is a Chunk
    record     how records are framed;  records/: the bodies of each kind
    page       the opaque pages of a checkpoint, several to an object
    columns    fixed-width integers at their minimum width
    section    the parts that carry users' data: SectionCodec seals and opens them
    codec      zstd, CRC and msgpack, with their bounds

Nothing here does I/O, reads a clock or imports other packages of the broker: it also runs in a Spark executor.
Decoding any bytes returns values or raises one of the errors of ``errors``.
"""
