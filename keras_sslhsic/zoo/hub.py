"""Encoders on the Hugging Face Hub, or on a server that answers as it does: ``hf://OWNER/NAME``, ``hf://OWNER/NAME@REVISION``."""

import os
import re
from pathlib import Path

from keras_sslhsic.files import display
from keras_sslhsic.zoo.sources import ENCODER_FILE, ENTRY_FILE

_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


def is_address(name: str | os.PathLike) -> bool:
    """Whether a name is that of an encoder on a hub."""
    return os.fspath(name).startswith("hf://")


def fetch(address: str, cache_dir: str | os.PathLike | None = None) -> Path:
    """Fetches an encoder that `save_pretrained` wrote, both files of one commit, if they are not in the cache.

    Args:
        address: ``hf://OWNER/NAME``, and ``@`` with a branch, a tag or a commit, by default main.
        cache_dir: where downloads are kept; by default the hub's own cache. `huggingface_hub` reads the variables HF_TOKEN,
            HF_HOME and HF_HUB_OFFLINE; HF_ENDPOINT is another server's address.

    Returns:
        The folder that holds them.

    Raises:
        ImportError: if huggingface_hub is not installed.
        ValueError: if it is no such address.
        FileNotFoundError: if there are no such files on the hub or in the cache, or it cannot be reached; the reason is named.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(
            f"Expected hf://OWNER/NAME, perhaps with @REVISION behind it, found {display(address)}."
        )
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise ImportError(
            "Encoders on a hub are fetched by huggingface_hub: pip install 'keras_sslhsic[hub]'."
        ) from error
    repository, revision = found.groups()
    endpoint = os.environ.get("HF_ENDPOINT")
    cache = None if cache_dir is None else os.fspath(cache_dir)
    try:
        for file in (ENTRY_FILE, ENCODER_FILE):
            path = Path(
                hf_hub_download(repository, file, revision=revision, cache_dir=cache, endpoint=endpoint)
            )
            revision = path.parent.name  # the commit
    except (OSError, ValueError, RuntimeError, errors.EntryNotFoundError) as error:
        # A RuntimeError is of a user without a home folder.
        reason = str(error).strip().split("\n")[0]
        raise FileNotFoundError(
            f"{display(address)} gives no {file} of save_pretrained: {display(reason)}"
        ) from error
    return path.parent
