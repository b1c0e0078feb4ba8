"""What happens to files that cannot be read."""

import threading
from pathlib import Path

from keras_sslhsic import checks
from keras_sslhsic.data.decode import DecodeError
from keras_sslhsic.files import append_line, display
from keras_sslhsic.words import warn

LOG = "broken_images.log"  # where nothing else is said


def reason(error: Exception, path: str) -> str:
    """What is wrong with a file, without its name, in one line."""
    why = getattr(error, "strerror", None) or str(error)
    return display(why).removeprefix(f"{display(path)} ")


def line(path: str, why: str) -> str:
    """What lists of broken files say of one: its name and the reason, with a tab between."""
    return f"{display(path)}\t{why}"


class TooManyBrokenFiles(RuntimeError):
    """More files are broken than the data set may have."""


class BrokenFiles:
    """Counts broken files, names them in a log file, and stops the run if there are too many.

    Args:
        total: files in the data set.
        on_error: "skip" counts and logs; "raise" raises a DecodeError that names the file and the reason.
        max_broken: share of the files, in [0, 1], above which `TooManyBrokenFiles` is raised.
        log: file to which a line `path<TAB>reason` is appended for each broken file that it does not name yet, with control
            characters escaped; made at the first one. One that cannot be written is said to be, and stops nothing.

    Attributes:
        reasons: the reason for each broken file found so far, by its path.
    """

    def __init__(self, total: int, on_error: str, max_broken: float, log: str | Path) -> None:
        checks.choice("on_error", on_error, ("skip", "raise"))
        if not 0.0 <= max_broken <= 1.0:
            raise ValueError(f"max_broken must be a share of the files, in [0, 1], found {max_broken}.")
        self.total, self.on_error, self.max_broken, self.log = total, on_error, max_broken, Path(log)
        self.reasons: dict[str, str] = {}
        self._unwritten = ""
        self._named: set[bytes] | None = None  # lines that the log had at the first broken file
        self._lock = threading.Lock()

    def report(self, path: str, error: Exception) -> None:
        """Takes note of a broken file; each path counts once. Too many are too many at every later one, as the first error may
        be in a batch that nobody asks for."""
        why = reason(error, path)
        if self.on_error == "raise":
            raise DecodeError(f"{display(path)}: {why}") from error
        with self._lock:
            if path not in self.reasons:
                self._note(path, why)
            if len(self.reasons) > self.max_broken * self.total:
                raise TooManyBrokenFiles(self.summary())

    def _note(self, path: str, why: str) -> None:
        self.reasons[path] = why
        try:
            self._list(line(path, why).encode())
        except OSError as error:
            self._unwritten = f", which cannot be written ({error.strerror})"
        if len(self.reasons) == 1:
            warn(
                f"Skipping broken files; their names and reasons go to {self._where()}. "
                f"The first: {display(path)}: {why}",
            )

    def _list(self, entry: bytes) -> None:
        if self._named is None:
            self._named = {*self.log.read_bytes().splitlines()} if self.log.exists() else set()
        if entry not in self._named:
            append_line(self.log, entry, flush=False)

    def summary(self) -> str:
        """The count, the first five files with their reasons, and what to do."""
        count = len(self.reasons)
        first = [f"  {display(path)}: {why}" for path, why in list(self.reasons.items())[:5]]
        more = [f"  ... and {count - 5} more"] if count > 5 else []
        share = f"{count / self.total:.1%}"
        head = f"{count} of {self.total} files ({share}) are broken, {self.max_broken:.1%} allowed:"
        tail = f"The names of all go to {self._where()}: remove or repair them, or raise max_broken "
        tail += "(--max-broken of evaluate, data.max_broken of a config)."
        return "\n".join([head, *first, *more, tail])

    def _where(self) -> str:
        return display(self.log.resolve()) + self._unwritten
