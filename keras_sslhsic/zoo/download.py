"""Fetching a file so that a broken one never gets its final name."""

import http.client
import os
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from keras_sslhsic import files
from keras_sslhsic.files import display
from keras_sslhsic.zoo.model_files import LARGEST

CHUNK = 1 << 20
TIMEOUT = 60  # seconds without a byte
DEADLINE = 12 * 3600  # seconds in all
LOCAL = ("localhost", "127.0.0.1", "::1")


def fetch(url: str, target: str | os.PathLike, sha256: str | None = None, size: int | None = None) -> Path:
    """Downloads a file over https, verifies it and only then gives it its name, `target`, which it returns.

    Two processes may fetch the same file at once: each writes its own temporary file, and the last rename wins.

    The address is https (http for this machine's own); hash and size in bytes are None if they are not known.

    Raises:
        ValueError: if the address, or one that it leads to, is not https; if the file is cut short, too long or of
            another hash; or if it could be cut without a sign: neither its server nor the arguments tell its length or
            hash. `target` is not touched.
        OSError: if it cannot be fetched or written.
    """
    _check_address(url)
    target = Path(target)
    with files.written_whole(target) as temporary, _open(url) as response:
        declared = response.headers.get("Content-Length", "")
        # Has an end of its own.
        chunked = response.headers.get("Transfer-Encoding", "").lower() == "chunked"
        total = int(declared) if re.fullmatch("[0-9]{1,18}", declared) and not chunked else None
        if total is None and size is None and sha256 is None and not chunked:
            raise ValueError(
                f"{display(url)} does not say how long it is, so that it may be cut: append #sha256=... to the address."
            )
        most = LARGEST if size is None else size
        if total is not None and total > most:
            raise ValueError(f"{display(url)} has {total:,} bytes, more than the {most:,} expected.")
        received, name = 0, display(target.name)
        with (
            tqdm(total=total, unit="B", unit_scale=True, desc=name, file=sys.stderr) as bar,
            temporary.open("wb") as file,
        ):
            for chunk in _chunks(response, url):
                received += len(chunk)
                if received > most:
                    raise ValueError(f"{display(url)} has more than the {most:,} bytes expected.")
                file.write(chunk)
                bar.update(len(chunk))
        for expected in (total, size):
            if expected is not None and received != expected:
                raise ValueError(
                    f"{display(url)} is cut short or altered: {received} bytes, expected {expected}."
                )
        check_sha256(temporary, sha256, url)
    return target


def check_sha256(path: str | os.PathLike, expected: str | None, what: object = None) -> None:
    """Raises ValueError if a file's hash is not the expected one; None expects nothing."""
    if expected is not None and (found := files.sha256(path)) != expected.lower():
        raise ValueError(
            f"{display(what or path)} has SHA-256 {found}, expected {display(expected)}: altered or damaged. Restore it."
        )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to addresses that could have been given, without a change of scheme."""

    def redirect_request(self, request: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check_address(newurl)
        if urllib.parse.urlsplit(newurl).scheme != urllib.parse.urlsplit(request.full_url).scheme:
            raise ValueError(
                f"{display(request.full_url)} leads to {display(newurl)}: weights are only downloaded over https."
            )
        return super().redirect_request(request, fp, code, msg, headers, newurl)


def _open(url: str) -> Any:
    try:
        return urllib.request.build_opener(_Redirects).open(url, timeout=TIMEOUT)
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"Could not download {display(url)}: {display(error)}") from error


def _chunks(response: Any, url: str) -> Iterator[bytes]:
    """What arrives, as it arrives: a server that sends a byte now and then is not waited for for ever."""
    end = time.monotonic() + DEADLINE
    while True:
        try:
            chunk = response.read1(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise OSError(f"Could not download {display(url)}: {display(error)}") from error
        if not chunk:
            return
        yield chunk
        if time.monotonic() > end:
            raise OSError(f"Could not download {display(url)}: it takes more than {DEADLINE:,} seconds.")


def _check_address(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL):
        raise ValueError(f"Weights are only downloaded over https, found {url!r}.")
