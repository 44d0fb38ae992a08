"""``jetblock completion SHELL``: a script by which a shell completes the commands and options of jetblock.

shtab makes it from the parsers of the commands. The broker's own flags are nats-server's, with one dash or two, so they
come from their table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial

from broker.config.flags import FLAGS, takes_value
from broker.config.settings import settings_table

__all__ = ["main", "make_parser"]

SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = frozenset({"FILE", "CONF"})
_FOLDERS = frozenset({"DIR", "FOLDER"})
_FILE_FLAGS = frozenset({"c", "config", "l", "log", "P", "pid", "tlscert", "tlskey", "tlscacert", "sc", "stan_config"})
_FOLDER_FLAGS = frozenset({"dir", "sd", "store_dir", "ports_file_dir"})


def main(arguments: Sequence[str]) -> int:
    """Print a script; return the exit status."""
    try:
        options = make_parser().parse_args(list(arguments))
    except SystemExit as ended:
        return int(ended.code or 0)
    try:
        import shtab
    except ImportError:
        print("jetblock completion: the package shtab is not installed: pip install shtab", file=sys.stderr)
        return 2
    print(shtab.complete(whole_parser(), shell=options.shell))
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="jetblock completion", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Print a script by which a shell completes commands and options.",
        epilog="bash: jetblock completion bash > ~/.local/share/bash-completion/completions/jetblock\n"
               "zsh:  jetblock completion zsh > DIRECTORY_OF_FPATH/_jetblock\n"
               "fish: jetblock completion fish > ~/.config/fish/completions/jetblock.fish")
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads the script")
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return one parser for the broker's flags and all commands."""
    top = argparse.ArgumentParser(prog="jetblock", add_help=False)
    abouts = {setting.path: setting.about for setting in settings_table()}
    for flag, path in FLAGS.items():
        dashes = "-" if len(flag) == 1 or flag in ("js", "sd", "ms", "sl", "DV", "DVV", "VV") else "--"
        about = abouts.get(path, "").replace("%", "%%")
        if takes_value(flag):
            action = top.add_argument(dashes + flag, dest=flag, help=about)
            _complete(action, flag in _FILE_FLAGS, flag in _FOLDER_FLAGS)
        else:
            top.add_argument(dashes + flag, dest=flag, action="store_true", help=about)
    commands = top.add_subparsers()
    for name, make in _makers().items():
        parser = make()
        about = (parser.description or "").partition(".")[0]
        inner = commands.add_parser(name, parents=[parser], add_help=False, help=about)
        for action in inner._actions:
            shown = action.metavar if isinstance(action.metavar, str) else ""
            _complete(action, shown in _FILES, shown in _FOLDERS)
    return top


def _complete(action: argparse.Action, file: bool, folder: bool) -> None:
    import shtab

    if file or folder:
        action.complete = shtab.FILE if file else shtab.DIRECTORY  # type: ignore[attr-defined]


def _makers() -> dict[str, Callable[[], argparse.ArgumentParser]]:
    from broker.archive.cli import make_parser as archive
    from broker.console.cli import make_parser as console
    from broker.erasure.cli import make_parser as erase
    from broker.inspect.cli import make_parser as inspect
    from broker.maintenance.copy_cli import make_parser as copy
    from broker.maintenance.cost_cli import make_parser as cost
    from broker.maintenance.fsck_cli import make_parser as fsck
    from broker.maintenance.report_cli import make_parser as report
    from broker.migration.cli import make_parser as migrate
    from broker.pipeline.cli import make_parser as pipeline
    from broker.runtime.adopt_cli import make_parser as adopt
    from broker.runtime.shards_cli import make_parser as shards

    return {"inspect": inspect, "report": report, "fsck": fsck, "adopt": adopt, "erase": erase, "cost": cost,
            **{verb: partial(copy, verb) for verb in ("copy", "backup", "restore")},
            "shards": shards, "migrate": migrate, "archive": archive, "console": console, "pipeline": pipeline,
            "completion": make_parser}
