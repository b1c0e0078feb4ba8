"""Fetching a file so that a broken one never gets its final name."""

import http.client
import os
import sys
import urllib.parse
import urllib.request
from pathlib import Path

from tqdm import tqdm

from keras_sslhsic import files

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte
LOCAL = ("localhost", "127.0.0.1", "::1")


def fetch(url: str, target: str | os.PathLike, sha256: str | None = None, size: int | None = None) -> Path:
    """Downloads a file over https, verifies it and only then gives it its name.

    Two processes may fetch the same file at once: each writes its own temporary file, and the last rename
    wins.

    Args:
        url: an https address (http for this machine's own).
        target: where the file goes; its folder is made.
        sha256: its hash, or None if it is not known.
        size: its length in bytes, or None if it is not known.

    Returns:
        `target`.

    Raises:
        ValueError: if the address is not https, or the file is cut short or has another hash or length.
            `target` is not touched.
        OSError: if it cannot be fetched.
    """
    _check_address(url)
    target = Path(target)
    with files.written_whole(target) as temporary:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as response:
                _check_address(response.geturl())
                declared = response.headers.get("Content-Length")
                total = int(declared) if declared else None
                received = _copy(response, temporary, total, target.name)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"Could not download {url}: {error}") from error
        for expected in (total, size):
            if expected is not None and received != expected:
                raise ValueError(f"{url} is cut short or altered: {received} bytes, expected {expected}.")
        check_sha256(temporary, sha256, url)
    return target


def check_sha256(path: str | os.PathLike, expected: str | None, what: object = None) -> None:
    """Raises ValueError if a file's hash is not the expected one; None expects nothing."""
    if expected is None:
        return
    found = files.sha256(path)
    if found != expected.lower():
        raise ValueError(
            f"{what or path} has SHA-256 {found}, expected {expected}: it was altered or damaged."
        )


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL):
        raise ValueError(f"Weights are only downloaded over https, found {url!r}.")


def _copy(response, path: Path, total: int | None, name: str) -> int:
    bar = tqdm(total=total, unit="B", unit_scale=True, desc=name, file=sys.stderr)
    received = 0
    with bar, path.open("wb") as file:
        while chunk := response.read(CHUNK):
            file.write(chunk)
            received += len(chunk)
            bar.update(len(chunk))
    return received
