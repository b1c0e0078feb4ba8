"""The program keras-sslhsic: how TensorFlow is to work, said before anything imports it.

It is outside of the package, whose import is that of TensorFlow too, and changes no setting of the process.
"""

import os
import sys


def main() -> int:
    """Runs `keras_sslhsic.cli.main` with the settings that suit training; what the environment has already stays."""
    # On CPUs without AVX-512 TensorFlow leaves oneDNN off, whose convolutions are two to nine times faster backwards.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    # TensorFlow's informational lines (no GPU here, end of a sequence) are nothing that one could act on.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    from keras_sslhsic import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
