"""``jetblock completion``: the scripts complete what the commands accept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli import run
from broker.completion import SHELLS, whole_parser
from broker.config.flags import FLAGS


def completions(script: str, *words: str) -> set[str]:
    """Return what bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in words)
    asked = (f"{script}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n_shtab_jetblock\n"
             'printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True)
    return {word.strip() for word in done.stdout.splitlines()}


def test_bash(capsys: pytest.CaptureFixture[str]) -> None:
    """bash completes commands, the options of each, and the commands below `pipeline`."""
    assert run(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completions(script, "jetblock", "re") == {"report", "restore"}
    assert {"--verify", "--json"} <= completions(script, "jetblock", "inspect", "-")
    assert completions(script, "jetblock", "report", "--out") == {"--output"}
    assert "audit" in completions(script, "jetblock", "pipeline", "au")
    assert {"--config", "--store"} <= completions(script, "jetblock", "-")


def test_every_command_and_flag() -> None:
    """No command and no flag is missing: a new one must be added here, too."""
    parser = whole_parser()
    options = {option.lstrip("-") for action in parser._actions for option in action.option_strings}
    assert set(FLAGS) <= options
    [commands] = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    import re

    from broker.config.flags import USAGE

    shown = {name for line in re.findall(r"^ +jetblock (\w+(?: \| \w+)*) \[options\]", USAGE, re.MULTILINE)
             for name in line.split(" | ")}
    assert set(commands) == shown


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each script is accepted by its shell, if that is here."""
    assert run(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "inspect" in script.read_text()
    if shutil.which(shell) is not None:
        assert subprocess.run([shell, "-n", script], capture_output=True, check=False).returncode == 0


def test_errors(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown shell, and a missing package, get one sentence."""
    assert run(["completion", "ksh"]) == 2
    assert "invalid choice: 'ksh'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert run(["completion", "bash"]) == 2
    assert capsys.readouterr().err == ("jetblock completion: the package shtab is not installed: pip install shtab\n")
