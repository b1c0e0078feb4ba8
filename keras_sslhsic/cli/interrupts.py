"""Ctrl-C, where Python and TensorFlow would lose it."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_AGAIN = 1.0  # seconds until what was lost is raised anew


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within, Ctrl-C ends in a KeyboardInterrupt wherever it comes.

    Python drops what is raised while it collects an object, and libraries catch all that is raised in some places: there it is
    raised anew. C++ that asks Python for something, as TensorFlow does for a stack while it traces, makes another error of it,
    which is taken for what it was.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed, ended = threading.Event(), threading.Event()
    hook, here = sys.unraisablehook, threading.get_ident()

    def press(*of: Any) -> None:
        pressed.set()
        signal.default_int_handler(*of)

    def dropped(what: Any) -> None:
        if what.exc_type is None or not issubclass(what.exc_type, KeyboardInterrupt):
            hook(what)

    def press_again() -> None:
        pressed.wait()
        while not ended.wait(_AGAIN):
            if not _is_handled(here):
                signal.pthread_kill(here, signal.SIGINT)  # which wakes what waits, too

    watch = threading.Thread(target=press_again, daemon=True)
    watch.start()
    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = dropped
    try:
        yield
    except Exception as error:
        if pressed.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        ended.set()
        pressed.set()
        watch.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook


def _is_handled(thread: int) -> bool:
    """Whether a thread runs what comes after a KeyboardInterrupt: it is on its way out."""
    error: Any = sys._current_exceptions().get(thread)
    if isinstance(error, tuple):  # before Python 3.12
        error = error[1]
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
