"""data.download against our own server on this machine: it truncates, corrupts, stalls, answers 404, ignores ranges."""

import hashlib
import http.server
import random
import re
import socket

import pytest

import data

CONTENT = random.Random(0).randbytes(700_001)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PIECE = 200_000  # what comes before a server truncates or stalls


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by the first word of the path; what was asked, and from which byte, stands in the server's `asked`."""

    def do_GET(self):
        way = self.path.strip("/").split("/")[0]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))
        start = int(asked[1])
        self.server.asked.append((way, start))
        assert not self.headers["User-Agent"].startswith("Python")
        if way == "absent":
            return self.send_error(404)
        first = [name for name, _ in self.server.asked].count(way) == 1
        ranges = way not in ("whole", "truncates-whole")
        body = CONTENT[start:] if ranges else CONTENT
        if way == "corrupts":
            body = body[:-1] + bytes([body[-1] ^ 1])
        if way == "page":
            body = b"<html>please log in</html>"
        partial = ranges and start > 0 and way != "page"
        self.send_response(206 if partial else 200)
        if partial:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if way in ("truncates", "truncates-whole") and first or way == "stalls":
            self.wfile.write(body[:PIECE])
            if way == "stalls":
                self.server.released.wait(20)
        elif way == "silent":
            self.server.released.wait(20)
        else:
            self.wfile.write(body)
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server(serve):
    server = serve(Handler)
    server.url = lambda *ways: tuple(f"http://127.0.0.1:{server.server_port}/{way}/file.bin" for way in ways)
    return server


@pytest.fixture
def path(tmp_path):
    return tmp_path / "downloads" / "file.bin"


def fetched(server, path, *ways, timeout=10):
    """Download by these mirrors: the result is whole, and no part is left. Returns what the server was asked."""
    assert data.download(server.url(*ways), path, len(CONTENT), SHA256, timeout) == path
    assert path.read_bytes() == CONTENT and list(path.parent.iterdir()) == [path]
    return server.asked


def refused(server, path, *ways, timeout=10):
    """Download in vain: nothing under the final name, one line. Returns the line."""
    with pytest.raises(OSError) as caught:
        data.download(server.url(*ways), path, len(CONTENT), SHA256, timeout)
    assert not path.exists() and "\n" not in str(caught.value)
    return str(caught.value)


def part_of(path, content):
    path.parent.mkdir()
    part = path.with_name("file.bin.part")
    part.write_bytes(content)
    return part


def test_a_file_is_brought_once_and_its_folder_made(server, path):
    assert fetched(server, path, "good") == [("good", 0)]
    assert fetched(server, path, "good") == [("good", 0)]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(server, path):
    assert fetched(server, path, "truncates") == [("truncates", 0), ("truncates", PIECE)]


def test_a_part_left_by_an_earlier_run_is_completed(server, path):
    part_of(path, CONTENT[:1234])
    assert fetched(server, path, "good") == [("good", 1234)]


def test_a_complete_part_is_checked_and_not_asked_for_again(server, path):
    part_of(path, CONTENT)
    assert fetched(server, path, "good") == []


def test_a_server_that_ignores_ranges_sends_the_file_from_its_start(server, path):
    part_of(path, b"x" * 1234)
    assert fetched(server, path, "whole") == [("whole", 1234)]
    path.unlink()
    server.asked.clear()
    assert fetched(server, path, "truncates-whole") == [("truncates-whole", 0), ("truncates-whole", PIECE)]


@pytest.mark.parametrize("content", [b"x" * 1234, CONTENT[:-1] + b"x", CONTENT + b"more"])
def test_a_part_of_another_file_is_thrown_away_and_the_file_fetched_anew(server, path, content):
    part_of(path, content)
    assert fetched(server, path, "good")[-1] == ("good", 0)


@pytest.mark.parametrize("way", ["absent", "corrupts", "page"])
def test_the_next_mirror_is_asked_when_one_fails(server, path, way):
    assert fetched(server, path, way, "good") == [(way, 0), ("good", 0)]


def test_the_next_mirror_goes_on_where_a_stalled_one_stopped(server, path):
    assert fetched(server, path, "stalls", "good", timeout=0.3) == [
        *(("stalls", start) for start in (0, PIECE, 2 * PIECE)), ("good", 3 * PIECE)]


def test_a_mirror_that_says_nothing_is_left_after_one_timeout(server, path):
    assert fetched(server, path, "silent", "good", timeout=0.3) == [("silent", 0), ("good", 0)]


def test_a_wrong_checksum_deletes_what_came_and_says_so(server, path):
    message = refused(server, path, "corrupts")
    assert "wrong SHA-256" in message and "deleted" in message and list(path.parent.iterdir()) == []


def test_a_page_in_place_of_the_file_is_not_taken_for_a_part_of_it(server, path):
    part = part_of(path, CONTENT[:1234])
    assert "has 26 bytes, not 700,001" in refused(server, path, "page")
    assert part.read_bytes() == CONTENT[:1234]


def test_when_all_mirrors_fail_the_line_names_file_addresses_reasons_and_where_to_put_it(server, path):
    message = refused(server, path, "absent", "page")
    assert message.startswith("cannot download file.bin") and "404" in message and "by hand" in message
    assert all(text in message for text in (*server.url("absent", "page"), str(path)))


def test_without_a_network_the_line_is_the_same_and_nothing_is_left(path):
    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/file.bin"
        with pytest.raises(OSError, match="cannot download file.bin") as caught:
            data.download([url], path, len(CONTENT), SHA256, timeout=2)
    assert url in str(caught.value) and str(path) in str(caught.value) and list(path.parent.iterdir()) == []


def test_a_file_put_there_by_hand_is_taken_when_right_and_never_replaced_when_wrong(server, path):
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert fetched(server, path, "good") == []
    path.write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(ValueError, match="not the published file"):
        data.download(server.url("good"), path, len(CONTENT), SHA256)
    assert path.read_bytes() == CONTENT[:-1] + b"x" and server.asked == []


def test_a_second_process_writing_the_same_part_is_noticed(server, path, monkeypatch):
    def intruding(part, mode, **settings):
        file = open(part, mode, **settings)
        if "b" in mode and part.suffix == ".part" and mode != "rb":
            with open(part, "ab") as other:
                other.write(b"x")
        return file

    monkeypatch.setattr(data, "open", intruding, raising=False)
    with pytest.raises(ValueError, match="another process is downloading"):
        data.download(server.url("good"), path, len(CONTENT), SHA256)
    assert not path.exists()
