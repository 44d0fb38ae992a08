"""Write docs/COMMANDS.md from the output of each command for --help: ``python docs/generators/commands.py``.

A test compares the two, so that each command and each option is on the page.
"""

from __future__ import annotations

import io
import os
import re
from contextlib import redirect_stdout
from pathlib import Path
from unittest import mock

from broker.cli import run

PAGE = Path(__file__).resolve().parent.parent / "COMMANDS.md"

HEAD = """# Command line

This page lists the commands with their options. `docs/generators/commands.py` makes it from the output of each command
for `--help`.

`jetblock` alone is the broker. Its flags are nats-server's, and a few of its own. [Settings](CONFIGURATION.md) lists
the settings with their names in the environment and in files. The other commands work on a store. The exit status of
each command says how it ended.
"""


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(f"\n## {' '.join(['jetblock', *words])}\n\n```text\n{printed(words)}\n```\n"
                          for words in commands())


def commands() -> list[list[str]]:
    """Return the words after ``jetblock`` of the broker, of the commands in its help, and of their own commands."""
    names = [name for line in re.findall(r"^ +jetblock (\w+(?: \| \w+)*) \[options\]", printed([]), re.MULTILINE)
             for name in line.split(" | ")]
    found: list[list[str]] = [[]]
    for name in names:
        found.append([name])
        below = printed([name]).partition("\ncommands:\n")[2]
        found += [[name, inner] for inner in re.findall(r"^    (\w+) ", below, re.MULTILINE)]
    return found


def printed(words: list[str]) -> str:
    """Return the output of a command for --help on a terminal of 100 columns."""
    output = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="100"), redirect_stdout(output):
        try:
            run([*words, "--help"])
        except SystemExit:
            pass
    return "\n".join(line.rstrip() for line in output.getvalue().strip("\n").splitlines())


if __name__ == "__main__":
    PAGE.write_text(page())
