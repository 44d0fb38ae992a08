"""Helpers and jobs for a Spark session; docs/SPARK.md explains them. This module imports neither Spark nor the
server."""

from broker.pipeline.jobs.audit import Audited, audit
from broker.pipeline.jobs.erasing import ErasedMessages, erase
from broker.pipeline.jobs.export import Exported, export
from broker.pipeline.jobs.importing import Imported, import_messages
from broker.pipeline.spark.functions import header, headers_list, headers_map, subject_matches, subject_token
from broker.pipeline.spark.session import builder_conf, explain_read, read, read_stream, register

__all__ = ["Audited", "ErasedMessages", "Exported", "Imported", "audit", "builder_conf", "erase", "explain_read",
           "export", "header", "headers_list", "headers_map", "import_messages", "read", "read_stream", "register",
           "subject_matches", "subject_token"]
