"""support/downloads.py against a server of our own, which fails in many ways."""

import hashlib
import http.server
import random
import re
import socket

import pytest

from support import downloads
from support.commands import UserError
from support.downloads import download

CONTENT = random.Random(0).randbytes(700_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PIECE = 200_000  # bytes that are sent before a server breaks off or stalls


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers in the way that the first word of the address says.

        good              the file, from the byte asked for
        whole             the file from its start, whatever was asked for
        truncates         the first answer breaks off after PIECE bytes
        truncates-whole   both of the last two
        corrupts          the last byte is wrong
        page              another, shorter file
        absent            404, there is no such file
        stalls            PIECE bytes, then nothing
        silent            not a single byte

    The server's list `asked` gets each request: (way, the first byte asked for).
    """

    def do_GET(self):
        way = self.path.strip("/").split("/")[0]
        start = self.first_byte_asked_for()
        is_first_request = way not in [name for name, _ in self.server.asked]
        self.server.asked.append((way, start))
        assert not self.headers["User-Agent"].startswith("Python")

        if way == "absent":
            self.send_error(404)
            return

        body = self.body(way, start)
        knows_ranges = way not in ("whole", "truncates-whole", "page")
        self.send_headers(start, len(body), is_partial=knows_ranges and start > 0)

        breaks_off = way in ("truncates", "truncates-whole") and is_first_request
        if way == "silent":
            self.server.released.wait(20)
        elif way == "stalls":
            self.wfile.write(body[:PIECE])
            self.server.released.wait(20)
        elif breaks_off:
            self.wfile.write(body[:PIECE])
        else:
            self.wfile.write(body)
        self.close_connection = True

    def first_byte_asked_for(self):
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))
        return int(match[1])

    def body(self, way, start):
        """What this way of answering sends."""
        if way == "page":
            return b"<html>please log in</html>"
        if way in ("whole", "truncates-whole"):
            return CONTENT
        if way == "corrupts":
            wrong_byte = bytes([CONTENT[-1] ^ 1])
            return CONTENT[start:-1] + wrong_byte
        return CONTENT[start:]

    def send_headers(self, start, length, is_partial):
        """Send the status and the headers of an answer."""
        if is_partial:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def server(serve):
    """A running server; `urls(ways)` are its addresses for some ways of answering."""
    server = serve(Handler)

    def urls(ways):
        return [f"http://127.0.0.1:{server.server_port}/{way}/file.bin" for way in ways]

    server.urls = urls
    return server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "downloads" / "file.bin"


def requests_of_download(server, path, *ways, timeout=10):
    """Download from these mirrors with success. Returns what the server was asked."""
    result = download(server.urls(ways), path, len(CONTENT), SHA256, timeout)
    assert result == path
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path]  # no part is left
    return server.asked


def message_of_failure(server, path, *ways, timeout=10):
    """Download from these mirrors without success. Returns the error message."""
    with pytest.raises(UserError) as caught:
        download(server.urls(ways), path, len(CONTENT), SHA256, timeout)
    assert not path.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_part(path, content):
    """Write the file that an earlier download would have left."""
    path.parent.mkdir()
    part = path.with_name("file.bin.part")
    part.write_bytes(content)
    return part


# --- Success --------------------------------------------------------------------------------------


def test_a_file_is_downloaded_once_and_its_folder_made(server, path):
    assert requests_of_download(server, path, "good") == [("good", 0)]
    assert requests_of_download(server, path, "good") == [("good", 0)]


def test_a_file_is_on_the_disk_before_it_gets_its_name(server, path, monkeypatch):
    events = []
    flush_to_disk = downloads.flush_to_disk
    rename = downloads.rename

    def note_and_flush(part):
        events.append("disk")
        flush_to_disk(part)

    def note_and_rename(*paths):
        events.append("name")
        rename(*paths)

    monkeypatch.setattr(downloads, "flush_to_disk", note_and_flush)
    monkeypatch.setattr(downloads, "rename", note_and_rename)
    requests_of_download(server, path, "good")
    assert events == ["disk", "name"]


def test_a_connection_that_breaks_is_resumed_where_it_broke(server, path):
    requests = requests_of_download(server, path, "truncates")
    assert requests == [("truncates", 0), ("truncates", PIECE)]


def test_a_part_left_by_an_earlier_run_is_completed(server, path):
    write_part(path, CONTENT[:1234])
    assert requests_of_download(server, path, "good") == [("good", 1234)]


def test_a_complete_part_is_checked_and_not_downloaded_again(server, path):
    write_part(path, CONTENT)
    assert requests_of_download(server, path, "good") == []


def test_a_server_that_ignores_ranges_sends_the_file_from_its_start(server, path):
    write_part(path, b"x" * 1234)
    assert requests_of_download(server, path, "whole") == [("whole", 1234)]


def test_a_broken_connection_to_a_server_that_ignores_ranges_is_repaired(server, path):
    requests = requests_of_download(server, path, "truncates-whole")
    assert requests == [("truncates-whole", 0), ("truncates-whole", PIECE)]


@pytest.mark.parametrize("content", [b"x" * 1234, CONTENT[:-1] + b"x", CONTENT + b"more"])
def test_a_part_of_another_file_is_deleted_and_the_file_downloaded_again(server, path, content):
    write_part(path, content)
    requests = requests_of_download(server, path, "good")
    assert requests[-1] == ("good", 0)


@pytest.mark.parametrize("way", ["absent", "corrupts", "page"])
def test_the_next_mirror_is_asked_when_one_fails(server, path, way):
    assert requests_of_download(server, path, way, "good") == [(way, 0), ("good", 0)]


def test_the_next_mirror_continues_where_a_stalled_one_stopped(server, path):
    assert requests_of_download(server, path, "stalls", "good", timeout=1) == [
        ("stalls", 0),
        ("stalls", PIECE),
        ("stalls", 2 * PIECE),
        ("good", 3 * PIECE),
    ]


def test_a_mirror_that_sends_nothing_is_given_up_after_one_timeout(server, path):
    requests = requests_of_download(server, path, "silent", "good", timeout=1)
    assert requests == [("silent", 0), ("good", 0)]


# --- Failure --------------------------------------------------------------------------------------


def test_a_wrong_checksum_deletes_the_file_and_says_so(server, path):
    message = message_of_failure(server, path, "corrupts")
    assert "wrong SHA-256" in message
    assert "deleted" in message
    assert list(path.parent.iterdir()) == []


def test_a_page_in_place_of_the_file_is_not_appended_to_its_part(server, path):
    part = write_part(path, CONTENT[:1234])
    message = message_of_failure(server, path, "page")
    assert "has 26 bytes, not 700,001" in message
    assert part.read_bytes() == CONTENT[:1234]


def test_when_all_mirrors_fail_the_message_has_file_addresses_reasons_and_what_to_do(server, path):
    message = message_of_failure(server, path, "absent", "page")
    assert message.startswith("cannot download file.bin")
    assert "404" in message
    assert "by hand" in message
    assert str(path) in message
    for url in server.urls(["absent", "page"]):
        assert url in message


def test_without_a_network_the_message_is_the_same_and_nothing_is_left(path):
    with socket.socket() as closed:
        # The port is taken, but nobody listens.
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file.bin"
        with pytest.raises(UserError, match="cannot download file.bin") as caught:
            download([url], path, len(CONTENT), SHA256, timeout=2)
    assert url in str(caught.value)
    assert str(path) in str(caught.value)
    assert list(path.parent.iterdir()) == []


def test_a_correct_file_that_was_put_there_by_hand_is_used(server, path):
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert requests_of_download(server, path, "good") == []


def test_a_wrong_file_that_was_put_there_by_hand_is_never_replaced(server, path):
    path.parent.mkdir()
    wrong = CONTENT[:-1] + b"x"
    path.write_bytes(wrong)
    with pytest.raises(ValueError, match="not the published file"):
        download(server.urls(["good"]), path, len(CONTENT), SHA256)
    assert path.read_bytes() == wrong
    assert server.asked == []


def test_a_second_process_that_writes_the_same_part_is_noticed(server, path, monkeypatch):
    def open_and_intrude(part, mode, **settings):
        file = open(part, mode, **settings)  # noqa: SIM115 (the caller closes it)
        if part.suffix == ".part" and mode in ("ab", "wb"):
            with open(part, "ab") as other:
                other.write(b"x")
        return file

    monkeypatch.setattr(downloads, "open", open_and_intrude, raising=False)
    with pytest.raises(ValueError, match="another process is downloading"):
        download(server.urls(["good"]), path, len(CONTENT), SHA256)
    assert not path.exists()
