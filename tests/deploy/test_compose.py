"""The compose file by the library of Docker Compose itself: its schema, its variables, and what its services name.

The library is built with Go, so these tests are long runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.real import parts
from tests.real.s3 import MISSING

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(2000)]


def read(file: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    try:
        program = parts.compose()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}compose: {error}")
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run([program, file], capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**clean, "COMPOSE_PROJECT_NAME": "jetblock", **environ})


def test_the_compose_file_is_valid() -> None:
    """It is valid without a variable, and opens ports for this machine alone; variables set what its comment says."""
    done = read(ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == {"minio", "bucket", "jetblock", "console"}
    assert {port["host_ip"] for service in services.values() for port in service.get("ports", ())} == {"127.0.0.1"}
    assert services["jetblock"]["environment"]["AWS_SECRET_ACCESS_KEY"] == (
        services["bucket"]["environment"]["S3_SECRET_KEY"])
    done = read(ROOT / "docker-compose.yml", JETBLOCK_USER="u", JETBLOCK_PASSWORD="$2a$11$x", PAGES_PORT="9999")
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert services["jetblock"]["environment"]["JETBLOCK_PASSWORD"].replace("$$", "$") == "$2a$11$x"
    assert [port["published"] for port in services["console"]["ports"]] == ["9999"]


@pytest.mark.parametrize("before, after, reason", [
    ("depends_on:", "depend_on:", "depend_on"),
    ("condition: service_healthy", "condition: healthy", "condition"),
    ("source: policy", "source: polices", "polices"),
])
def test_mistakes_are_found(before: str, after: str, reason: str, tmp_path: Path) -> None:
    """An unknown key, a wrong value and a name that is not defined are refused, so the test above can fail."""
    text = (ROOT / "docker-compose.yml").read_text()
    assert before in text
    file = tmp_path / "docker-compose.yml"
    file.write_text(text.replace(before, after, 1))
    done = read(file)
    assert done.returncode != 0
    assert reason in done.stderr
