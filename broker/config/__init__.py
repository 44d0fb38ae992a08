"""Configuration: command line, environment and file, merged into one ``Settings`` value.

    syntax       text of a configuration file to values with their places (no I/O except through a given reader)
    kinds        sizes, durations, ports…: one value from any of the three sources, or an error
    settings     the ``Settings`` value, a section for each part: each setting's unit, default, names and reload rule
    reading      the blocks of a file that are not single settings: users, accounts; which keys are refused
    file         the keys that a file may have and their meaning; refused keys and the reasons
    flags        the command line, with Go's rules for flags
    environment  ``JETBLOCK_*``
    load         flags override the environment, which overrides the file; constraints between settings
    show         settings as a configuration file

Every part of the broker may import ``settings``; the readers are only for the command line.
"""
