"""Servers of every kind of bad will, on this machine."""

import hashlib
import http.server
import os
import threading
import time
import warnings

import pytest

from keras_sslhsic.encoders import build_encoder
from keras_sslhsic.zoo import download, registry
from keras_sslhsic.zoo.load import load_pretrained
from keras_sslhsic.zoo.registry import Entry

BODY = b"x" * 1000
HASH = hashlib.sha256(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the path says."""

    protocol_version = "HTTP/1.1"
    body = BODY

    def do_GET(self):
        self.close_connection = True
        kind, _, argument = self.path.strip("/").partition("/")
        getattr(self, kind)(argument)

    def redirect(self, address):
        self.send_response(302)
        self.send_header("Location", address)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def loop(self, _):
        self.redirect("/loop/a.bin")

    def plain(self, _):
        self.sized(len(self.body))

    def sized(self, length):
        self.send_response(200)
        self.send_header("Content-Length", str(length).split("/")[0])
        self.end_headers()
        self.wfile.write(self.body)

    def unsized(self, _):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def chunked(self, end):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3e8\r\n" + self.body + {"whole": b"\r\n0\r\n\r\n", "cut": b"\r\n", "in": b""}[end])

    def endless(self, _):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"3e8\r\n" + self.body + b"\r\n")
        except OSError:  # whom it was for has gone
            pass

    def drip(self, _):
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        try:
            for _ in range(200):
                self.wfile.write(b"x")
                time.sleep(0.05)
        except OSError:
            pass

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    handler = type("Fresh", (Handler,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        running.daemon_threads = True
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        handler.url = f"http://127.0.0.1:{running.server_port}"
        yield handler
        running.shutdown()
        thread.join()


def fetch(server, path, target, **known):
    return download.fetch(f"{server.url}/{path}", target, **known)


def nothing_stays(folder):
    return not any(path.is_file() for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "address",
    [
        "http://example.org/a",
        "https://127.0.0.1/a",
        "ftp://127.0.0.1/a",
        "file:///etc/hostname",
        "//example.org/a",
    ],
)
def test_every_hop_is_checked(server, tmp_path, address):
    with pytest.raises((ValueError, OSError), match=r"https|[Rr]edirection to url") as raised:
        fetch(server, f"redirect/{address}", tmp_path / "a")
    assert str(raised.value).isprintable() and nothing_stays(tmp_path)
    with pytest.raises((ValueError, OSError), match=r"https|[Rr]edirection to url"):
        fetch(server, f"redirect/{server.url}/redirect/{address}", tmp_path / "a")
    assert nothing_stays(tmp_path)


def test_good_hops_are_followed_and_loops_end(server, tmp_path):
    assert fetch(server, f"redirect/{server.url}/plain/", tmp_path / "a").read_bytes() == BODY
    with pytest.raises(OSError, match=r"Could not download .* infinite loop"):
        fetch(server, "loop/a.bin", tmp_path / "b")


@pytest.mark.parametrize(
    ("path", "known", "message"),
    [
        ("sized/1000/a", {"size": 999}, r"has 1,000 bytes, more than the 999 expected"),
        (
            "sized/99999999999999/a",
            {},
            r"has 99,999,999,999,999 bytes, more than the 17,179,869,184 expected",
        ),
        ("chunked/whole", {"size": 999}, "has more than the 999 bytes expected"),
        ("endless/a", {"size": 100_000}, "has more than the 100,000 bytes expected"),
        ("sized/1001/a", {}, "cut short or altered: 1000 bytes, expected 1001"),
        ("unsized/a", {}, "does not say how long it is, so that it may be cut: append #sha256="),
        ("sized/many/a", {}, "does not say how long it is"),
        ("unsized/a", {"size": 1001}, "cut short or altered: 1000 bytes, expected 1001"),
        ("unsized/a", {"sha256": "0" * 64}, "SHA-256"),
        ("chunked/cut", {}, "Could not download .*IncompleteRead"),
        ("chunked/in", {}, "Could not download .*IncompleteRead"),
    ],
)
def test_what_is_too_long_or_cut_is_refused(server, tmp_path, path, known, message):
    with pytest.raises((ValueError, OSError), match=message):
        fetch(server, path, tmp_path / "a", **known)
    assert nothing_stays(tmp_path)


@pytest.mark.parametrize(
    ("path", "known"),
    [("plain/a", {}), ("chunked/whole", {}), ("unsized/a", {"sha256": HASH}), ("unsized/a", {"size": 1000})],
)
def test_what_is_whole_is_taken(server, tmp_path, path, known):
    assert fetch(server, path, tmp_path / "a", **known).read_bytes() == BODY


def test_the_progress_bar_shows_names_escaped(server, tmp_path, capsys):
    fetch(server, "plain/x", tmp_path / "a\x1b.bin")
    error = capsys.readouterr().err
    assert r"a\x1b.bin: " in error and "\x1b" not in error


def test_a_server_that_drips_is_left(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "DEADLINE", 0.2)
    with pytest.raises(OSError, match=r"takes more than 0\.2 seconds"):
        fetch(server, "drip/a", tmp_path / "a")
    assert nothing_stays(tmp_path)


def test_no_space_names_the_file_and_not_the_address(server, tmp_path, monkeypatch):
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        with pytest.raises(OSError, match=rf"^{tmp_path / 'a'} cannot be written: File too large\.$"):
            fetch(server, "plain/a", tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert nothing_stays(tmp_path)


@pytest.fixture
def small(monkeypatch, server, tmp_path):
    """A zoo with one small network, whose weights are what the server has."""
    encoder = build_encoder("r18_1x", width=0.0625)
    encoder.save_weights(tmp_path / "a.weights.h5")
    server.body = (tmp_path / "a.weights.h5").read_bytes()
    entry = Entry("small", "r18_1x", 32, 699_000, width=0.0625, input_size=32)
    monkeypatch.setattr(registry, "entries", lambda: {"small": entry})
    return f"{server.url}/plain/small.weights.h5"


def test_a_hash_that_is_no_text_is_repaired(small, server, tmp_path):
    address = f"{small}#sha256={hashlib.sha256(server.body).hexdigest()}"
    load_pretrained("small", address, tmp_path / "c")
    noted = next((tmp_path / "c").glob("*.sha256"))
    good = noted.read_bytes()
    for bad in (b"\xff\xfe\x00", os.urandom(5000), b""):
        noted.write_bytes(bad)
        with pytest.warns(UserWarning, match="was altered since it was downloaded; it is fetched again"):
            load_pretrained("small", address, tmp_path / "c")
        assert noted.read_bytes() == good


def test_what_has_no_hash_is_said_to_have_none(small, server, tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="is taken as it is, since no hash of it is given: append #sha256="):
        load_pretrained("small", small, tmp_path / "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_pretrained("small", f"{small}#sha256={hashlib.sha256(server.body).hexdigest()}", tmp_path / "c")
    published = Entry("small", "r18_1x", 32, 1, width=0.0625, url=f"{server.url}/plain/a.pkl", method="BYOL")
    monkeypatch.setattr(registry, "entries", lambda: {"small": published})
    with (
        pytest.warns(UserWarning, match="small: the publisher of the weights states no hash"),
        pytest.raises(ValueError),
    ):
        load_pretrained("small", cache_dir=tmp_path / "c")
