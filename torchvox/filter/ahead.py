# SPDX-License-Identifier: Apache-2.0
"""An iterator that a thread runs ahead of whoever takes its items."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

T = TypeVar("T")


def run_ahead(items: Iterable[T], room: int) -> Generator[T, None, None]:
    """The items, of which a thread has up to `room` ready. Closing the generator ends the thread.

    What `items` raises is raised here.
    """
    ready: queue.Queue[Any] = queue.Queue(room)
    stop = threading.Event()

    def work() -> None:
        try:
            for item in items:
                ready.put(item)
                if stop.is_set():
                    return
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        with contextlib.suppress(queue.Empty):
            while True:  # the thread may wait for room
                ready.get_nowait()
        thread.join()
