"""Inspection of a store without a broker: read-only, also while one runs. ``cli`` is ``jetblock inspect``.

    source      read-only, retried access to the store
    shardview   the state of one shard; if damaged, as far as it can be read
    survey      the contents of a store, from listings and small objects     verify    the check of every byte
    objects     one object, checked whole                                    dump      one object, decoded leniently
    salvage     blocks found without a directory                             messages  a stream's messages
    problems    faults with their consequences and remedies                  report    surveys as text and JSON
"""
