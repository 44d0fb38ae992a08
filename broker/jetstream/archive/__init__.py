"""nats-server's archive of a stream, as its snapshot API sends and receives it. Bytes and values alone: no I/O.

    chunks ── framing ──> raw blocks ── entries ──> named entries ── contents ──> state, consumers, messages

Every part reads its input piece by piece and holds no more than one raw block and one entry.

Source: nats-server 2.15, server/archive/archive.go, server/stream_backup.go; github.com/klauspost/compress/s2.
"""
