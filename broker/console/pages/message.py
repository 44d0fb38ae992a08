"""One message: its payload in several views, code that reads it, a copy of it; publishing."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from nicegui import ui

from broker.base.output import size
from broker.console.downloads import message_address
from broker.console.frame import code, confirm, copy, guarded
from broker.console.payload import VIEWS, show
from broker.console.server import Refused

if TYPE_CHECKING:
    from broker.console.messages import Message
    from broker.console.session import Session

__all__ = ["open_message", "publish"]

_EDITED_BYTES_MAX = 1 << 20
"""The largest payload that can be edited here."""


async def open_message(session: Session, stream: str, msg: Message) -> None:
    """Show a message in a dialog."""
    data = msg.data or b""
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-4xl"):
        ui.label(f"{msg.subject}, sequence {msg.seq}").classes("text-lg break-all").props('role="heading"')
        ui.label(f"{msg.time}, {size(msg.size)}").classes("opacity-70")
        if msg.headers:
            ui.table(columns=[
                {"name": "header", "label": "Header", "field": "header", "align": "left"},
                {"name": "value", "label": "Value", "field": "value", "align": "left",
                 "classes": "whitespace-normal break-all"}],
                rows=[{"header": key, "value": value[:4096]} for key, value in msg.headers.items()]).props(
                    "dense flat").classes("w-full")
        view = ui.toggle(list(VIEWS), value="auto").props("dense no-caps")
        remark = ui.label().classes("opacity-70")
        shown = code().classes("max-h-96")

        def update() -> None:
            used, shown.text, remark.text = show(data, str(view.value))
            shown.props(f'data-view="{used}"')

        view.on_value_change(update)
        update()
        with ui.row().classes("w-full items-center"):
            ui.label("Copy code:").classes("opacity-70")
            for text, make in CODES.items():
                copied = make(session.server.login.shown, stream, msg.seq, session.settings.store)
                ui.button(text, icon="content_copy", on_click=lambda _, copied=copied: copy(copied)).props(
                    "flat dense no-caps")
        with ui.row().classes("w-full justify-end"):
            ui.button("Download", on_click=lambda: ui.download.from_url(message_address(stream, msg.seq))).props("flat")
            if not session.settings.read_only:
                ui.button("Publish a copy", on_click=lambda: publish(session, msg)).props("flat")
            if session.may(f"STREAM.MSG.DELETE.{stream}"):
                async def delete() -> None:
                    if await confirm(f"Message {msg.seq} will be overwritten and gone.", str(msg.seq), "Delete"):
                        await session.streams.delete_message(stream, msg.seq, erase=True)
                        dialog.close()
                        ui.notify(f"Message {msg.seq} is deleted.", type="positive")

                ui.button("Delete", on_click=guarded(delete)).props("flat color=negative")
            ui.button("Close", on_click=dialog.close).props("flat")
    await dialog


async def publish(session: Session, msg: Message | None) -> None:
    """Publish a message, or a copy of ``msg`` that can be edited before."""
    original = _editable(msg.data or b"") if msg else ""
    with ui.dialog() as dialog, ui.card().classes("w-full max-w-2xl"):
        ui.label("Publish" if msg is None else "Publish a copy").classes("text-lg")
        subject = ui.input("Subject", value=msg.subject if msg else "").classes("w-full")
        headers = ui.textarea("Headers, one a line: Name: value", value="\n".join(
            f"{key}: {value}" for key, value in msg.headers.items()
            if not key.lower().startswith("nats-")) if msg else "").classes("w-full")
        text = ui.textarea("Payload", value=original or "").classes("w-full").props("input-class=font-mono")
        if original is None:
            text.disable()
            text.value = "(the bytes of the message, which are large or not text)"
        wrong = ui.label().classes("text-negative").props('role="alert"')

        async def send() -> None:
            data = (msg.data or b"") if msg is not None and original is None else str(text.value or "").encode()
            try:
                given = dict(line.split(":", 1) for line in str(headers.value or "").splitlines() if line.strip())
            except ValueError:
                wrong.text = "Each line of the headers must have a colon."
                return
            try:
                answer = await session.server.publish(
                    str(subject.value or "").strip(), data,
                    {key.strip(): value.strip() for key, value in given.items()} or None)
            except Refused as error:
                wrong.text = str(error)
                return
            dialog.close()
            ui.notify(f"Stored in {answer.get('stream')} as sequence {answer.get('seq')}.", type="positive")

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            ui.button("Publish", on_click=send)
    await dialog


def _editable(data: bytes) -> str | None:
    """Return a payload as text, or None if it cannot be edited as text."""
    if len(data) > _EDITED_BYTES_MAX:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _as_cli(server: str, stream: str, seq: int, store: str) -> str:
    return f"nats --server {shlex.quote(server)} stream get {shlex.quote(stream)} {seq}"


def _as_python(server: str, stream: str, seq: int, store: str) -> str:
    return (f"import asyncio\n\nimport nats\n\n\nasync def main() -> None:\n"
            f"    nc = await nats.connect({json.dumps(server)})\n"
            f"    msg = await nc.jetstream().get_msg({json.dumps(stream)}, {seq})\n"
            f"    print(msg.subject, msg.headers, msg.data)\n    await nc.close()\n\n\nasyncio.run(main())\n")


def _as_pyspark(server: str, stream: str, seq: int, store: str) -> str:
    where = json.dumps(store or "s3://BUCKET/PREFIX")
    return (f"from pyspark.sql import SparkSession\n\nimport jetblock.spark\n\n"
            f"spark = SparkSession.builder.getOrCreate()\n"
            f"messages = jetblock.spark.read(spark, store={where}, stream={json.dumps(stream)})\n"
            f'messages.where("seq = {seq}").show(truncate=False)\n')


CODES = {"nats CLI": _as_cli, "Python": _as_python, "PySpark": _as_pyspark}
"""Code that reads a message: what makes it of the server's address, the stream, the sequence and the store."""
