# SPDX-License-Identifier: Apache-2.0
"""Locks between processes, released when the process that holds them ends."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

LOCK = ".lock"


@contextlib.contextmanager
def lock(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a folder for the block; false if another process holds it. True also on a
    file system without locks. wait: until the other process releases it."""
    path, is_there = folder / LOCK, False
    while not is_there:
        is_mine = True
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            is_mine = False
        except OSError:
            pass
        with contextlib.suppress(FileNotFoundError):
            is_there = os.path.samestat(path.stat(), os.fstat(handle))
        if not is_there:  # another process removed the file and ended
            os.close(handle)
    try:
        yield is_mine
    finally:
        if is_mine:
            path.unlink(missing_ok=True)
        os.close(handle)
