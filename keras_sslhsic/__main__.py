"""`python -m keras_sslhsic`: the program keras-sslhsic, begun anew, since its settings come before the package's import."""

import os
import sys

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "-m", "keras_sslhsic_command", *sys.argv[1:]])
