"""The examples in docs/examples: typed, and true to the command line."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from broker.config.flags import read_flags
from broker.config.load import load

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "testcontainers_jetblock.py"


def test_the_broker_accepts_the_container_s_command() -> None:
    """The flags of the example start a broker in memory with monitoring, and its ports are those that it exposes."""
    tree = ast.parse(EXAMPLE.read_text())
    calls = {node.func.attr: node.args for node in ast.walk(tree)
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)}
    [command] = calls["with_command"]
    assert isinstance(command, ast.List)
    words = [one.value if isinstance(one, ast.Constant) else "memory://" for one in command.elts]
    settings = load(read_flags(list(map(str, words))), {})
    exposed = [one.value for one in calls["with_exposed_ports"] if isinstance(one, ast.Constant)]
    assert (settings.storage.url, [settings.clients.port, settings.monitoring.port]) == ("memory://", exposed)


@pytest.mark.soak
def test_the_example_is_typed() -> None:
    """mypy accepts it with testcontainers's own types."""
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--config-file=", EXAMPLE], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stdout
