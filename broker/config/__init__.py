"""What the operator asked for: command line, environment and file, brought together into one ``Settings`` value.

    syntax       text of a configuration file to values with their places (no I/O but the reader it is handed)
    kinds        sizes, durations, ports…: one value from any of the three sources, or why not
    settings     the ``Settings`` value, a section for each part: every setting with its unit, default and names
    access       users, permissions and accounts as values; sharing: what accounts export, import and map
    reading      the blocks of a file that are not single settings: users, accounts; which keys are refused
    file         which keys a file may have and what they mean; which are refused, and why
    flags        the command line, with Go's rules for flags
    environment  ``JETBLOCK_*``
    load         flags beat environment beats file; what holds between settings is checked there
    show         settings as a configuration file

Every part of the broker may import ``settings``; the readers are for the command line alone.
"""
