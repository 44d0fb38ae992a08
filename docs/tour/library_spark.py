"""The tour's job on Spark: find the ten most imported modules in the stored blocks of the stream LIBRARY.

    python docs/tour/library_spark.py file:///path/to/data        no broker needed, and one may be running
    python docs/tour/library_spark.py s3://bucket/prefix          credentials from the AWS_* environment

The program counts lines and imports by SQL, then by plain Python in the files of this Python's library, and compares
the results.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from library import files
from pyspark.sql import SparkSession

from jetblock.spark import builder_conf

__all__ = ["Answer", "by_python", "by_sql", "main"]

IMPORTS = r"^[ \t]*(?:import|from)[ \t]+([A-Za-z_][A-Za-z0-9_]*)"
"""The first module that a line imports, whether or not the line is code: both sides can count that."""


class Answer(NamedTuple):
    """Number of files, bytes and lines (b"\\n") of the whole library, and the ten most imported modules with counts."""

    files: int
    bytes: int
    lines: int
    top: list[tuple[str, int]]


def by_sql(spark: SparkSession, store: str) -> Answer:
    """Count in the blocks of a store."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW library USING jetblock OPTIONS (store '{store}', stream 'LIBRARY')")
    # A cast to string leaves the bytes as they are: octet_length counts them.
    totals = spark.sql(r"""
        SELECT count(*), sum(octet_length(data)),
               sum(octet_length(data) - octet_length(replace(cast(data AS string), '\n', '')))
        FROM library""").first()
    top = spark.sql(rf"""
        SELECT module, count(*) AS times
        FROM (SELECT explode(regexp_extract_all(cast(data AS string), r'(?md){IMPORTS}', 1)) AS module FROM library)
        GROUP BY module ORDER BY times DESC, module LIMIT 10""").collect()
    assert totals is not None
    return Answer(totals[0], totals[1], totals[2], [(row.module, row.times) for row in top])


def by_python(contents: Iterable[bytes]) -> Answer:
    """Count in the files themselves."""
    count = size = lines = 0
    modules: Counter[bytes] = Counter()
    pattern = re.compile(IMPORTS.encode(), re.MULTILINE)
    for data in contents:
        count, size, lines = count + 1, size + len(data), lines + data.count(b"\n")
        modules.update(pattern.findall(data))
    top = sorted(((name.decode(), times) for name, times in modules.items()), key=lambda row: (-row[1], row[0]))[:10]
    return Answer(count, size, lines, top)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("store", help="file:///DIR or s3://BUCKET/PREFIX, as the broker's --store")
    store = p.parse_args().store
    # Spark's workers are to use this Python, not the first python3 on PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[*]").config(map=builder_conf()).getOrCreate()
    began = time.perf_counter()
    found = by_sql(spark, store)
    seconds = time.perf_counter() - began
    spark.stop()
    print(f"{found.files} files, {found.bytes / 1e6:.1f} MB, {found.lines} lines, read by Spark in {seconds:.1f} s")
    for module, times in found.top:
        print(f"{times:>8}  {module}")
    expected = by_python(file.data for file in files())
    print("plain Python agrees" if found == expected else f"plain Python says {expected}")
    return found != expected


if __name__ == "__main__":
    sys.exit(main())
