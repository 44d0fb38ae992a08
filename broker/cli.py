"""The command line: runs the command that it names, and prints an error if that is impossible.

    exit status 0   after help, version and a clean end
    exit status 1   after an unknown flag or word, a bad configuration, or another error that prevents a start

These are nats-server's statuses, except that it ends with 0 after an unknown flag. Each branch imports the modules that
it needs: the time to start is part of the contract.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from broker import COMPILED, NATS_SERVER_VERSION, __version__
from broker.base.suggest import did_you_mean
from broker.config.flags import USAGE, CommandLine, FlagError, read_flags
from broker.config.settings import ConfigError, InvalidFile, Settings

__all__ = ["run"]

_PROGRAM = "jetblock"
_NATS_SERVER = "nats-server"
"""The first word of nats-server's lines about a configuration file: tools that check such files read these lines."""

_SIGNALS = {"stop": signal.SIGKILL, "quit": signal.SIGINT, "term": signal.SIGTERM, "ldm": signal.SIGUSR2,
            "reopen": signal.SIGUSR1, "reload": signal.SIGHUP}
# `stop` kills, as nats-server's does; acknowledged messages are in the store by then.


def run(arguments: Sequence[str]) -> int:
    """Run the command in the arguments after the program's name; return the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names in a store may be in any script, and the terminal may know ASCII only.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:  # while a command is being imported: later, most of them say what to do next
        print(f"{_PROGRAM} {arguments[0]}: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `| head` has exited
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _drop_output()
        print(f"{_PROGRAM}: cannot write: {error.strerror}", file=sys.stderr)
        return 2
    except Exception as error:
        # Imported here, because a broker without JetStream needs no module of the storage.
        from broker.storage.format.errors import KeyMissing

        if not isinstance(error, KeyMissing):
            raise
        print(f"{_PROGRAM} {arguments[0]}: {error}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Discard the buffer of standard output, which would cause a second error at the end of the process."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        # Not a broker's start, which goes without collections and ends by SIGINT at once (see broker.__main__).
        gc.enable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if arguments[:1] == ["inspect"]:
        from broker.inspect.cli import main as inspect

        return inspect(list(arguments[1:]))
    if arguments[:1] in (["copy"], ["backup"], ["restore"]):
        from broker.maintenance.copy_cli import main as copy

        return copy(arguments[0], list(arguments[1:]))
    if arguments[:1] == ["fsck"]:
        from broker.maintenance.fsck_cli import main as fsck

        return fsck(list(arguments[1:]))
    if arguments[:1] == ["migrate"]:
        from broker.migration.cli import main as migrate

        return migrate(list(arguments[1:]))
    if arguments[:1] == ["archive"]:
        from broker.archive.cli import main as archive

        return archive(list(arguments[1:]))
    if arguments[:1] == ["cost"]:
        from broker.maintenance.cost_cli import main as cost

        return cost(list(arguments[1:]))
    if arguments[:1] == ["adopt"]:
        from broker.runtime.adopt_cli import main as adopt

        return adopt(list(arguments[1:]))
    if arguments[:1] == ["erase"]:
        from broker.erasure.cli import main as erase

        return erase(list(arguments[1:]))
    if arguments[:1] == ["shards"]:
        from broker.runtime.shards_cli import main as shards

        return shards(list(arguments[1:]))
    if arguments[:1] == ["report"]:
        from broker.maintenance.report_cli import main as report

        return report(list(arguments[1:]))
    if arguments[:1] == ["completion"]:
        from broker.completion import main as completion

        return completion(list(arguments[1:]))
    if arguments[:1] == ["console"]:
        from broker.console.cli import main as console

        return console(list(arguments[1:]))
    if arguments[:1] == ["pipeline"]:
        from broker.pipeline.cli import main as pipeline

        return pipeline(list(arguments[1:]))
    try:
        line = read_flags(arguments)
        if line.words and not line.help and not line.version:
            return _word(line.words[0])
        if line.help:
            print(USAGE)
            return 0
        if line.version:
            return _version()
        if line.signal is not None:
            return _send_signal(line.signal)
        return _broker(line)
    except FlagError as error:
        # The usage is long: on a terminal, the error must not scroll away above it.
        print(USAGE, flush=True)
        print(error, file=sys.stderr)
        # nats-server ends with 0 here, which a supervisor takes for a clean end, but a mistyped flag is an error.
        return 1
    except ConfigError as error:
        program = _NATS_SERVER if isinstance(error, InvalidFile) else _PROGRAM
        for text in str(error).splitlines():
            print(f"{program}: {text}", file=sys.stderr)
        return 1


def _word(word: str) -> int:
    if word.lower() == "version":
        return _version()
    if word.lower() == "help":
        print(USAGE)
        return 0
    near = did_you_mean(word, ("inspect", "fsck", "adopt", "erase", "archive", "cost", "copy", "backup", "restore",
                               "shards", "migrate", "pipeline", "console", "report", "completion", "version", "help"))
    raise ConfigError(f'unrecognized command: "{word}"{near}')


def _version() -> int:
    # Programs that start a broker parse the first line; the others are for people.
    print(f"nats-server: v{NATS_SERVER_VERSION}\njetblock: v{__version__}\n"
          f"hot path: {'compiled' if COMPILED else 'pure Python'}")
    return 0


def _broker(line: CommandLine) -> int:
    from broker.config.load import load

    settings = load(line, os.environ)
    if line.test and settings.front.workers:
        _check_front(settings)
    if line.test:
        said = (f"{_NATS_SERVER}: configuration file {line.config} is valid ({settings.digest})" if line.config else
                f"{_PROGRAM}: configuration is valid")
        print(said, file=sys.stderr)
        return 0
    if line.print_config:
        from broker.config.show import show

        print(show(settings), end="")
        return 0

    from broker.runtime.process import serve

    return serve(settings, (lambda: load(line, os.environ)) if line.config or line.stan_config else None)


def _check_front(settings: Settings) -> None:
    """Let the nats-server in front of workers check its part. Raises: ConfigError."""
    import asyncio

    from broker.base.errors import StartError
    from broker.front.supervisor import configuration_errors

    try:
        errors = asyncio.run(configuration_errors(settings))
    except StartError as error:
        raise ConfigError(str(error)) from None
    if errors:
        raise ConfigError(f"nats-server refuses the configuration: {errors}")


def _send_signal(words: str) -> int:
    """Send the signal ``NAME=PID`` or ``NAME=PIDFILE``."""
    name, _, target = words.partition("=")
    number = _SIGNALS.get(name.lower())
    if number is None:
        raise ConfigError(f"unknown signal {name!r}; one of {', '.join(_SIGNALS)}{did_you_mean(name, _SIGNALS)}")
    if not target:
        raise ConfigError(f"--signal {name} needs a process: {name}=PID, or {name}=FILE written by --pid")
    if not target.isdigit():
        try:
            target = Path(target).read_text("ascii").strip()
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"no process id in {target}: {(why or str(error)).lower()}") from None
    try:
        pid = int(target)
        if pid <= 0:
            raise ValueError
        os.kill(pid, number)
    except ValueError:
        raise ConfigError(f"no process id: {target!r}") from None
    except OSError as error:
        raise ConfigError(f"no signal to process {target}: {error.strerror}") from None
    return 0
