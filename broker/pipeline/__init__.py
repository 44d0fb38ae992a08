"""Streams for Spark: read directly from the object store, with no broker in between, and appended to.

    spark.read.format("jetblock").option("store", "s3://bucket/prefix").option("stream", "orders").load()

Batch and streaming reads work alike on one machine and on a cluster. Workers need this package with the codec and the
replay it uses (``jetblock pipeline zip`` packs them into one file), msgpack, zstandard, numpy, pyarrow and obstore.

    plan     options, snapshots of the store, selections, and the scan tasks of a query
    read     scan tasks to Arrow batches
    write    Arrow batches to staged runs, and their adoption
    store    the object client
    spark    what Spark calls: source, readers, session helpers, SQL functions
    jobs     work on Spark with its own command: export, audit

The first three run without Spark.
"""
