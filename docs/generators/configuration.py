"""Writes docs/CONFIGURATION.md from the table of settings: ``python docs/generators/configuration.py``.

A test compares the two, so a setting cannot appear without its line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from broker.base.gotime import format_duration
from broker.config.flags import FLAGS
from broker.config.settings import Setting, settings_table

sys.path.insert(0, str(Path(__file__).parent))
from nats_server_keys import table

PAGE = Path(__file__).resolve().parent.parent / "CONFIGURATION.md"

HEAD = """# Settings

Made by `docs/generators/configuration.py`; change `broker/config/settings.py` instead.

A setting can come from the command line, from the environment (`JETBLOCK_…`) and from a configuration file
(`-c FILE`): flags beat the environment, which beats the file. The file is written in nats-server's language, with its
keys; jetblock's own settings are in a block `jetblock { … }`. An unknown key is refused with its file, line
and column, and so is a nats-server key that jetblock does not support, with the reason; a key that would change nothing
here is accepted, and the log says why it has no effect.

Durations are written `100ms`, `2s`, `1m30s` (a bare number is seconds), sizes `64KB`, `4MB`, `1GiB` (`k` is 1000; `kb`,
`ki`, `kib` are 1024). `jetblock -t -c FILE` checks a file and names the nearest key for an unknown
one; `jetblock --print-config` prints what flags, environment and file come to as a file that can be read back once
the secret itself stands in place of each `[REDACTED]`.

Where streams are stored, in a file: one of `jetstream { store_dir: DIR }`, `jetblock { store: URL }` and
`jetstream { object_store { bucket, path_prefix } }`. JetStream is on by `-js`, `--store`, a `jetstream` block that is
not disabled, or a store named in any way but `-sd`. For S3, whatever is not set here comes from `AWS_*` and the usual
AWS credential chain.

Also in files: `listen: "HOST:PORT"`, `http: PORT` or `"HOST:PORT"`, users and accounts with nats-server's keys
(`authorization { users: [ { user, password, permissions } ] }`, `accounts { NAME { users, limits, jetstream } }`),
`include FILE` (relative to the including file), and `$NAME`: a key set earlier, or an environment variable.

With `yes` under *reload*, SIGHUP applies a new value while the broker runs; any other setting needs a restart.

| setting | default | reload | flag | environment | file |
|---|---|---|---|---|---|
"""


KEYS_HEAD = """
## Keys of nats-server

Every key that nats-server 2.15 knows, and what becomes of it; `A` stands for a name. A refused block is refused with
all its keys.

| in | keys | here |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    return HEAD + "".join(map(_row, settings_table())) + KEYS_HEAD + "".join(table())


def _row(setting: Setting) -> str:
    flags = [("--" if len(name) > 2 else "-") + name for name, target in FLAGS.items() if target == setting.path]
    columns = [setting.about, _shown(setting), "yes" if setting.reload else "", " ".join(f"`{flag}`" for flag in flags),
               f"`{setting.variable}`" if setting.variable else "", "<br>".join(f"`{key}`" for key in setting.keys)]
    return "| " + " | ".join(columns) + " |\n"


def _shown(setting: Setting) -> str:
    default = setting.default
    if default is None or default in ((), ""):
        return "unset"
    if isinstance(default, bool):
        return "true" if default else "false"
    if isinstance(default, int):
        if setting.path.endswith("_ns"):
            return f"`{format_duration(default)}`"
        for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
            if "size" in setting.kind.__qualname__ and default > 0 and default % factor == 0:
                return f"`{default // factor}{unit}`"
    return f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page())
