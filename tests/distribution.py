"""The distribution of tests to the workers of `make test`: whole files, the longest first, so that none ends late.

    a file           together, on one worker: its tests may share servers
    test_spark_*     all of them together: a Spark session costs 10 s and 600 MB, so there is one
    tests/sim        test by test: seeds are independent of each other

The process that distributes the tests knows their names only, not their marks.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadFileScheduling

__all__ = ["SECONDS", "LongestFirst"]

SPARK = "tests with Spark"
SIMULATED = "tests/sim/"
SIMULATED_SECONDS = 8

SECONDS = {
    SPARK: 270,
    "tests/pipeline/spark/test_cluster.py": 90,
    "tests/pipeline/spark/test_sink_kills.py": 70,
    "tests/adversity/test_damaged_store.py": 45,
    "tests/adversity/test_two_brokers.py": 45,
    "tests/e2e/test_installed.py": 60,
    "tests/fuzz/test_protocol.py": 45,
    "tests/storage/objectstore/contract/test_contract.py": 41,
    "tests/jetstream/differential/test_publishing.py": 41,
    "tests/jetstream/differential/test_consuming.py": 40,
    "tests/fuzz/test_reloads.py": 40,
    "tests/growth/test_api.py": 40,
    "tests/growth/test_streams.py": 35,
    "tests/runtime/test_process.py": 31,
    "tests/fuzz/test_requests.py": 30,
    "tests/adversity/test_kill_loop.py": 30,
    "tests/docs/test_snippets_spark.py": 60,
    "tests/docs/test_snippets.py": 30,
    "tests/adversity/test_suspended_owner.py": 30,
    "tests/maintenance/test_fsck.py": 28,
    "tests/migration/test_migrate.py": 28,
    "tests/adversity/test_start_errors.py": 27,
    "tests/pipeline/plan/test_snapshot.py": 27,
    "tests/storage/objectstore/test_s3.py": 25,
    "tests/server/connection/test_fan_out.py": 25,
    "tests/jetstream/differential/test_streams.py": 23,
    "tests/adversity/test_back_pressure.py": 22,
    "tests/adversity/test_store_restarts.py": 21,
    "tests/pipeline/plan/test_plan_large.py": 20,
    "tests/maintenance/test_tampered.py": 20,
    "tests/e2e/test_main_job.py": 19,
    "tests/jetstream/stream/test_id_pages.py": 19,
    "tests/jetstream/stream/retention/test_interest.py": 19,
    "tests/storage/checkpoint/test_freeing.py": 18,
    "tests/server/operator/test_claims_requests.py": 17,
    "tests/jetstream/stream/state/test_many_blocks.py": 16,
    "tests/jetstream/stream/test_model.py": 16,
    "tests/growth/test_protocol.py": 15,
    "tests/e2e/test_tour.py": 15,
    "tests/runtime/test_reload.py": 14,
    "tests/server/connection/test_trace.py": 14,
    "tests/config/test_grammar.py": 14,
    "tests/jetstream/stream/test_subject_pages.py": 13,
    "tests/adversity/test_adoption_in_buckets.py": 13,
    "tests/adversity/test_full_disk.py": 12,
    "tests/maintenance/test_cost.py": 12,
    "tests/runtime/test_shard_owner.py": 12,
    "tests/server/auth/test_callout.py": 12,
    "tests/adversity/test_full_bucket.py": 12,
    "tests/adversity/test_many_connections.py": 12,
    "tests/adversity/test_adoption_take_over.py": 12,
    "tests/adversity/test_kill_adoption.py": 12,
    "tests/migration/test_kill_on_s3.py": 12,
    "tests/adversity/test_kill_take_over.py": 12,
    "tests/adversity/test_kill_work_queue.py": 12,
    "tests/adversity/test_open_files.py": 12,
    "tests/storage/test_power_cuts.py": 11,
    "tests/server/operator/test_logins.py": 10,
    "tests/maintenance/test_nightly.py": 10,
    "tests/pipeline/spark/test_stream.py": 10,
    "tests/runtime/test_compaction.py": 10,
    "tests/fuzz/test_corpus.py": 10,
    "tests/server/test_memory_of_connections.py": 10,
    "tests/growth/test_configuration.py": 9,
    "tests/server/operator/test_sharing.py": 9,
    "tests/adversity/test_bad_input.py": 9,
    "tests/pipeline/store/test_objects.py": 9,
    "tests/storage/read/test_crafted_checkpoints.py": 9,
    "tests/pipeline/read/test_compacted.py": 9,
    "tests/jetstream/consumer/test_model.py": 9,
    "tests/growth/test_monitoring.py": 8,
    "tests/config/test_values.py": 8,
    "tests/jetstream/stream/publish/test_unexpected_errors.py": 8,
    "tests/server/operator/test_resolver.py": 8,
    "tests/server/test_error_texts.py": 8,
    "tests/adversity/test_cache_directory.py": 8,
    "tests/adversity/test_kill_copies.py": 8,
    "tests/adversity/test_edge_numbers.py": 8,
    "tests/pipeline/read/test_scan.py": 8,
    "tests/pipeline/read/test_views.py": 8,
    "tests/jetstream/wire/test_advisories.py": 8,
    "tests/golden/test_stores.py": 8,
}
"""Approximate seconds of these files, on two cores; other files take less. Only the order counts."""


def unit(nodeid: str) -> str:
    """Return the unit of work to which a test belongs."""
    path = nodeid.partition("::")[0]
    if path.rpartition("/")[2].startswith("test_spark_"):
        return SPARK
    return nodeid if path.startswith(SIMULATED) else path


def seconds(unit: str) -> int:
    return SIMULATED_SECONDS if unit.startswith(SIMULATED) else SECONDS.get(unit, 0)


class LongestFirst(LoadFileScheduling):
    """A scheduler for ``--dist loadfile`` with these units. Units of equal length are ordered by their number of tests,
    the largest first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=seconds), last=False)
        super()._assign_work_unit(node)
