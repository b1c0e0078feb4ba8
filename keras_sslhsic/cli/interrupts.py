"""Ctrl-C, where Python and TensorFlow would lose it."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within, Ctrl-C ends in a KeyboardInterrupt wherever it comes.

    Python drops what is raised while it collects an object; there it is raised anew. C++ that asks Python for something, as
    TensorFlow does for a stack while it traces, makes another error of it, which is taken for what it was.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not ours or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed, hook = threading.Event(), sys.unraisablehook

    def press(*of: Any) -> None:
        pressed.set()
        signal.default_int_handler(*of)

    def dropped(what: Any) -> None:
        if what.exc_type is not None and issubclass(what.exc_type, KeyboardInterrupt):
            # After the collection, and as a signal, which wakes what waits.
            threading.Timer(0.01, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        else:
            hook(what)

    signal.signal(signal.SIGINT, press)
    sys.unraisablehook = dropped
    try:
        yield
    except Exception as error:
        if pressed.is_set():
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = hook
