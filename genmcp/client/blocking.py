"""Blocking methods of objects with `async` ones, for programs that do not use asyncio."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from genmcp.client.errors import ClientClosed

T = TypeVar("T")
P = ParamSpec("P")
A = TypeVar("A")  # the class whose methods are made blocking


class BackgroundLoop:
    """An event loop in a daemon thread, from `start` until `stop`. Owned by a `SyncClient`."""

    def __init__(self, server_name: str) -> None:
        self._server_name = server_name
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None
        # Held while work is handed to the loop: it precedes the end of the loop, which cancels it.
        # Work that came later would never run, and its thread would wait for ever.
        self._lock = threading.Lock()
        self._process = os.getpid()

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._runner is None:
            # With a factory, the loop does not become that of this thread as well.
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
            runner.get_loop()  # made here, so that a failure is raised here
            # A daemon: a program that does not close its client can still exit.
            thread = threading.Thread(
                target=_run, args=(runner,), name="genmcp-client", daemon=True
            )
            thread.start()
            self._runner, self._thread = runner, thread

    def stop(self) -> None:
        """End the loop and the thread."""
        with self._lock:
            runner, thread, self._runner, self._thread = self._runner, self._thread, None, None
            if runner is None or thread is None:
                return
            loop = runner.get_loop()
            loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def check(self) -> None:
        """Check that the caller can wait for the loop.

        Raises:
            RuntimeError: this is the thread of the loop, or a forked process.
        """
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a SyncClient must not be called by its own hooks and callbacks in the event loop: "
                "they would wait for themselves; use a Client"
            )
        if not self.is_here:
            raise RuntimeError(
                "the SyncClient was made before a fork: make one in the process that uses it"
            )

    @property
    def is_here(self) -> bool:
        """Whether this is the process of the thread: a fork does not copy threads."""
        return self._process == os.getpid()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run *work* in the loop and wait for it; an interrupt, such as Ctrl-C, cancels it.

        Raises:
            ClientClosed: the loop has ended, or was ended by another thread meanwhile.
        """
        begun = False

        async def begin() -> T:
            nonlocal begun
            begun = True
            return await work

        try:
            self.check()
            with self._lock:
                if self._runner is None:
                    raise ClientClosed(self._server_name)
                future = asyncio.run_coroutine_threadsafe(begin(), self._runner.get_loop())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:  # by the end of the loop
            if not begun:
                work.close()
            raise ClientClosed(self._server_name, sent=begun) from None
        except BaseException:
            future.cancel()
            raise


def _run(runner: asyncio.Runner) -> None:
    with runner:  # its end cancels the tasks of the loop
        runner.get_loop().run_forever()


class Bridge(Generic[A]):
    """An object with `async` methods, and the event loop in which they run."""

    _target: A
    _loop: BackgroundLoop


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Bridge[A], P], T]:
    """Return a blocking method that runs *method* of the target in the event loop."""

    @wraps(method)
    def run(self: Bridge[A], /, *args: P.args, **options: P.kwargs) -> T:
        return self._loop.run(method(self._target, *args, **options))

    return run
