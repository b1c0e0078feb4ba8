"""Where the weights of a network come from: a path, an address, a mirror, the package or the cache."""

import hashlib
import os
import re
import urllib.parse
from pathlib import Path

from keras_sslhsic import files
from keras_sslhsic.files import display
from keras_sslhsic.words import warn
from keras_sslhsic.zoo import convert, download, model_files, registry

WEIGHTS_VARIABLE = "KERAS_SSLHSIC_WEIGHTS"
ENCODER_FILE = "encoder.keras"  # in a folder of `save_pretrained` and in a run folder
ENTRY_FILE = "pretrained.json"  # in a folder of `save_pretrained`

_NOT_PUBLISHED = """No weights of {name} are at hand: its authors published none. Either
- convert an official checkpoint: keras-sslhsic convert checkpoint.npy --to {name}.weights.h5,
  then load_pretrained("{name}", weights="{name}.weights.h5");
- train it: keras-sslhsic pretrain --config configs/imagenet_r50_1x.py;
- point to a file, folder or address: weights=..., or the environment variable {variable};
- or take the untrained network: load_pretrained("{name}", weights="random")."""


def find(entry: registry.Entry, weights: str | os.PathLike | None, cache: Path | None) -> Path:
    """Finds the file with an entry's weights in what `load_pretrained` was given, or the usual places; downloads it.

    Raises:
        FileNotFoundError: if the weights are nowhere, or there is no cache to download them to.
        ValueError: if a file is not what it should be.
    """
    given = weights if weights is not None else os.environ.get(WEIGHTS_VARIABLE)
    if given is None:
        return _published(entry, cache)
    given = str(given)
    if not given:
        raise ValueError('The place of the weights is empty: give a path, an address or "random".')
    if "://" not in given:
        return in_folder(Path(given), entry.name)
    address, fragment = urllib.parse.urldefrag(given)
    if weights is None:  # the base address of a mirror
        address = f"{address.rstrip('/')}/{entry.name}.weights.h5"
    known = re.fullmatch("(?:sha256=([0-9a-fA-F]{64}))?", fragment)
    if known is None:
        raise ValueError(
            f"Expected #sha256= and 64 hexadecimal digits at the end of the address, found #{display(fragment)}."
        )
    if known[1] is None:
        warn(
            f"{display(address)} is taken as it is, since no hash of it is given: append #sha256=... to have it checked.",
        )
    return _cached(address, cache, known[1])


def in_folder(path: Path, name: str | None = None) -> Path:
    """Returns the model file of a folder (a file is itself): encoder.keras, or that of a network's name.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not the file that `save_pretrained` wrote there.
    """
    if not path.is_dir():
        if not path.exists():
            raise FileNotFoundError(f"There are no weights at {display(path)}.")
        return _unaltered(path)
    names = [ENCODER_FILE] if name is None else [f"{name}.weights.h5", f"{name}.keras", ENCODER_FILE]
    for candidate in names:
        if (path / candidate).is_file():
            return _unaltered(path / candidate)
    raise FileNotFoundError(
        f"{display(path)} holds no {' or '.join(names)}: it is no mirror, folder of save_pretrained or finished run."
    )


def _unaltered(encoder: Path) -> Path:
    entry = entry_beside(encoder)
    if entry is not None:
        download.check_sha256(encoder, entry.sha256)
    return encoder


def entry_beside(encoder: Path) -> registry.Entry | None:
    """The registry entry that `save_pretrained` wrote for an encoder.keras; None if it did not write that."""
    file = encoder.with_name(ENTRY_FILE)
    if encoder.name != ENCODER_FILE or not file.exists():
        return None
    content = files.read_regular(file, limit=2**20)
    try:
        return registry.Entry.from_json(content)
    except ValueError as error:
        raise ValueError(f"{display(file)} is damaged: save the encoder again ({error}).") from error


def _published(entry: registry.Entry, cache: Path | None) -> Path:
    if entry.file is not None:
        path = registry.BUNDLED / entry.file
        download.check_sha256(path, entry.sha256)
        return path
    if entry.url is None:
        raise FileNotFoundError(_NOT_PUBLISHED.format(name=entry.name, variable=WEIGHTS_VARIABLE))
    print(f"{entry.name}: weights by the authors of {entry.method}, licence {entry.licence}.")
    if entry.sha256 is None:
        warn(
            f"{entry.name}: the publisher of the weights states no hash of them, so that it cannot be told whether they are "
            "what was published.",
        )
    converted = _in_cache(cache, f"{entry.name}.weights.h5")
    if not _intact(converted):
        official = _cached(entry.url, cache, entry.sha256)
        # Several processes may do this at once: each writes its own temporary file, and the last rename wins.
        model, note = convert.converted(official, expect=entry.architecture)
        model_files.save_model(model, converted, note)
        _write_hash(converted)
    return converted


def _cached(url: str, cache: Path | None, sha256: str | None) -> Path:
    """The cached copy of an address, downloaded if it is missing or altered."""
    name = Path(urllib.parse.unquote(urllib.parse.urlsplit(url).path)).name
    if not name.strip("."):
        raise ValueError(f"The address {url!r} names no file.")
    # Two addresses may end in the same name.
    target = _in_cache(cache, f"{hashlib.sha256(url.encode()).hexdigest()[:8]}-{name}")
    if not _intact(target) or (sha256 and files.sha256(target) != sha256.lower()):
        download.fetch(url, target, sha256)
        _write_hash(target)
    return target


def _in_cache(cache: Path | None, name: str) -> Path:
    if cache is None:
        raise FileNotFoundError(
            f"There is no home folder to keep {display(name)} in: set HOME or XDG_CACHE_HOME, or give cache_dir."
        )
    return cache / name


def forget(path: Path, cache: Path | None) -> bool:
    """Removes a file from the cache that turned out to be unusable, so that it is fetched again; whether it was there."""
    if path.parent != cache:
        return False
    for file in (path, _hash_file(path)):
        file.unlink(missing_ok=True)
    return True


def _hash_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _write_hash(path: Path) -> None:
    files.write_text(_hash_file(path), files.sha256(path))


def _intact(path: Path) -> bool:
    """Whether a cached file is there and still has the hash that it had when it was written."""
    if not path.exists() or not _hash_file(path).exists():
        return False
    with files.open_regular(_hash_file(path)) as file:
        noted = file.read(100).decode("ascii", "replace").strip()
    if files.sha256(path) == noted:
        return True
    warn(f"{display(path)} was altered since it was downloaded; it is fetched again.")
    return False
