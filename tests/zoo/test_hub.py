"""Encoders on a hub: a server on this machine that answers what the client of the hub asks."""

import hashlib
import http.server
import sys
import threading

import numpy as np
import pytest
import yaml

from keras_sslhsic.zoo import hub
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.save import format_card, save_pretrained

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Handler(http.server.BaseHTTPRequestHandler):
    """The files of the server's folder as /tester/mine, at main and at COMMIT."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(body=False)

    def do_GET(self):
        self._answer(body=True)

    def _answer(self, body):
        *repository, _, revision, name = self.path.strip("/").split("/")
        file = self.server.folder / name
        there = repository == ["tester", "mine"] and revision in ("main", COMMIT)
        content = file.read_bytes() if there and file.exists() else b""
        self.send_response(200 if content else 404)
        if not content:
            self.send_header("X-Error-Code", "EntryNotFound" if there else "RepoNotFound")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)
        self.server.asked.append((self.command, revision, name))

    def log_message(self, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    folder = tmp_path / "uploaded"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.folder, server.asked = folder, []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()


def test_an_encoder_on_a_hub_is_the_one_that_was_saved(server, encoder, real_images, tmp_path):
    entry = save_pretrained(encoder, server.folder, name="mine", licence="MIT", metrics={"kNN": 50.0})
    cache = tmp_path / "cache"
    loaded = load_pretrained("hf://tester/mine", cache_dir=cache)
    assert loaded.entry == entry
    np.testing.assert_array_equal(loaded(real_images[1]), encoder(real_images[1]))
    assert ("GET", COMMIT, "encoder.keras") in server.asked, "of the commit that the entry is of"
    # A commit that is in the cache is not asked for again.
    server.asked.clear()
    load_pretrained(f"hf://tester/mine@{COMMIT}", cache_dir=cache)
    assert server.asked == []


def test_what_is_altered_is_refused(server, encoder, tmp_path):
    save_pretrained(encoder, server.folder)
    (server.folder / "encoder.keras").write_bytes(b"something else")
    with pytest.raises(ValueError, match="altered or damaged"):
        load_pretrained("hf://tester/mine", cache_dir=tmp_path / "cache")


def test_what_is_not_there_is_named(server, encoder, tmp_path):
    for name, reason in (
        ("other", r"hf://tester/other gives no pretrained.json"),
        ("mine", "hf://tester/mine gives no pretrained"),
    ):
        with pytest.raises(FileNotFoundError, match=reason):
            load_pretrained(f"hf://tester/{name}", cache_dir=tmp_path)
    save_pretrained(encoder, server.folder)
    (server.folder / "encoder.keras").unlink()
    with pytest.raises(FileNotFoundError, match=r"hf://tester/mine gives no encoder.keras"):
        load_pretrained("hf://tester/mine", cache_dir=tmp_path)


@pytest.mark.parametrize("address", ["hf://mine", "hf://a/b/c", "hf://a/b@", "hf:///b", "hf://a/b?c"])
def test_an_address_has_an_owner_and_a_name(address):
    with pytest.raises(ValueError, match="Expected hf://OWNER/NAME"):
        load_pretrained(address)


def test_without_the_client_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"pip install 'keras_sslhsic\[hub\]'"):
        hub.fetch("hf://a/b")


@pytest.mark.parametrize(
    "licence, told",
    [
        ("MIT", "mit"),
        ("Apache-2.0", "apache-2.0"),
        ("CC BY-NC 4.0 (not for commercial use)", "cc-by-nc-4.0"),
        ("ask me", "other"),
        ("", None),
    ],
)
def test_a_card_begins_with_what_a_hub_reads(encoder, tmp_path, licence, told):
    save_pretrained(encoder, tmp_path, name="mine", licence=licence)
    empty, front, body = (tmp_path / "README.md").read_text().split("---\n", 2)
    fields = yaml.safe_load(front)
    assert empty == "" and body.startswith("\n# mine\n")
    assert fields["library_name"] == "keras_sslhsic" and fields.get("license") == told
    # A card of version 0.1.0 had no front matter, and is not one that was edited.
    (tmp_path / "README.md").write_text(body[1:])
    entry = save_pretrained(encoder, tmp_path, name="mine", licence=licence)
    assert (tmp_path / "README.md").read_text() == format_card(entry)
    (tmp_path / "README.md").write_text(format_card(entry) + "My words.")
    with pytest.raises(FileExistsError, match="was edited"):
        save_pretrained(encoder, tmp_path, name="mine", licence=licence)
