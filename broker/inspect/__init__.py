"""Looking into a store without a broker: read-only, also while one runs. ``cli`` is ``jetblock inspect``.

    source      the store, as this package reads it: retried, never written to
    shardview   the state of one shard, also of a damaged one as far as it goes
    survey      what lies in the store, from listings and small objects      verify   every byte of it
    dump        one object, decoded as far as it can be                      messages a stream's messages
    tables      values as text                                               report   surveys as text and JSON
"""
