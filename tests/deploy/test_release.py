"""``make release``: the parts are built, and each works where only it and its dependencies are installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import release


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_each_part_works_in_a_clean_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The source distribution, the wheels and the image's context are built; each is tried as its line says."""
    assert release.main(["--dist", str(tmp_path)]) == 0
    used = dict(line.split(None, 1) for line in capfd.readouterr().out.splitlines() if line.startswith("jetblock-"))
    assert set(used) == {path.name for path in tmp_path.iterdir()}
    assert len(used) == 5
    assert sum("killed, started again, stopped" in text for text in used.values()) == 4
    [read] = [name for name, text in used.items() if "read only" in text]
    assert os.uname().machine not in read


def test_a_wheel_with_libraries_for_another_processor_is_refused(tmp_path: Path) -> None:
    """A library's header says which processor it is for; a wheel without any library is refused, too."""
    import zipfile

    wheel = tmp_path / "jetblock-1-cp311-cp311-manylinux_2_17_aarch64.whl"
    for name, head in (("x.so", b"\x7fELF" + bytes(14) + bytes([62, 0])), ("x.py", b"")):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(name, head)
        with pytest.raises(release.Failed):
            release.read_wheel(wheel, "aarch64")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x.so", b"\x7fELF" + bytes(14) + bytes([183, 0]))
    assert release.read_wheel(wheel, "aarch64") == "read only: 1 libraries for aarch64"
