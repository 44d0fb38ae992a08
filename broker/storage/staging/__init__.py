"""Messages put beside a stream by somebody who does not own its shard, and the request to its owner to let them join.

    rows ──> RunWriter ──> runs, put under fresh names ──┐
                                                         ├──> owner: checks all, appends all in one record, once
    entries of the runs ──> Request, put into the inbox ─┘

Needs neither an event loop nor a broker: it runs in a Spark worker as well. What is put and never asked for, or asked for and
never granted, does no harm, and is swept.
"""
