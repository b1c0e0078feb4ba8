"""The program keras-sslhsic: how TensorFlow is to work, said before anything imports it.

It is outside of the package, whose import is that of TensorFlow too, and changes no setting of the process.
"""

import importlib.util
import io
import os
import sys
import warnings
from typing import Any


def _sentence(message: Any, *_: Any, **__: Any) -> str:
    """What a warning says, without the line of code that it comes from."""
    return f"Warning: {message}\n"


def _open_streams() -> None:
    """Makes standard streams take whatever is printed.

    One that was closed, as a daemon does, would leave its number to a file, into which TensorFlow would write its messages.
    A name that the encoding of the terminal lacks would be an error.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for number, name in enumerate(("stdout", "stderr"), start=1):
        stream = getattr(sys, name) or os.fdopen(number, "w")
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)


def main() -> int:
    """Runs `keras_sslhsic.cli.main` with the settings that suit training; what the environment has already stays."""
    # On CPUs without AVX-512 TensorFlow leaves oneDNN off, whose convolutions are two to nine times faster backwards.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # TensorFlow's informational lines (no GPU here, end of a sequence) are nothing that one could act on; nor is, without a
    # driver, its error that CUDA cannot be begun. Errors that matter are raised.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if os.path.exists("/dev/nvidiactl") else "3")
    warnings.formatwarning = _sentence
    _open_streams()
    # The package imports TensorFlow, which takes seconds: it is there, for its modules, and run when a command needs it.
    spec = importlib.util.find_spec("keras_sslhsic")
    assert spec is not None and spec.loader is not None
    package = sys.modules["keras_sslhsic"] = importlib.util.module_from_spec(spec)
    run = spec.loader.exec_module
    try:
        from keras_sslhsic import cli

        return cli.main(prepare=lambda: run(package))
    except KeyboardInterrupt:  # before the command began
        return 130


if __name__ == "__main__":
    sys.exit(main())
