"""Names in an export to Parquet: of partition columns, and of codecs."""

from __future__ import annotations

from typing import Final

__all__ = ["CODECS", "DAY", "TOKEN"]

DAY: Final = "day"
TOKEN: Final = "token"
"""The partition columns: the day of a message (UTC), and with a number the token of its subject."""

CODECS: Final = {"none": None, "uncompressed": None, "snappy": "snappy", "gzip": "gzip", "zstd": "zstd",
                 "brotli": "brotli", "lz4_raw": "lz4", "lz4raw": "lz4"}
"""pyarrow's names of Spark's codecs for Parquet."""
