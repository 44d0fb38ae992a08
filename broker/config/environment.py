"""Settings from the environment: ``JETBLOCK_<NAME>``, by pydantic-settings.

pydantic-settings takes about 0.15 s to import, as long as the rest of a start. Nearly every client test starts a
broker, so it is imported only if there is such a variable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.base.suggest import did_you_mean
from broker.config.settings import REMOVED, ConfigError, setting_at, settings_table

__all__ = ["PREFIX", "master_keys", "read_environment"]

PREFIX = "JETBLOCK_"
OTHERS = ("JETBLOCK_TEST_", "JETBLOCK_BENCH_", "JETBLOCK_PURE")
"""Variables of tests and benchmarks, and the choice of ``broker.compiled``: not settings of the broker."""


def read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in ``environ``, by path; an empty variable counts as unset.

    Raises: ConfigError with a line for each variable that is unknown or has an invalid value.
    """
    ours = {name.upper(): value for name, value in environ.items()
            if name.upper().startswith(PREFIX) and not name.upper().startswith(OTHERS) and value}
    if not ours:
        return {}
    fields = {setting.variable: setting for setting in settings_table() if setting.variable}
    removed = {PREFIX + key.rpartition(".")[2].upper(): why for key, why in REMOVED.items()}
    errors = [f"environment: {name} was removed: {removed[name]}; unset it" if name in removed else
              f"environment: {name} names no setting of jetblock{did_you_mean(name, fields)}; see docs/CONFIGURATION.md"
              for name in ours if name not in fields]
    if errors:
        raise ConfigError("\n".join(errors))

    from pydantic import BeforeValidator, ValidationError, create_model
    from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
    from pydantic_settings.sources import EnvSettingsSource

    class Environment(BaseSettings):
        model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True, extra="ignore")

        @classmethod
        def settings_customise_sources(cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource,
                                       **__: PydanticBaseSettingsSource) -> tuple[PydanticBaseSettingsSource, ...]:
            source = EnvSettingsSource(settings_cls)
            # The caller's mapping, not the process's: the same environment for every source, and for tests.
            source.env_vars = {name.lower(): value for name, value in ours.items()}
            return (source,)

    columns: Any = {
        setting.variable.removeprefix(PREFIX).lower(): (_annotated(BeforeValidator(setting.kind)), None)
        for setting in fields.values() if setting.variable in ours}
    model = create_model("Environment", __base__=Environment, **columns)
    try:
        values = model()
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            name = PREFIX + str(problem["loc"][0]).upper()
            why = str(problem["msg"]).removeprefix("Value error, ")
            shown = "" if fields[name].secret else f", not {ours[name]!r}"
            lines.append(f"environment: {name} {why}{shown}")
        raise ConfigError("\n".join(lines)) from None
    return {fields[name].path: getattr(values, name.removeprefix(PREFIX).lower()) for name in ours}


def _annotated(validator: Any) -> Any:
    from typing import Annotated

    return Annotated[Any, validator]


def master_keys(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the store's master keys in ``environ``, by path, for commands that read no others."""
    return {path: value for path in ("storage.key", "storage.prev_key")
            if (value := environ.get(setting_at(path).variable))}
