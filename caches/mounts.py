"""What kind of file system a directory lies on, as the kernel tells it."""

import re
from pathlib import Path
from typing import NamedTuple

_MOUNTS = Path("/proc/self/mountinfo")
# Their locks, renames or caching of names are not those of a local disk.
_NETWORK = frozenset(
    {
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fhgfs", "gfs2", "glusterfs"),
        *("gpfs", "lustre", "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs"),
        *("smb3", "smbfs", "virtiofs", "vmhgfs", "wekafs"),
    }
)
_FUSE = ("fuse.", "fuseblk")
# Of FUSE, what is on this host all the same.
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuse.overlayfs", "fuse.lxcfs"})
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mounted file system."""

    point: str
    kind: str
    """Such as "ext4" or "nfs4"."""

    @property
    def is_network(self) -> bool:
        """Whether its files are, or may be, on another host."""
        if self.kind.startswith(_FUSE):
            return self.kind not in _LOCAL_FUSE
        return self.kind in _NETWORK


def mount_of(directory: Path, mounts: Path = _MOUNTS) -> Mount | None:
    """Return the file system that a directory lies on; None where nothing tells.

    Args:
        directory: need not exist.
        mounts: the table, in the form of proc_pid_mountinfo(5).
    """
    real = directory.resolve()
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    found = None
    for line in lines:
        mount = _mount(line)
        if mount is None or not real.is_relative_to(mount.point):
            continue
        # Of two on one place the later hides the earlier.
        if found is None or len(mount.point) >= len(found.point):
            found = mount
    return found


def _mount(line: str) -> Mount | None:
    """Read a line: the fifth field is the place, and the kind follows a lone dash."""
    fields, _, rest = line.partition(" - ")
    words, kinds = fields.split(), rest.split()
    if len(words) < 5 or not kinds:
        return None
    point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4])
    return Mount(point, kinds[0])
