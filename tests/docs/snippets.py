"""A reader of a Markdown page, who types its snippets in order and compares their output.

The fences of a page differ by language:

    sh                           is typed into one shell: folder and exported variables stay from snippet to snippet
    python                       is pasted into one ``python -m asyncio``
    sql                          is run there, too, by the page's Spark session, which has the name ``spark``
    any, with title="NAME"       is saved as the file NAME
    others                       are only read

A comment in the line above a fence has these meanings:

    <!-- background -->          a broker: it runs until the next such snippet or the end of the page
    <!-- output -->              the output of the snippet before it; ``…`` is any text, a line of it any lines
    <!-- not run: REASON -->     the test cannot run it
    <!-- stand-in: REASON -->    the test runs another command in its place, which is a broker
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["TYPED", "Reader", "Snippet", "folder_of_a_checkout", "snippets"]

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w*)(?P<info>[^\n]*)\n(?P<text>.*?)^```$",
                    re.MULTILINE | re.DOTALL)
READY = "Server is ready"
SECONDS = 300
TYPED = ("sh", "python", "sql")
_OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "ARGS", "VENV", "PYTHON", "JOBS"}
"""Variables that `make test` passes to its children: a reader's `make run` must not see them."""


@dataclass(frozen=True)
class Snippet:
    """A fence of a page; ``line`` is the first line of its text."""

    line: int
    language: str
    title: str
    note: str
    text: str


def snippets(page: str) -> list[Snippet]:
    """Return all fences of a page that begin at the beginning of a line, in order."""
    found = []
    for match in _FENCE.finditer(page):
        title = re.search(r'title="([^"]*)"', match["info"])
        found.append(Snippet(page.count("\n", 0, match.start("text")) + 1, match["language"], title[1] if title else "",
                             match["note"] or "", match["text"]))
    return found


class Reader:
    """A reader who types a page's snippets in a folder.

    Args:
        environ: additions to the environment.
        replaced: texts of the page, above all addresses, and the text that is typed instead of each. A text comes
            before its own beginnings. The output is compared after the opposite replacement.
        stand_ins: commands of the page that the test cannot run, with the command of the broker that runs instead.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str], replaced: Mapping[str, str],
                 stand_ins: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        outer = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
        self._environ = {**outer, **environ}
        self._replaced = dict(replaced)
        self._stand_ins = stand_ins or {}
        self._python: asyncio.subprocess.Process | None = None
        self._broker: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._state = folder / ".shell"
        self._state.write_text(f"cd {shlex.quote(str(folder))}\n")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        trace: TracebackType | None) -> None:
        try:
            await self.end_broker()
        finally:
            await self._end_python()

    async def read(self, name: str, page: str, *, omitted: str = "") -> None:
        """Type all snippets of a page's text. Raises: AssertionError, which names page and line, if one fails.

        Args: omitted: a regular expression; a ``sh`` snippet that it matches is not typed.
        """
        printed = ""
        for snippet in snippets(page):
            where = f"{name}, line {snippet.line}"
            assert re.fullmatch(r"|background|output|(?:not run|stand-in): .+",
                                snippet.note), f"{where}: {snippet.note}"
            if omitted and snippet.language == "sh" and re.search(omitted, snippet.text):
                continue
            if snippet.note == "output":
                assert _as_shown(printed, snippet.text), f"{where}: this was printed:\n{printed}"
            elif snippet.title or (snippet.language in TYPED and not snippet.note.startswith("not run: ")):
                try:
                    printed = await self._run(snippet)
                except Exception as error:
                    raise AssertionError(f"{where}: {error}") from error

    async def _run(self, snippet: Snippet) -> str:
        text = snippet.text
        for here, there in self._replaced.items():
            text = text.replace(here, there)
        if snippet.title:
            (self.folder / snippet.title).write_text(text)
            return ""
        if snippet.language == "sql":
            text = "".join(f"spark.sql({one!r}).show()\n" for one in text.split(";") if one.strip())
        if snippet.language in ("python", "sql"):
            return self._as_on_the_page(await self._paste(text))
        if snippet.note == "background":
            return self._as_on_the_page(await self._start_broker(text))
        if snippet.note.startswith("stand-in: "):
            return self._as_on_the_page(await self._start_broker(self._stand_ins[snippet.text.strip()]))
        return self._as_on_the_page(await self._shell(text))

    def _as_on_the_page(self, printed: str) -> str:
        for here, there in self._replaced.items():
            printed = printed.replace(there, here)
        return printed

    async def _paste(self, text: str) -> str:
        """Run a snippet in the page's Python session; returns its output."""
        if self._python is None:
            with (self.folder / ".python").open("wb") as log:
                self._python = await asyncio.create_subprocess_exec(
                    "python", "-P", str(ROOT / "tests" / "docs" / "typed_python.py"), cwd=self.folder,
                    env=self._environ, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                    start_new_session=True, limit=1 << 20)
        python = self._python
        assert python.stdin is not None
        assert python.stdout is not None
        python.stdin.write(json.dumps(text).encode() + b"\n")
        async with asyncio.timeout(SECONDS):
            answer = await python.stdout.readline()
        assert answer, f"Python ended:\n{(self.folder / '.python').read_text()}"
        output, error = json.loads(answer)
        assert not error, error
        return str(output)

    async def _end_python(self) -> None:
        """Press Ctrl-D in the Python session. Programs that it has started end with it."""
        python, self._python = self._python, None
        if python is not None:
            assert python.stdin is not None
            python.stdin.close()
            try:
                async with asyncio.timeout(SECONDS):
                    await python.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(python.pid, signal.SIGKILL)

    async def _shell(self, text: str) -> str:
        script = f"set -e\n. {shlex.quote(str(self._state))}\n{text}\n"
        script += f"{{ export -p; echo cd \"'$PWD'\"; }} > {shlex.quote(str(self._state))}\n"
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=self.folder, env=self._environ, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True)
        try:
            async with asyncio.timeout(SECONDS):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        assert process.returncode == 0, f"status {process.returncode}:\n{output.decode()}"
        return output.decode()

    async def _start_broker(self, text: str) -> str:
        """Start a broker in place of the one that runs; returns what it prints until clients can connect."""
        await self.end_broker()
        script = f"set -e\n. {shlex.quote(str(self._state))}\n{text}\n"
        self._broker = broker = await asyncio.create_subprocess_exec(
            "bash", "-c", script, cwd=self.folder, env=self._environ, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True)
        assert broker.stdout is not None
        lines: list[str] = []
        async with asyncio.timeout(SECONDS):
            while not lines or READY not in lines[-1]:
                line = (await broker.stdout.readline()).decode()
                assert line, "it ended:\n" + "".join(lines)
                lines.append(line)
        self._reading = asyncio.create_task(_drain(broker.stdout))
        return "".join(lines)

    async def end_broker(self) -> None:
        """Press Ctrl-C in the broker's terminal, if a broker is running."""
        broker, self._broker = self._broker, None
        if broker is not None:
            if broker.returncode is None:
                os.killpg(broker.pid, signal.SIGINT)
            try:
                async with asyncio.timeout(SECONDS):
                    await broker.wait()
            finally:
                if broker.returncode is None:
                    os.killpg(broker.pid, signal.SIGKILL)
                if self._reading is not None:
                    await self._reading


def _as_shown(printed: str, shown: str) -> bool:
    """Return whether output is what a page shows, apart from empty lines."""
    lines = [line for line in shown.splitlines() if line.strip()]
    pattern = "".join(r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed.splitlines() if line.strip())) is not None


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.read(65536):
        pass


def folder_of_a_checkout(folder: Path, root: Path) -> Path:
    """Make a folder that looks like a checkout in which ``make run`` has installed what it needs; return it."""
    folder.mkdir()
    for name in ("Makefile", "compile_modules.py", "pyproject.toml", "broker", "jetblock", "config", "docs",
                 "docker-compose.yml"):
        (folder / name).symlink_to(root / name)
    environment = folder / ".venv"
    environment.mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".run":
            (environment / path.name).symlink_to(path)
    (environment / ".run").touch()  # `make run` installs nothing into it
    return folder
