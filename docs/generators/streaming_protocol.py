"""Generate the classes of NATS Streaming's messages from broker/streaming/wire/stan.proto.

    pip install grpcio-tools==1.76.0        brings protoc; the code that it writes runs with protobuf 6.31 and newer
    python docs/generators/streaming_protocol.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    """Write stan_pb2.py and stan_pb2.pyi beside the schema."""
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=.", "--pyi_out=.",
                    "broker/streaming/wire/stan.proto"], cwd=ROOT, check=True)
    # The wheel has the module under another name.
    written = ROOT / "broker" / "streaming" / "wire" / "stan_pb2.py"
    written.write_text(written.read_text().replace("'broker.streaming.wire.stan_pb2'", "__name__"))


if __name__ == "__main__":
    main()
