"""How `make test` hands out the tests to its workers: whole files, the longest first, so that none is left for the end.

    a file           together, on one worker: its tests may share servers
    test_spark_*     all of them together: a Spark session costs 10 s and 600 MB, so there is one
    tests/sim        test by test: a seed needs nothing of another

The process that hands out the tests sees their names only, not their marks.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

__all__ = ["SECONDS", "LongestFirst"]

SPARK = "tests with Spark"
SIMULATED = "tests/sim/"
SIMULATED_SECONDS = 8

SECONDS = {
    SPARK: 300,
    "tests/adversity/test_two_brokers.py": 79,
    "tests/adversity/test_damaged_store.py": 51,
    "tests/storage/objectstore/contract/test_contract.py": 45,
    "tests/runtime/test_process.py": 42,
    "tests/adversity/test_start_errors.py": 36,
    "tests/jetstream/differential/test_publishing.py": 33,
    "tests/jetstream/differential/test_consuming.py": 32,
    "tests/e2e/test_main_job.py": 29,
    "tests/adversity/test_kill_loop.py": 27,
    "tests/pipeline/plan/test_plan_large.py": 26,
    "tests/jetstream/differential/test_streams.py": 22,
    "tests/config/test_values.py": 22,
    "tests/adversity/test_back_pressure.py": 22,
    "tests/maintenance/test_fsck.py": 19,
    "tests/runtime/test_reload.py": 17,
    "tests/migration/test_migrate.py": 17,
    "tests/server/connection/test_trace.py": 16,
    "tests/jetstream/stream/state/test_many_blocks.py": 15,
    "tests/runtime/test_shard_host.py": 15,
    "tests/maintenance/test_tampered.py": 14,
    "tests/e2e/test_tour.py": 14,
    "tests/pipeline/plan/test_snapshot.py": 13,
    "tests/server/operator/test_sharing.py": 13,
    "tests/server/operator/test_claims_requests.py": 13,
    "tests/server/auth/test_callout.py": 13,
    "tests/config/test_grammar.py": 12,
    "tests/adversity/test_bad_input.py": 12,
    "tests/adversity/test_full_disk.py": 12,
    "tests/jetstream/stream/publish/test_unforeseen_errors.py": 12,
    "tests/storage/objectstore/test_s3.py": 11,
    "tests/server/operator/test_logins.py": 11,
    "tests/adversity/test_edge_numbers.py": 11,
    "tests/config/test_shipped_files.py": 11,
    "tests/jetstream/test_buckets.py": 10,
    "tests/pipeline/read/test_scan.py": 10,
    "tests/pipeline/test_bundle.py": 9,
    "tests/server/auth/test_proxies.py": 8,
    "tests/jetstream/stream/retention/test_interest.py": 8,
    "tests/storage/format/test_segment.py": 8,
}
"""About how long these take, on two cores; what is not here takes less. Only the order counts."""


def unit(nodeid: str) -> str:
    """Which unit of work a test belongs to."""
    path = nodeid.partition("::")[0]
    if path.rpartition("/")[2].startswith("test_spark_"):
        return SPARK
    return nodeid if path.startswith(SIMULATED) else path


def seconds(unit: str) -> int:
    return SIMULATED_SECONDS if unit.startswith(SIMULATED) else SECONDS.get(unit, 0)


class LongestFirst(LoadFileScheduling):
    """`--dist loadfile` in these units. Those of one length go by their number of tests, the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=seconds), last=False)
        super()._assign_work_unit(node)
