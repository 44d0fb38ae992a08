"""The speed of copying a stream from a nats-server: by a mirror of another nats-server, and by mirrors of jetblock.

    python -m bench.copying [--messages N] [--repeat N]

The origin is a hub with a JetStream domain; each message has a time of its own. It is copied by a leaf that is a
nats-server, by a leaf that is jetblock, and by jetblock over an upstream. Rates are by wall time from the creation of
the mirror to its last message, the best of all runs; beside them is the copying server's processor time.
"""

from __future__ import annotations

import argparse
import sys
import time

from bench.cost.cases import Trial
from bench.cost.client import STREAM, Client
from bench.servers import NATS_SERVER, Server, free_port, jetblock

__all__ = ["main"]

_SUBJECTS = [f"bench.s{i}" for i in range(1000)]


def _hub(leaf_port: int) -> Server:
    hub = Server("hub", [str(NATS_SERVER)])
    hub.config = (f'jetstream {{ store_dir: "{hub.dir}/js", domain: hub }}\n'
                  f'leafnodes {{ listen: "127.0.0.1:{leaf_port}" }}\n')
    return hub


def _copiers(hub: Server, leaf_port: int) -> list[tuple[str, Server]]:
    remote = f'leafnodes {{ remotes [ {{ url: "nats-leaf://127.0.0.1:{leaf_port}" }} ] }}\n'
    real = Server("nats-server", [str(NATS_SERVER)])
    real.config = f'jetstream {{ store_dir: "{real.dir}/js", domain: spoke }}\n{remote}'
    leaf, upstream = jetblock(), jetblock()
    leaf.config = f"jetstream {{ domain: spoke }}\n{remote}"
    upstream.config = f'jetblock {{ upstreams {{ hub {{ url: "nats://127.0.0.1:{hub.port}" }} }} }}\n'
    return [("nats-server, over a leaf", real), ("jetblock, over a leaf", leaf), ("jetblock, an upstream", upstream)]


def _copy(server: Server, count: int) -> tuple[float, float]:
    """Copy the stream of the hub; return the seconds taken, and the processor time."""
    client = Client(server.port)
    deadline = time.monotonic() + 60
    while True:  # until the leaf connection has the hub's interest
        cpu, began = server.cpu_s(), time.perf_counter()
        try:
            client.create("MIRROR", mirror={"name": STREAM, "external": {"api": "$JS.hub.API"}})
            break
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    client.wait(lambda: client.state("MIRROR")["messages"] == count)
    return time.perf_counter() - began, server.cpu_s() - cpu


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=2)
    given = parser.parse_args(words)
    count, leaf_port = given.messages // 250 * 250, free_port()
    best: dict[str, tuple[float, float]] = {}
    with _hub(leaf_port) as hub:
        trial = Trial(hub, 1.0)
        trial.client.create()
        trial.fill(count, _SUBJECTS)
        for _ in range(given.repeat):
            for name, server in _copiers(hub, leaf_port):
                with server:
                    found = _copy(server, count)
                best[name] = min(best.get(name, found), found)
    real = next(iter(best.values()))[0]
    print(f"{'copied by a mirror of':<28}{'rate':>12}{'ratio':>8}{'CPU µs':>9}")
    for name, (seconds, cpu_s) in best.items():
        print(f"{name:<28}{count / seconds:>10,.0f}/s{real / seconds:>8.2f}{1e6 * cpu_s / count:>9.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
