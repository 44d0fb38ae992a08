"""The compose file by the library of Docker Compose itself: its schema, and what its services name.

The library is built with Go, so these tests are long runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.real import parts
from tests.real.s3 import MISSING

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(2000)]


def read(file: Path) -> subprocess.CompletedProcess[str]:
    try:
        program = parts.compose()
    except parts.PartMissing as error:
        pytest.skip(f"{MISSING}compose: {error}")
    return subprocess.run([program, file], capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_compose_file_is_valid() -> None:
    """It is valid, without any variable. Its ports are open for this machine alone, and what its services name exists.
    """
    done = read(ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stderr
    found = yaml.safe_load(done.stdout)
    services = found["services"]
    assert set(services) == {"minio", "bucket", "jetblock", "console"}
    for service in services.values():
        assert service.get("depends_on", {}).keys() <= services.keys()
        assert {one["source"] for one in service.get("configs", ())} <= found["configs"].keys()
        assert {one["source"] for one in service.get("volumes", ())} <= found["volumes"].keys()
        assert {port["host_ip"] for port in service.get("ports", ())} <= {"127.0.0.1"}
    assert all(Path(one["file"]).is_file() for one in found["configs"].values())
    assert services["jetblock"]["environment"]["AWS_SECRET_ACCESS_KEY"] == (
        services["bucket"]["environment"]["S3_SECRET_KEY"])


@pytest.mark.parametrize("before, after, reason", [
    ("depends_on:", "depend_on:", "depend_on"),
    ("condition: service_healthy", "condition: healthy", "condition"),
])
def test_mistakes_are_found(before: str, after: str, reason: str, tmp_path: Path) -> None:
    """An unknown key and a wrong value are refused, so the test above can fail."""
    text = (ROOT / "docker-compose.yml").read_text()
    assert before in text
    file = tmp_path / "docker-compose.yml"
    file.write_text(text.replace(before, after, 1))
    done = read(file)
    assert done.returncode != 0
    assert reason in done.stderr
