"""The command ``jetblock`` with other constants of compaction, so that merges happen within seconds.

    python -m tests.eager_broker --store …

``JETBLOCK_TEST_COMPACTION`` has the constants: arguments of ``CompactionSettings``, as a JSON object.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial

from broker.__main__ import main
from broker.storage import shard
from broker.storage.compaction.settings import CompactionSettings
from tests.harness import BrokerProcess

__all__ = ["EagerBrokerProcess", "compaction"]


class EagerBrokerProcess(BrokerProcess):
    """jetblock with the constants of compaction that ``compaction`` puts into its environment."""

    command = (sys.executable, "-m", "tests.eager_broker")


def compaction(**constants: float) -> dict[str, str]:
    """Return the environment variable with arguments of ``CompactionSettings`` for an ``EagerBrokerProcess``."""
    return {"JETBLOCK_TEST_COMPACTION": json.dumps(constants)}


if __name__ == "__main__":
    constants = json.loads(os.environ["JETBLOCK_TEST_COMPACTION"])
    shard.CompactionSettings = partial(CompactionSettings, **constants)  # type: ignore[assignment,attr-defined,misc]
    main()
