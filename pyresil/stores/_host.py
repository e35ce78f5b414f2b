"""What a host says of itself: which boot this is, how its clocks compare, and what a path is on."""

from __future__ import annotations

import errno
import os

from pyresil.errors import StoreError, StoreUnavailableError

#: File systems whose locks or shared memory do not work between hosts, which WAL needs.
_NETWORK = {
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "glusterfs",
    "gpfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb2",
    "smb3",
    "smbfs",
}


#: What says that a host does not tell something, and never will.
_NOT_TOLD = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM}


def _read(path: str) -> str | None:
    """What a file of the kernel says; None where there is none.

    Raises:
        StoreUnavailableError: It cannot be read now, for want of a file descriptor for one. Taken for "nothing is told", a held
            lease would look like one of another boot, which is free.
    """
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - pathlib costs 5 ms of import
            return file.read()
    except OSError as error:
        if error.errno in _NOT_TOLD:
            return None
        raise StoreUnavailableError(f"SQLite store: {path} cannot be read ({error.strerror})") from error


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - pathlib costs 5 ms of import
    except OSError:
        return None


def boot_id() -> str:
    """A word that changes with every boot of this host; its clocks since boot compare only within one.

    Raises:
        StoreUnavailableError: It cannot be read now.
    """
    found = _read("/proc/sys/kernel/random/boot_id")
    if found:
        return found.strip()
    import subprocess

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreUnavailableError(f"SQLite store: the id of this boot cannot be read ({error})") from error
    return done.stdout.strip() or "unknown"


def boottime_offset() -> float:
    """Seconds by which this process's clock since boot is ahead of the host's.

    A process in a time namespace sees the same boot id and another clock. Subtracting the offset makes the clocks of all
    processes of a host comparable; without it one in a namespace would steal a lease that is held.

    Raises:
        StoreError: The process left its namespace halfway, so that its own offset cannot be known.
        StoreUnavailableError: The offset cannot be read now.
    """
    here = _link("/proc/self/ns/time")
    if here is None:
        return 0.0  # no time namespaces in this kernel, or no Linux
    if here != _link("/proc/self/ns/time_for_children"):
        raise StoreError(
            "this process called unshare() for a new time namespace that only its children are in, so its clock cannot be "
            "compared with other processes': start it with 'unshare --time --fork', or use a server as the store"
        )
    for line in (_read("/proc/self/timens_offsets") or "").splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "boottime":
            return int(words[1]) + int(words[2]) / 1e9
    return 0.0


def unfit_for_sqlite(path: str) -> str | None:
    """Why SQLite cannot keep processes apart by the file ``path``, for a message; None where it can, or where nothing is known."""
    real = os.path.realpath(path)
    best, kind = -1, None
    # Where the file is: its device, and its path there. And where it would be as one of the files of its folder.
    alone = beside = None
    for line in (_read("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, rest = left.split(), right.split()
        if len(fields) < 5 or not rest:
            continue
        root, mount = _unescaped(fields[3]), _unescaped(fields[4])
        above = mount.rstrip("/")
        if real == mount and not os.path.isdir(real):  # noqa: PTH112 - pathlib costs 5 ms of import
            alone = (fields[2], root)
        elif (real == mount or real.startswith(above + "/")) and len(mount) >= best:
            best, kind = len(mount), rest[0]
            beside = (fields[2], root.rstrip("/") + real[len(above) :])
    if alone is not None and alone != beside:
        # Each container would have a log of its own beside it, and not see what the others write.
        return "is mounted alone, without what SQLite keeps beside it: mount its folder"
    if kind in _NETWORK:
        return f"is on a network file system ({kind}), where SQLite cannot lock: use a local path, or a Redis or PostgreSQL store"
    return None


def _unescaped(text: str) -> str:
    """A path of the table of mounts: blanks, tabs, line ends and backslashes are written there in octal."""
    for octal, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(octal, char)
    return text
