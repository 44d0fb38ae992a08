"""The bodies of records: one module for each kind, with its fields, ``encode`` and ``decode``.

Writers, replay and ``inspect`` know a record's body by these classes alone; docs/FORMAT.md has a section for each. A new
kind takes a number in ``kinds``, a module, a row in ``table``, and its section there.

Which of a body's unknown keys are kept is part of the format: see ``extra`` of each class. Lists of a fixed length, such as
positions, never grow without a new version of their record.
"""
