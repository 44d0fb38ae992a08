"""The kind of file system that a directory is on.

A journal is used only on a file system of this machine. Other machines may see a file of a network file system later or
not at all, and its locks may be local to each machine.
"""

from __future__ import annotations

import os
import re

__all__ = ["network_file_system"]

_MOUNTS = "/proc/self/mountinfo"

_NETWORK = re.compile(r"nfs\d?|cifs|smb\w*|9p|virtiofs|fuse(\..*)?|ceph|glusterfs|lustre|gpfs|beegfs|afs|ocfs2|gfs2|"
                      r"pvfs2|ncpfs|coda|orangefs")


def network_file_system(path: str, mounts: str = _MOUNTS) -> str | None:
    """Return the type of the network file system that the directory ``path`` is on; None if it is a local one.

    Also None if the system does not say. FUSE counts as a network: nobody knows what is behind it.
    """
    real = os.path.realpath(path)
    found, found_at = "", ""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext4 /dev/root rw
                before, _, after = line.partition(" - ")
                fields = before.split(" ")
                if len(fields) < 5 or not after:
                    continue
                at = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
                if (real == at or real.startswith(at.rstrip("/") + "/")) and len(at) >= len(found_at):
                    found, found_at = after.split(" ")[0], at
    except OSError:
        return None
    return found if _NETWORK.fullmatch(found) else None
