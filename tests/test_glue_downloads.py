"""support/glue_downloads.py: files from our own server arrive where the readers look for them."""

import functools
import hashlib
import http.server
import io
import re
import stat
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from glue_helpers import error_of, ignore_log, write_lines
from support import glue_downloads
from support.commands import UserError
from support.glue_downloads import SOURCES, download_tasks, unpack
from support.glue_format import FORMATS, read_task


def file_name(source):
    """The last part of a source's address."""
    return source.url.rpartition("/")[2]


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves server.files by name; the first words of server.ways say how the next answers fail."""

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        self.server.asked.append(name)
        way = "good"
        if self.server.ways:
            way = self.server.ways.pop(0)
        if way == "absent" or name not in self.server.files:
            self.send_error(404)
            return

        # the content from the position that was asked for
        start = int(re.search(r"\d+", self.headers.get("Range", "0"))[0])
        body = self.server.files[name][start:]
        if way == "corrupts":
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()

        # some answers end in the middle
        if way in ("truncates", "stalls"):
            body = body[: len(body) // 2]
        self.wfile.write(body)
        if way == "stalls":
            self.server.released.wait(20)
        self.close_connection = True

    def log_message(self, *_):
        pass


LINK = object()  # in place of a file's content: a link to /etc/passwd


def zip_of(*members):
    """The bytes of a zip of (name, content) pairs."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            if content is LINK:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                content = b"/etc/passwd"
            archive.writestr(info, content)
    return file.getvalue()


def rte_tables(folder="RTE"):
    """The (name, content) pairs of a task's archive."""
    members = []
    for split in ("train", "dev", "test"):
        members.append((f"{folder}/{split}.tsv", f"{folder} {split}\n".encode()))
    return members


def published_content(source):
    """What our server has for a source: an archive of its tables and more, or a line of text."""
    if not source.is_archive:
        return f"the content of {file_name(source)}\n".encode()
    task = FORMATS[source.task]
    members = [(f"{task.folder}/original/more.txt", b"not wanted")]
    for split in task.rows:
        if split != "diagnostic":
            members.append((f"{task.folder}/{split}.tsv", split.encode()))
    return zip_of(*members)


@pytest.fixture
def server(monkeypatch, serve):
    """Serves every published file, with contents of our own; a download waits 0.3 s at most.

    server.publish() takes sizes and checksums again, after a test has changed server.files.
    """
    server = serve(Handler)
    server.ways = []
    server.files = {file_name(source): published_content(source) for source in SOURCES}
    address = f"http://127.0.0.1:{server.server_port}/"

    def publish():
        sources = []
        for source in SOURCES:
            name = file_name(source)
            content = server.files[name]
            sha256 = hashlib.sha256(content).hexdigest()
            sources.append(replace(source, url=address + name, size=len(content), sha256=sha256))
        monkeypatch.setattr(glue_downloads, "SOURCES", tuple(sources))

    server.publish = publish
    publish()
    short_wait = functools.partial(glue_downloads.download, timeout=0.3)
    monkeypatch.setattr(glue_downloads, "download", short_wait)
    return server


def files_in(folder):
    """The paths of all files below a folder, relative to it and sorted."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_every_published_file_has_its_size_and_checksum():
    assert {(source.task, file_name(source), source.size) for source in SOURCES} == {
        ("cola", "CoLA.zip", 376971),
        ("sst-2", "SST-2.zip", 7439277),
        ("qqp", "QQP-clean.zip", 41696084),
        ("sts-b", "STS-B.zip", 802872),
        ("mnli", "MNLI.zip", 312783507),
        ("qnli", "QNLIv2.zip", 10627589),
        ("rte", "RTE.zip", 697150),
        ("wnli", "WNLI.zip", 28999),
        ("mnli", "AX.tsv", 222257),
        ("mrpc", "mrpc_dev_ids.tsv", 6222),
        ("mrpc", "msr_paraphrase_train.txt", 1047044),
        ("mrpc", "msr_paraphrase_test.txt", 441275),
    }
    assert all(re.fullmatch("[0-9a-f]{64}", source.sha256) for source in SOURCES)
    assert len({source.sha256 for source in SOURCES}) == 12


def test_all_files_come_to_where_the_readers_look_for_them(server, tmp_path):
    lines = []
    download_tasks(list(FORMATS), tmp_path, lines.append)

    expected = [
        "diagnostic/diagnostic.tsv",
        "MRPC/msr_paraphrase_train.txt",
        "MRPC/msr_paraphrase_test.txt",
        "MRPC/dev_ids.tsv",
    ]
    for name, task in FORMATS.items():
        if name != "mrpc":
            expected += [
                f"{task.folder}/{split}.tsv" for split in task.rows if split != "diagnostic"
            ]
    expected += [f"downloads/{name}" for name in server.files if ".zip" in name]
    assert files_in(tmp_path) == sorted(expected)

    assert (tmp_path / "MNLI" / "dev_matched.tsv").read_bytes() == b"dev_matched"
    diagnostic = tmp_path / "diagnostic" / "diagnostic.tsv"
    assert diagnostic.read_bytes() == b"the content of AX.tsv\n"
    dev_ids = tmp_path / "MRPC" / "dev_ids.tsv"
    assert dev_ids.read_bytes() == b"the content of mrpc_dev_ids.tsv\n"
    assert len(server.asked) == 12
    assert len(lines) == 13


def test_what_is_there_is_not_asked_for_again(server, tmp_path):
    download_tasks(["rte", "mrpc"], tmp_path, ignore_log)
    server.asked.clear()
    (tmp_path / "MRPC" / "dev_ids.tsv").unlink()
    download_tasks(["rte", "mrpc"], tmp_path, ignore_log)
    assert server.asked == ["mrpc_dev_ids.tsv"]


def test_with_all_files_there_one_line_says_so(server, tmp_path):
    download_tasks(["rte"], tmp_path, ignore_log)
    lines = []
    download_tasks(["rte"], tmp_path, lines.append)
    assert lines == ["nothing to download: all files are there"]


def test_ready_made_tables_of_mrpc_need_no_download(server, tmp_path):
    for split in FORMATS["mrpc"].rows:
        write_lines(tmp_path / "MRPC" / f"{split}.tsv", "")
    download_tasks(["mrpc"], tmp_path, ignore_log)
    assert server.asked == []


def test_a_broken_download_continues_and_a_stalled_one_too(server, tmp_path):
    server.ways = ["truncates", "stalls"]
    download_tasks(["rte"], tmp_path, ignore_log)
    assert server.asked == ["RTE.zip"] * 3
    assert (tmp_path / "RTE" / "dev.tsv").read_bytes() == b"dev"


@pytest.mark.parametrize("way, reason", [("corrupts", "wrong SHA-256"), ("absent", "404")])
def test_a_failed_download_leaves_no_folder_and_lists_all_that_is_missing(
    server, tmp_path, way, reason
):
    server.ways = ["good", way]
    names = ["cola", "rte", "wnli", "mnli"]
    message = error_of(download_tasks, names, tmp_path, ignore_log, kind=UserError)
    cola = ["CoLA/dev.tsv", "CoLA/test.tsv", "CoLA/train.tsv"]
    assert files_in(tmp_path) == sorted(["downloads/CoLA.zip", *cola])

    assert reason in message
    assert "by hand" in message
    for name in ("MNLI.zip", "AX.tsv", "RTE.zip", "WNLI.zip"):
        assert f"/{name}" in message
    for place in ("MNLI.zip", "RTE.zip", "WNLI.zip"):
        assert str(tmp_path / "downloads" / place) in message
    assert str(tmp_path / "diagnostic" / "diagnostic.tsv") in message


def test_a_file_put_by_hand_is_unpacked_when_right_and_named_when_wrong(server, tmp_path):
    path = tmp_path / "downloads" / "RTE.zip"
    path.parent.mkdir()
    path.write_bytes(b"something else")
    message = error_of(download_tasks, ["rte"], tmp_path, ignore_log)
    assert f"{path} is not the published file" in message

    path.write_bytes(server.files["RTE.zip"])
    download_tasks(["rte"], tmp_path, ignore_log)
    assert server.asked == []
    assert (tmp_path / "RTE" / "test.tsv").exists()


def test_a_folder_without_all_of_its_files_is_not_touched(server, tmp_path):
    own = write_lines(tmp_path / "RTE" / "train.tsv", "mine")
    message = error_of(download_tasks, ["rte"], tmp_path, ignore_log)
    assert str(own.parent) in message
    assert "without dev.tsv, test.tsv" in message
    assert files_in(tmp_path) == ["RTE/train.tsv"]
    assert own.read_text() == "mine\n"
    assert server.asked == []


def test_nothing_but_the_tables_is_unpacked_wherever_an_archive_points(server, tmp_path):
    server.files["RTE.zip"] = zip_of(
        *rte_tables(),
        ("../escaped", b"x"),
        (f"{tmp_path.as_posix()}/absolute", b"x"),
        ("RTE/../../escaped", b"x"),
        ("RTE/link", LINK),
        ("RTE/link/escaped", b"x"),
    )
    server.publish()
    download_tasks(["rte"], tmp_path / "data", ignore_log)
    tables = [f"data/{name}" for name, _ in rte_tables()]
    assert files_in(tmp_path) == sorted(["data/downloads/RTE.zip", *tables])


def test_a_link_in_place_of_a_table_is_not_followed(server, tmp_path):
    server.files["RTE.zip"] = zip_of(*rte_tables()[1:], ("RTE/train.tsv", LINK))
    server.publish()
    download_tasks(["rte"], tmp_path, ignore_log)
    path = tmp_path / "RTE" / "train.tsv"
    assert not path.is_symlink()
    assert path.read_bytes() == b"/etc/passwd"
    error_of(read_task, FORMATS["rte"], tmp_path, "train")


@pytest.mark.parametrize("damage", ["absent", "not a zip", "bad content"])
def test_an_archive_that_cannot_be_unpacked_leaves_nothing_behind(tmp_path, damage):
    damaged = {
        "absent": zip_of(*rte_tables()[:2]),
        "not a zip": b"<html>",
        "bad content": zip_of(*rte_tables()).replace(b"RTE dev\n", b"RTE eve\n"),
    }
    path = tmp_path / "RTE.zip"
    path.write_bytes(damaged[damage])
    names = ["train.tsv", "dev.tsv", "test.tsv"]
    assert str(path) in error_of(unpack, path, Path(tmp_path, "RTE"), names)
    assert files_in(tmp_path) == ["RTE.zip"]
    assert len(list(tmp_path.iterdir())) == 1
