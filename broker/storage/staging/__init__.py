"""Staged messages: another writer than the shard's owner puts them into the store, then asks the owner to adopt them.

    rows ──> RunWriter ──> runs, put under fresh names ──┐
                                                         ├──> owner: checks all, appends all in one record, once
    entries of the runs ──> Request, put into the inbox ─┘

This package needs neither an event loop nor a broker, so it runs in a Spark worker as well. Runs that nobody asks for,
or whose request is not granted, do no harm and are swept.
"""
