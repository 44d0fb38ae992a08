"""Write docs/CONFIGURATION.md from the table of settings: ``python docs/generators/configuration.py``.

A test compares the two, so that each setting is on the page.
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

This page lists all settings of the broker. `docs/generators/configuration.py` makes it from
`broker/config/settings.py`.

A setting can come from the command line, from the environment (`JETBLOCK_…`) and from a configuration file
(`-c FILE`). Flags override the environment, which overrides the file. The file is written in nats-server's language,
with its keys; jetblock's own settings are in a block `jetblock { … }`.

* An unknown key is refused, and the error names its file, line and column. So is a nats-server key that jetblock does
  not support, with the reason.
* A key that would change nothing here is accepted, and the log says why it has no effect.
* Durations are written `100ms`, `2s`, `1m30s` (a bare number is seconds).
* Sizes are written `64KB`, `4MB`, `1GiB` (`k` is 1000; `kb`, `ki`, `kib` are 1024).
* `jetblock -t -c FILE` checks a file. If a key is unknown, it names the nearest one.
* `jetblock --print-config` prints the effective configuration of flags, environment and file, as a file. Before you
  use that file, replace each `[REDACTED]` by the secret.

In a file, the store is one of `jetstream { store_dir: DIR }`, `jetblock { store: URL }` and
`jetstream { object_store { bucket, path_prefix } }`. JetStream is on by `-js`, `--store`, a `jetstream` block that is
not disabled, or a store named in any way but `-sd`. For S3, settings that are missing here come from `AWS_*` and the
usual AWS credential chain.

A file can also have:

* `listen: "HOST:PORT"`, and `http: PORT` or `"HOST:PORT"`;
* users and accounts with nats-server's keys: `authorization { users: [ { user, password, permissions } ] }`,
  `accounts { NAME { users, limits, jetstream } }`;
* `include FILE`, relative to the including file;
* `$NAME`: a key set earlier, or an environment variable.

With `yes` under *reload*, SIGHUP applies a new value while the broker runs; any other setting needs a restart.

| setting | default | reload | flag | environment | file |
|---|---|---|---|---|---|
"""


KEYS_HEAD = """
## Keys of nats-server

This table has every key that nats-server 2.15 knows, and says what jetblock does with it. `A` stands for a name. A
block that is refused is refused with all its keys.

| in | keys | here |
|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
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
