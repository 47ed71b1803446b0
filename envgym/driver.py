"""Running coroutines for a synchronous caller, inside or outside a running event loop; no twin implementation."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["Driver"]

T = TypeVar("T")


class Driver:
    """Runs coroutines to their end for a synchronous caller.

    waits: whether they may wait. If not, they are driven by hand (no loop, no thread) and one that waits all
    the same raises RuntimeError. If so, a private event loop runs them: in the calling thread, or, once a
    call came from inside a running loop, in one helper thread.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result, or what it raised. An interrupt cancels it and lets it clean up."""
        if not self._waits:
            return _drive(coroutine)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if self._thread is None and not _inside_a_loop():
            return _run_here(self._loop, coroutine)
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop.run_forever, name="envgym-driver", daemon=True)
            self._thread.start()
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End the loop and its thread; idempotent."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        if self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            self._thread = None
        if _inside_a_loop():  # a second loop cannot run in this thread: finish in another one
            thread = threading.Thread(target=_finish, args=(loop,), name="envgym-driver-close")
            thread.start()
            thread.join()
        else:
            _finish(loop)


def _inside_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _drive(coroutine: Coroutine[Any, Any, T]) -> T:
    waited = (
        f"{coroutine!r} waited, but its EnvSpec says in_process=True: set in_process=False, or await nothing "
        "that suspends"
    )
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except RuntimeError as error:
        if str(error) == "no running event loop":  # what asyncio's own waits say without one
            raise RuntimeError(waited) from error
        raise
    coroutine.close()
    raise RuntimeError(waited)


def _run_here(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        if not task.done():  # an interrupt: what it holds must still be released
            task.cancel()
            loop.run_until_complete(asyncio.wait([task]))
        raise


def _finish(loop: asyncio.AbstractEventLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
