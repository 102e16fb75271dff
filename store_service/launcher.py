"""Runs programs of Postgres: never as root, and no longer than their owner lives.

The owner calls the first three functions. The rest happens in a process of its own, with
one thread, which runs this file by its path and then becomes the program; in a
`preexec_fn` of a process that has threads none of it would be safe:

    launcher.py OWNER_PID UID GID DATA_FOLDER PROGRAM [ARGUMENT...]

Numbers without a name are those of the kernel's headers linux/prctl.h, linux/capability.h
and linux/securebits.h; the comment beside each says its name there.
"""

# Each program pays for what is imported here, and pathlib is a third of that.
# ruff: noqa: PTH100, PTH116, PTH121

import ctypes
import os
import pwd
import signal
import sys
import time
from contextlib import suppress

_NOT_AS_ROOT = (
    "Postgres does not run as root, and cannot run as another account here: {}. Run as an "
    "ordinary user, or keep the folder and the Python packages where every account may enter."
)


def hand_over(data: os.PathLike[str]) -> None:
    """Gives folder `data` to the account that Postgres will run as, where that is not ours.

    Where we may not, the launcher of the next program says so.
    """
    if account := _account_for(data):
        with suppress(OSError):
            os.chown(data, *account)


def command_line(data: os.PathLike[str]) -> list[str]:
    """Returns the words to put before a program of Postgres that works in folder `data`.

    The program runs as ourselves or, if we are root, as the owner of `data`. It ends when
    this process does; on Linux, already when the thread does that starts it.
    """
    arguments = (os.getpid(), *(_account_for(data) or (-1, -1)), os.fspath(data))
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), *map(str, arguments)]


def works_in(pid: int, data: os.PathLike[str]) -> bool:
    """Returns whether process `pid` is a postmaster of `data`, not a later one of that pid."""
    if sys.platform == "linux":
        try:
            return os.path.samefile(f"/proc/{pid}/cwd", data)
        except OSError:
            return False
    else:
        with os.popen(f"ps -o command= -p {pid:d}") as ps:  # noqa: S605 - a number is no shell's word
            return os.fspath(data) in ps.read()


def _account_for(data: os.PathLike[str]) -> tuple[int, int] | None:
    """Returns (uid, gid) for Postgres if we are root, which it refuses to be.

    It is the owner of `data`, or `nobody` if that is root too.
    """
    if os.geteuid() != 0:
        return None
    if (owner := os.stat(data)).st_uid != 0:
        return owner.st_uid, owner.st_gid
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _launch(owner: int, uid: int, gid: int, data: str, command: list[str]) -> None:
    """Becomes `command`, as `uid` unless negative, and ends when `owner` does."""
    os.umask(0o077)
    os.chdir("/")
    if uid >= 0:
        try:
            _leave_root(uid, gid, data, command[0])
        except OSError as error:
            sys.exit(_NOT_AS_ROOT.format(error))
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        sys.exit(f"Postgres needs an account with a name: give {os.geteuid()} one in /etc/passwd.")
    program = os.getpid()
    if sys.platform == "linux":
        # After the change of account, which would undo it. Postgres keeps its children itself.
        ctypes.CDLL(None).prctl(1, int(signal.SIGQUIT))  # PR_SET_PDEATHSIG
    elif os.fork() == 0:
        _watch(owner, program)
    if os.getppid() != owner:
        sys.exit("The owner ended before the server was there.")
    # What is ignored stays so across exec: SIGPIPE by Python, the others by a shell in whose background the owner runs.
    for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    environment = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
    os.execve(command[0], command, environment)  # noqa: S606 - to become the program is our task


def _leave_root(uid: int, gid: int, data: str, binary: str) -> None:
    """Drops to `uid` for good, with the smallest capability that keeps both paths in reach."""
    linux = ctypes.CDLL(None) if sys.platform == "linux" else None
    os.setgroups([])
    os.setgid(gid)
    if linux:
        # Keeps capabilities across setuid and, for access(), with a real uid that is not 0.
        linux.prctl(28, 1 << 2)  # PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP
    os.setuid(uid)
    header, sets = (ctypes.c_uint32 * 2)(0x2008_0522, 0), (ctypes.c_uint32 * 6)()
    if linux:
        linux.capget(header, sets)
    held = sets[1]  # effective, permitted, inheritable
    for bit in (None, 2, 1):  # nothing, CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE
        wanted = 0 if bit is None else 1 << bit
        if wanted & ~held:
            continue
        if linux:
            linux.capset(header, (ctypes.c_uint32 * 6)(wanted, held, wanted, 0, 0, 0))
        if not (os.access(binary, os.X_OK) and os.access(data, os.R_OK | os.W_OK | os.X_OK)):
            continue
        if linux and bit is not None and linux.prctl(47, 2, bit, 0, 0) != 0:
            continue  # PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE: without it, gone at exec
        if linux:
            linux.capset(header, (ctypes.c_uint32 * 6)(wanted, wanted, wanted, 0, 0, 0))
        return
    sys.exit(_NOT_AS_ROOT.format(f"account {uid} cannot reach {binary} or {data}"))


def _watch(owner: int, program: int) -> None:
    """Where the kernel has no such signal: ends `program` within a second of `owner`."""
    for descriptor in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    while os.getppid() == program:
        try:
            os.kill(owner, 0)
        except PermissionError:
            pass
        except ProcessLookupError:
            os.kill(program, signal.SIGQUIT)
            break
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    _owner, _uid, _gid = map(int, sys.argv[1:4])
    _launch(_owner, _uid, _gid, sys.argv[4], sys.argv[5:])
