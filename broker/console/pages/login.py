"""The login: an address and credentials for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import events, ui

from broker.console.login import BadLogin, Login

if TYPE_CHECKING:
    from broker.console.session import Sessions

__all__ = ["build"]

_METHODS = {"none": "No credentials", "user": "User and password", "token": "Token", "creds": "Credentials file",
            "nkey": "NKey seed"}
_FILE_BYTES_MAX = 1 << 20


async def build(sessions: Sessions, browser: str) -> None:
    """Show the form."""
    preset = sessions.settings.login
    files: dict[str, str] = {}
    ui.colors(primary="#27639c")
    ui.dark_mode(None)
    with ui.card().classes("mx-auto mt-16 w-full max-w-md gap-3").props('role="main"'):
        ui.label("jetblock console").classes("text-2xl").props('role="heading" aria-level="1"')
        ui.label(f"Log in to {preset.shown}").classes("opacity-70")
        method = ui.select(_METHODS, value="none", label="Login with").classes("w-full")
        user = ui.input("User").classes("w-full").props("autocomplete=username")
        password = ui.input("Password", password=True).classes("w-full").props("autocomplete=current-password")
        token = ui.input("Token", password=True).classes("w-full")
        nkey = ui.input("Seed, which begins with SU", password=True).classes("w-full")
        creds = _file("Credentials file", "creds", files)
        for one, name in ((user, "user"), (password, "user"), (token, "token"), (nkey, "nkey"), (creds, "creds")):
            one.bind_visibility_from(method, "value", value=name)
        with ui.expansion("TLS certificates, JetStream domain").classes("w-full"):
            domain = ui.input("JetStream domain", value=preset.domain).classes("w-full")
            _file("Certificate authority (PEM)", "ca", files)
            _file("Client certificate (PEM)", "cert", files)
            _file("Client key (PEM)", "key", files)
        wrong = ui.label().classes("text-negative").props('role="alert"')

        async def log_in() -> None:
            wrong.text = ""
            given: dict[str, Any] = {
                "user": {"user": user.value, "password": password.value}, "token": {"token": token.value},
                "nkey": {"nkey": nkey.value}, "creds": {"creds": files.get("creds", "")}, "none": {},
            }[str(method.value)]
            if method.value != "none" and not all(given.values()):
                wrong.text = f"{_METHODS[str(method.value)]}: something is missing."
                return
            login = replace(Login(preset.url, domain=domain.value.strip()), **given,
                            **{name: files[name] for name in ("ca", "cert", "key") if name in files})
            button.disable()
            try:
                await sessions.open(browser, login)
            except BadLogin as error:
                wrong.text = str(error)
                return
            finally:
                button.enable()
            ui.navigate.to("/")

        button = ui.button("Log in", on_click=log_in).classes("w-full")
        for field in (user, password, token, nkey):
            field.on("keydown.enter", log_in)


def _file(label: str, name: str, files: dict[str, str]) -> ui.upload:
    """Return the field of a file, whose text becomes ``files[name]``."""
    async def keep(event: events.UploadEventArguments) -> None:
        try:
            files[name] = (await event.file.read()).decode()
        except UnicodeDecodeError:
            ui.notify(f"{event.file.name} is not a text file.", type="negative")

    return ui.upload(label=label, auto_upload=True, max_files=1, max_file_size=_FILE_BYTES_MAX,
                     on_upload=keep).classes("w-full").props("flat bordered")
