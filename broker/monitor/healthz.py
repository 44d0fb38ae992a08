"""The page /healthz: whether clients are served. Source: nats-server, server/monitor.go (healthz)."""

from __future__ import annotations

from typing import Any

from broker.monitor.options import HealthzOptions
from broker.monitor.views import JetStreamView, Views

__all__ = ["healthz"]


def healthz(views: Views, options: HealthzOptions) -> dict[str, Any]:
    """Return the page with ``status_code``, which HTTP removes and sends as its status.

    ``live`` asks only for an answer, which shows that the broker's event loop works.
    """
    if options.live:
        return _ok()
    if options.stream and not options.account:
        return _failed(options, 400, "error", "BAD_REQUEST", '"account" must not be empty when checking stream health')
    if options.consumer and not options.stream:
        return _failed(options, 400, "error", "BAD_REQUEST", '"stream" must not be empty when checking consumer health')
    health = views.health()
    if not health.serving:
        return _failed(options, 503, health.status, "CONNECTION", health.error)
    if options.js_server_only:
        return _ok()
    if health.status != "ok":
        return _failed(options, 503, health.status, "JETSTREAM", health.error)
    jetstream = views.jetstream()
    if jetstream is None or options.js_enabled_only or options.js_enabled:
        return _ok()
    return _assets(jetstream, options)


def _assets(jetstream: JetStreamView, options: HealthzOptions) -> dict[str, Any]:
    """Check that the requested objects exist, and that every stream was restored and can be stored."""
    wanted = {"account": options.account, "stream": options.stream, "consumer": options.consumer}
    failed = [(account, stream) for account, stream in jetstream.failed
              if options.account in ("", account) and options.stream in ("", stream)]
    errors = [{"type": "STREAM", "account": account, "stream": stream,
               "error": f"JetStream stream '{account} > {stream}' could not be recovered"}
              for account, stream in failed]
    if errors and options.details:
        return {"status": "error", "status_code": 503, "errors": errors}
    if errors:
        return {"status": "unavailable", "status_code": 503, "error": errors[0]["error"]}
    if not options.account:
        return _ok()
    name, stream, consumer = wanted["account"], wanted["stream"], wanted["consumer"]
    account = next((found for found in jetstream.accounts if found.name == name), None)
    kind = ""
    if account is None:
        kind, why = "ACCOUNT", f'JetStream account "{name}" not found'
    elif stream and not account.stream_exists(stream):
        kind, why = "STREAM", f'JetStream stream "{stream}" not found on account "{name}"'
    elif consumer and not account.consumer_exists(stream, consumer):
        kind = "CONSUMER"
        why = f'JetStream consumer "{consumer}" not found for stream "{stream}" on account "{name}"'
    if not kind:
        return _ok()
    named = dict(list(wanted.items())[:1 + ("ACCOUNT", "STREAM", "CONSUMER").index(kind)])
    return _failed(options, 404, "unavailable", kind, why, named)


def _ok() -> dict[str, Any]:
    return {"status": "ok", "status_code": 200}


def _failed(options: HealthzOptions, code: int, status: str, kind: str, why: str,
            named: dict[str, str] | None = None) -> dict[str, Any]:
    if options.details:
        return {"status": "error", "status_code": code, "errors": [{"type": kind, **(named or {}), "error": why}]}
    return {"status": status, "status_code": code, **({"error": why} if why else {})}
