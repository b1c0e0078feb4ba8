"""Things by their names: losses, methods, protocols. A config or a command names them, and any module may add its own."""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from keras_sslhsic.files import display

Thing = TypeVar("Thing")


class Registry(Mapping[str, Thing], Generic[Thing]):
    """A mapping from names that says what it holds when a name is unknown.

    Args:
        kind: what the things are, for messages: "loss".

    Example:
        >>> colours: Registry[int] = Registry("colour")
        >>> colours.add("red", 0xFF0000)
        16711680
        >>> colours["red"]
        16711680
    """

    def __init__(self, kind: str):
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def add(self, name: str, thing: Thing) -> Thing:
        """Gives a thing its name, and returns it. A module that is run again replaces what it added before."""
        self._things[name] = thing
        return thing

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """`add` as a decorator."""
        return lambda thing: self.add(name, thing)

    def __getitem__(self, name: str) -> Thing:
        """The thing of a name.

        Raises:
            ValueError: if there is none; the message has the nearest names, and all.
        """
        if name not in self._things:
            nearest = difflib.get_close_matches(str(name), self._things, n=3, cutoff=0.4)
            known = f"there are {', '.join(self._things)}."
            hint = f"did you mean {' or '.join(nearest)}? T{known[1:]}" if nearest else known
            raise ValueError(f"Unknown {self.kind} {display(name)!r}: {hint}")
        return self._things[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)

    def __len__(self) -> int:
        return len(self._things)

    def __contains__(self, name: object) -> bool:
        return name in self._things
