"""The login: credentials for the console's server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import events, ui

from broker.console.frame import colors
from broker.console.login import BadLogin, Login

if TYPE_CHECKING:
    from broker.console.session import Sessions

__all__ = ["build"]

_METHODS = {"none": "No credentials", "user": "User and password", "token": "Token", "creds": "Credentials file",
            "nkey": "NKey seed"}
_FILE_BYTES_MAX = 1 << 20
_ENTER = """const answer = await fetch("/enter", {method: "POST", body: TICKET}); return answer.ok"""


async def build(sessions: Sessions, browser: str, query: Mapping[str, str]) -> None:
    """Show the form. Args: query: ``next``, the page to go to afterwards; ``ended``, if a session has ended."""
    preset = sessions.settings.login
    files: dict[str, str] = {}
    colors()
    ui.dark_mode(None)
    with ui.card().classes("mx-auto mt-16 w-full max-w-md gap-3"):
        ui.label("jetblock console").classes("text-2xl").props('role="heading" aria-level="1"')
        if query.get("ended"):
            ui.label("Your session has ended. Log in again to go on.").props('role="status"')
        ui.label(f"Log in to {preset.shown}").classes("opacity-70")
        method = ui.select(_METHODS, value="none", label="Login with").classes("w-full")
        user = ui.input("User").classes("w-full").props("autocomplete=username")
        password = ui.input("Password", password=True).classes("w-full").props("autocomplete=current-password")
        token = ui.input("Token", password=True).classes("w-full").props("autocomplete=off")
        nkey = ui.input("Seed, which begins with SU", password=True).classes("w-full").props("autocomplete=off")
        creds = _file("Credentials file", "creds", files)
        for one, name in ((user, "user"), (password, "user"), (token, "token"), (nkey, "nkey"), (creds, "creds")):
            one.bind_visibility_from(method, "value", value=name)
        with ui.expansion("TLS certificates, JetStream domain, inbox prefix").classes("w-full"):
            domain = ui.input("JetStream domain", value=preset.domain).classes("w-full")
            inbox = ui.input("Inbox prefix", value=preset.inbox_prefix, placeholder="_INBOX").classes("w-full")
            tls_first = ui.checkbox("TLS handshake first", value=preset.tls_first)
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
            if ("cert" in files) != ("key" in files):
                wrong.text = "A client certificate needs its key, and a key its certificate."
                return
            login = replace(
                Login(preset.url, ca=preset.ca), domain=(domain.value or "").strip(), tls_first=bool(tls_first.value),
                inbox_prefix=(inbox.value or "").strip(), **given,
                **{name: files[name] for name in ("ca", "cert", "key") if name in files})
            button.disable()
            try:
                ticket = await sessions.open(browser, login)
                entered = await ui.run_javascript(_ENTER.replace("TICKET", f'"{ticket}"'), timeout=30)
            except BadLogin as error:
                wrong.text = str(error)
                return
            except TimeoutError:
                entered = False
            finally:
                button.enable()
                for field in (password, token, nkey):
                    field.value = ""
            if entered:
                ui.navigate.to(_page_of(query.get("next", "")))
            else:
                wrong.text = "The browser did not keep the session. Load this page again, with cookies allowed."

        button = ui.button("Log in", on_click=log_in).classes("w-full")
        for field in (user, password, token, nkey):
            field.on("keydown.enter", log_in)


def _page_of(address: str) -> str:
    """Return the page to go to: one of the console's, whatever the address of the login says."""
    return address if address.startswith("/") and not address.startswith(("//", "/\\")) else "/"


def _file(label: str, name: str, files: dict[str, str]) -> ui.column:
    """Return the field of a file, whose text becomes ``files[name]``."""
    async def keep(event: events.UploadEventArguments) -> None:
        upload.reset()  # so that another file can be chosen in its place
        try:
            files[name] = (await event.file.read()).decode()
        except UnicodeDecodeError:
            ui.notify(f"{event.file.name} is not a text file.", type="negative")
        else:
            chosen.text = f"{label}: {event.file.name}"

    with ui.column().classes("w-full gap-0") as field:
        upload = ui.upload(label=label, auto_upload=True, max_file_size=_FILE_BYTES_MAX, on_upload=keep,
                           on_rejected=lambda: ui.notify("The file is too large.", type="negative"))
        upload.classes("w-full").props("flat bordered")
        chosen = ui.label().classes("text-sm break-all").props('role="status"')
    return field
