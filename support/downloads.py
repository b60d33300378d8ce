"""Download a published file: resume after a broken connection, check size and SHA-256.

    download(urls, path, size, sha256)

The file grows under the name `path`.part. It gets its final name only when its size and its
SHA-256 are the published ones. A file under the final name is therefore always complete.
"""

import http.client
import os
import urllib.request
from pathlib import Path

from tqdm import tqdm

from support.commands import UserError
from support.files import flush_to_disk, rename, sha256_of

USER_AGENT = "bert-convolution/1.0"  # some servers refuse the name that Python sends by default
CHUNK = 1 << 18  # bytes that are read at a time

# Attempts at one mirror. There is another attempt only if the last one brought new bytes, or if the
# file has a wrong SHA-256 and some of its bytes came from earlier attempts.
ATTEMPTS = 3


def download(urls, path, size, sha256, timeout=30):
    """Download a file, unless it is already there.

    Args:
        urls: addresses of the same file (mirrors), in the order in which they are tried.
        path: where the file is put. Its folder is made if needed.
        size: the published size in bytes.
        sha256: the published SHA-256, as a hexadecimal string.
        timeout: seconds without a single byte after which the connection is closed.

    Returns:
        The Path of the file.

    Raises:
        OSError: no mirror gave the file. The message says how to put it there by hand.
        UserError: `path` exists and is another file, or another process downloads the same file.
    """
    path = Path(path)

    # The file is already there: use it if it is the published one, and never replace it if not.
    if path.exists():
        if is_published_file(path, size, sha256):
            return path
        raise UserError(
            f"{path} is not the published file, its size or SHA-256 differs: "
            f"delete it and start again"
        )

    # Try one mirror after the other. If its server can, it continues with the part that the last
    # one left.
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures = []
    for url in urls:
        failure = download_from_mirror(url, part, size, sha256, timeout)
        if failure is None:
            flush_to_disk(part)
            rename(part, path)
            return path
        failures.append(f"{url}: {failure}")

    reasons = "; ".join(failures)
    raise UserError(
        f"cannot download {path.name} ({reasons}): "
        f"start again, or download it by hand and put it at {path}"
    )


def is_published_file(path, size, sha256):
    """True if the file has this size and this SHA-256."""
    # The size is compared first because that is fast.
    return path.stat().st_size == size and sha256_of(path) == sha256


def size_so_far(part):
    """The size in bytes of a partly downloaded file, 0 if there is none."""
    if part.exists():
        return part.stat().st_size
    return 0


def download_from_mirror(url, part, size, sha256, timeout):
    """Complete the file `part` from one mirror, in at most ATTEMPTS attempts.

    Returns:
        None if the file is complete and correct, otherwise the reason why it is not.
    """
    failure = None
    for _ in range(ATTEMPTS):
        before = size_so_far(part)

        # Ask for the missing bytes, if any.
        try:
            if before < size:
                download_rest(url, part, before, size, timeout)
        except (OSError, http.client.HTTPException) as error:
            # No network, no such file, a timeout, a full disk, ...
            failure = error
            # Try again only if this attempt received some bytes.
            if size_so_far(part) > before:
                continue
            return failure

        # The file is complete. Is it the published one?
        if sha256_of(part) == sha256:
            return None
        part.unlink()
        failure = "wrong SHA-256, the downloaded file was deleted"

        # If this mirror sent every byte, then another attempt would bring the same wrong file.
        # Otherwise the bytes from an earlier attempt may have been the wrong ones: try again.
        if before == 0:
            return failure
    return failure


def download_rest(url, part, done, size, timeout):
    """Download what is missing in the file `part`, which has `done` of its `size` bytes.

    Raises:
        OSError, http.client.HTTPException: why the download ended early.
        UserError: another process writes to the same file.
    """
    # Ask for the bytes from `done` on.
    headers = {"User-Agent": USER_AGENT}
    if done > 0:
        headers["Range"] = f"bytes={done}-"
    request = urllib.request.Request(url, headers=headers)

    with urllib.request.urlopen(request, timeout=timeout) as response:
        # Status 206 means "these are the bytes you asked for".
        # Any other status means that the server sends the file from its first byte.
        if response.status != 206:
            done = 0

        # An error page, or another version of the file, has a different size.
        if response.length is not None and done + response.length != size:
            raise OSError(f"the file there has {done + response.length:,} bytes, not {size:,}")

        write_chunks(response, part, done, size)


def write_chunks(response, part, done, size):
    """Write the bytes of `response` into the file `part`, after its first `done` bytes."""
    # Append to what is there, or start from an empty file.
    mode = "wb"
    if done > 0:
        mode = "ab"

    with (
        open(part, mode, buffering=0) as file,
        tqdm(
            total=size, initial=done, desc=part.stem, unit="B", unit_scale=True, disable=None
        ) as bar,
    ):
        while done < size:
            chunk = response.read1(min(CHUNK, size - done))
            if not chunk:
                raise OSError(f"the connection ended after {done:,} of {size:,} bytes")

            # The file must have exactly the bytes that we wrote. If it has more, then another
            # process writes to it too.
            if os.fstat(file.fileno()).st_size != done:
                raise UserError(
                    f"another process is downloading {part}: wait for its end, then start again"
                )

            done += file.write(chunk)
            bar.update(len(chunk))
