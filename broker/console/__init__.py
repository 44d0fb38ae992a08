"""The console: pages in the browser for a NATS server, and more of them where the server is jetblock.

    browser ── NiceGUI ──> pages ──> Session ──> Server ── nats-py ──> any NATS server
                                        │
                                        ├──> Monitor ── HTTP ──> /varz, /jsz, /healthz, /metrics
                                        └──> store ── inspect ──> the bucket or directory

The console is a process of its own and uses the server as any client does, so that the broker has nothing to serve
browsers with. All its packages are in the extra ``jetblock[console]``.

    login       credentials, as values, and what nats-py makes of them
    server      a connection that reconnects: JetStream's API, what the user may do
    streams     streams and consumers: lists, configurations, changes
    messages    reading, following and searching a stream's messages
    payload     how a message's bytes are shown
    subjects    a stream's subjects as a tree
    downloads   whole payloads and objects, as files
    monitor     the monitoring pages of the server, sampled
    survey      what is in the store, read in a thread
    session     what one browser has: its server, its monitor, when it was last used
    frame, tables, charts
                what all pages have
    pages       what is shown
    app         the web server, and who may see its pages
"""
