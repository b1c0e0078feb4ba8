"""One budget of memory for all that is decoded at a time, however many threads decode."""

import itertools
import threading
from types import TracebackType

from keras_sslhsic import checks


class Budget:
    """Memory that threads share: whoever wants more than is free waits for the others.

    The lease that was made first never waits. So somebody always goes on, and what is held stays below the budget and
    what one image needs.

    Args:
        megabytes: of 2^20 bytes.

    Example:
        >>> budget = Budget(256)
        >>> with budget.lease() as lease:
        ...     lease.hold(640 * 480 * 16)  # what decoding will take
        ...     pixels = np.zeros([480, 640, 3], np.uint8)
    """

    def __init__(self, megabytes: int) -> None:
        checks.integer("memory_mb", megabytes, 1)
        self._limit = megabytes * 2**20
        self._held: dict[int, int] = {}  # in the order in which the leases were made
        self._changed = threading.Condition()
        self._numbers = itertools.count()

    def lease(self) -> "Lease":
        """A place in the order, which holds nothing yet. Who has one must not wait for one that was made later."""
        return Lease(self)


class Lease:
    """What one thread holds of a `Budget`, until `end` or the end of a `with` statement."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        with budget._changed:
            self._number = next(budget._numbers)
            budget._held[self._number] = 0

    def hold(self, size: int) -> None:
        """Holds `size` bytes from now on, more or fewer than before; waits until they are free."""
        held, changed = self._budget._held, self._budget._changed

        def free() -> bool:
            if self._number not in held or self._number == next(iter(held)):  # ended, or the first
                return True
            own = held[self._number]
            return size <= own or sum(held.values()) - own + size <= self._budget._limit

        with changed:
            changed.wait_for(free)
            if self._number in held:
                held[self._number] = size
                changed.notify_all()

    def end(self) -> None:
        """Holds nothing any more."""
        with self._budget._changed:
            self._budget._held.pop(self._number, None)
            self._budget._changed.notify_all()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
