"""``python -m tests.fuzz protocol --seed 7 --seconds 600``: run one fuzzer, and print differences as they are found."""

from __future__ import annotations

import argparse
import asyncio
from itertools import count
from pathlib import Path

from tests.fuzz.fuzzer import KINDS, Fuzzer
from tests.fuzz.scenario import Scenario


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--count", type=int, default=0, help="number of seeds; 0: until the time is over")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--replay", type=Path, nargs="*", default=[], help="scenarios to play instead, as files")
    options = parser.parse_args()
    asyncio.run(_run(options))


async def _run(options: argparse.Namespace) -> None:
    fuzzer = Fuzzer(options.kind)
    if options.replay:
        for path in options.replay:
            found = await fuzzer.check(Scenario.from_json(path.read_text()))
            print(path.name, *map(str, found), "" if found else "no difference", sep="\n", flush=True)
        return
    seeds = range(options.seed, options.seed + options.count) if options.count else count(options.seed)
    fuzzer.on_failure = lambda scenario, found: print(scenario, *found, "", sep="\n", flush=True)
    report = await fuzzer.run(seeds, options.seconds)
    print(str(report).partition("\n#")[0])


if __name__ == "__main__":
    main()
