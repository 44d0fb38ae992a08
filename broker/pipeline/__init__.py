"""PySpark on the blocks of a store."""
