"""The bodies of records: a module for each kind, with its fields, ``encode`` and ``decode``.

Writers, replay and ``inspect`` use a record's body by these classes only; docs/FORMAT.md has a section for each. A new
kind needs a number in ``kinds``, a module, a row in ``table``, and its section there.

The format determines which unknown keys of a body are kept: see ``extra`` of each class. Lists of a fixed length, such
as positions, never grow without a new version of their record.
"""
