"""What a command line or a config can set, of a protocol or of its data: each setting says what it is and checks itself."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from keras_sslhsic import checks


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value that can be set.

    Attributes:
        check: (name, value) -> anything; raises ValueError for a value that cannot be.
        help: what it is.
        default: what counts where it is not given, as text.
        parse: the text of a command line -> the value; by default a Python literal.
        several: whether there are several values to choose from; one alone stands for a list of one.
        replaces: the setting that says the same in another unit. What is given later counts.
    """

    check: Callable[[str, Any], object]
    help: str
    default: str = ""
    parse: Callable[[str], Any] = checks.literal
    several: bool = False
    replaces: str | None = None

    def checked(self, name: str, value: Any) -> Any:
        """The value; a tuple of values where there are several.

        Raises:
            ValueError: if it cannot be.
        """
        if not self.several:
            self.check(name, value)
            return value
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not values:
            raise ValueError(f"{name} is empty: give at least one.")
        for one in values:
            self.check(name, one)
        return values


def text(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is a text, or a path."""
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        raise ValueError(f"{name} must be a text, found {value!r}.")


def share(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is in (0, 1)."""
    checks.number(name, value, above=True)
    if value >= 1:
        raise ValueError(f"{name} must be below 1, found {value:g}.")


natural = partial(checks.integer, least=1)
positive = partial(checks.number, above=True)
portion = partial(checks.number, most=1.0)

SEED = {"seed": Setting(partial(checks.integer, least=0), "of whatever is drawn", "0")}
# Of the protocols that train nothing on images, which therefore have no batch of their own.
ENCODING = {"batch_size": Setting(natural, "images that the encoder sees at once", "256")}


def checked(owner: str, settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given settings but for those that are None, which stand for the default.

    Args:
        owner: whose settings they are, for messages: "knn".
        settings: those that there are.
        given: some of them.

    Raises:
        ValueError: for a setting that there is not, or a value that cannot be.
    """
    unknown = sorted(set(given) - set(settings))
    if unknown:
        raise ValueError(f"{owner} has no {flags(unknown)}; it has {flags(settings)}.")
    return {name: settings[name].checked(name, value) for name, value in given.items() if value is not None}


def layered(settings: Mapping[str, Setting], *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of which those of later layers come first; a length replaces one in another unit too."""
    found: dict[str, Any] = {}
    for layer in layers:
        replaced = {settings[name].replaces for name in layer if name in settings}
        found = {name: value for name, value in found.items() if name not in replaced} | dict(layer)
    return found


def flags(names: Iterable[str]) -> str:
    """Settings as a command line has them: "--batch-size, --k"."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in sorted(names)) or "no settings"
