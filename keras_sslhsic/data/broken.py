"""What happens to files that cannot be read."""

import threading
import warnings
from pathlib import Path

from keras_sslhsic.data.decode import DecodeError


def reason(error: Exception) -> str:
    """What is wrong with a file, without its name."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


class TooManyBrokenFiles(RuntimeError):
    """More files are broken than the data set may have."""


class BrokenFiles:
    """Counts broken files, names them in a log file, and stops the run if there are too many.

    Args:
        total: files in the data set.
        on_error: "skip" counts and logs; "raise" raises a DecodeError that names the file and the reason.
        max_broken: share of the files, in [0, 1], above which `TooManyBrokenFiles` is raised.
        log: file to which a line `path<TAB>reason` is appended for each broken file; made at the first one.

    Attributes:
        reasons: the reason for each broken file found so far, by its path.
    """

    def __init__(self, total: int, on_error: str, max_broken: float, log: str | Path) -> None:
        if on_error not in ("skip", "raise"):
            raise ValueError(f'on_error must be "skip" or "raise", found {on_error!r}')
        if not 0.0 <= max_broken <= 1.0:
            raise ValueError(f"max_broken is a share of the files, in [0, 1], found {max_broken}")
        self.total, self.on_error, self.max_broken, self.log = total, on_error, max_broken, Path(log)
        self.reasons: dict[str, str] = {}
        self._lock = threading.Lock()

    def report(self, path: str, error: Exception) -> None:
        """Takes note of a broken file; each path counts once."""
        why = reason(error)
        if self.on_error == "raise":
            raise DecodeError(f"{path}: {why}") from error
        with self._lock:
            if path in self.reasons:
                return
            self.reasons[path] = why
            with self.log.open("a", encoding="utf-8", errors="surrogateescape") as log:
                log.write(f"{path}\t{why}\n")
            if len(self.reasons) == 1:
                warnings.warn(
                    f"skipping broken files; their names and reasons are in {self.log.resolve()}. The "
                    f"first: {path}: {why}",
                    stacklevel=2,
                )
            if len(self.reasons) > self.max_broken * self.total:
                raise TooManyBrokenFiles(self.summary())

    def summary(self) -> str:
        """The count, the first five files with their reasons, and what to do."""
        first = [f"  {path}: {why}" for path, why in list(self.reasons.items())[:5]]
        more = [f"  ... and {len(self.reasons) - 5} more"] if len(self.reasons) > 5 else []
        share = len(self.reasons) / self.total
        counts = f"{len(self.reasons)} of {self.total} files ({share:.1%})"
        head = f"{counts} are broken, {self.max_broken:.1%} allowed:"
        tail = f"All are named in {self.log.resolve()}: remove or repair them, or raise max_broken "
        tail += "(--max-broken of evaluate, data.max_broken of a config)."
        return "\n".join([head, *first, *more, tail])
