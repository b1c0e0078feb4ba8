"""The program keras-sslhsic: how TensorFlow is to work, said before anything imports it.

It is outside of the package, whose import is that of TensorFlow too, and changes no setting of the process.
"""

import importlib.util
import os
import sys
import warnings
from typing import Any


def _sentence(message: Any, *_: Any, **__: Any) -> str:
    """What a warning says, without the line of code that it comes from."""
    return f"Warning: {message}\n"


def main() -> int:
    """Runs `keras_sslhsic.cli.main` with the settings that suit training; what the environment has already stays."""
    # On CPUs without AVX-512 TensorFlow leaves oneDNN off, whose convolutions are two to nine times faster backwards.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # TensorFlow's informational lines (no GPU here, end of a sequence) are nothing that one could act on; nor is, without a
    # driver, its error that CUDA cannot be begun. Errors that matter are raised.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1" if os.path.exists("/dev/nvidiactl") else "3")
    warnings.formatwarning = _sentence
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
