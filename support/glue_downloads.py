"""Downloads of GLUE's published files: addresses, sizes and checksums, and where the files go.

download_tasks(["rte", "mnli"], "glue_data")
"""

import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from support.commands import UserError
from support.downloads import download
from support.files import flush_to_disk, rename
from support.glue_format import FORMATS

GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
MSR = "https://dl.fbaipublicfiles.com/senteval/senteval_data/"


@dataclass(frozen=True)
class Source:
    """One published file.

    Attributes:
        task: the name of the task that needs it, a key of FORMATS.
        url: its address.
        path: where it is stored, relative to the folder of GLUE's files. Archives (.zip) are kept
            there and unpacked into the task's folder.
        size: in bytes.
        sha256: 64 hexadecimal digits.
    """

    task: str
    url: str
    path: str
    size: int
    sha256: str

    @property
    def is_archive(self):
        return self.path.endswith(".zip")


# fmt: off
SOURCES = (
    Source("cola", GLUE + "CoLA.zip", "downloads/CoLA.zip", 376_971,
           "f212fcd832b8f7b435fb991f101abf89f96b933ab400603bf198960dfc32cbff"),
    Source("sst-2", GLUE + "SST-2.zip", "downloads/SST-2.zip", 7_439_277,
           "d67e16fb55739c1b32cdce9877596db1c127dc322d93c082281f64057c16deaa"),
    Source("mrpc", MSR + "msr_paraphrase_train.txt", "MRPC/msr_paraphrase_train.txt", 1_047_044,
           "60a9b09084528f0673eedee2b69cb941920f0b8cd0eeccefc464a98768457f89"),
    Source("mrpc", MSR + "msr_paraphrase_test.txt", "MRPC/msr_paraphrase_test.txt", 441_275,
           "a04e271090879aaba6423d65b94950c089298587d9c084bf9cd7439bd785f784"),
    Source("mrpc", GLUE + "mrpc_dev_ids.tsv", "MRPC/dev_ids.tsv", 6_222,
           "971d7767d81b997fd9060ade0ec23c4fc31cbb226a55d1bd4a1bac474eb81dc7"),
    Source("sts-b", GLUE + "STS-B.zip", "downloads/STS-B.zip", 802_872,
           "e60a6393de5a8b5b9bac5020a1554b54e3691f9d600b775bd131e613ac179c85"),
    Source("qqp", GLUE + "QQP-clean.zip", "downloads/QQP-clean.zip", 41_696_084,
           "40e7c862c04eb26ee04b67fd900e76c45c6ba8e6d8fab4f8f1f8072a1a3fbae0"),
    Source("mnli", GLUE + "MNLI.zip", "downloads/MNLI.zip", 312_783_507,
           "e7c1d896d26ed6caf700110645df426cc2d8ebf02a5ab743d5a5c68ac1c83633"),
    Source("mnli", GLUE + "AX.tsv", "diagnostic/diagnostic.tsv", 222_257,
           "0e13510b1bb14436ff7e2ee82338f0efb0133ecf2e73507a697dc210db3f05fd"),
    Source("qnli", GLUE + "QNLIv2.zip", "downloads/QNLIv2.zip", 10_627_589,
           "e634e78627a29adaecd4f955359b22bf5e70f2cbd93b493f2d624138a0c0e5f5"),
    Source("rte", GLUE + "RTE.zip", "downloads/RTE.zip", 697_150,
           "6bf86de103ecd335f3441bd43574d23fef87ecc695977a63b82d5efb206556ee"),
    Source("wnli", GLUE + "WNLI.zip", "downloads/WNLI.zip", 28_999,
           "ae0e8e4d16f4d46d4a0a566ec7ecceccfd3fbfaa4a7a4b4e02848c0f2561ac46"),
)
# fmt: on


def download_tasks(names, data_dir, log=print):
    """Download the published files of some tasks; size and SHA-256 of each are checked.

    Files that are already there are not downloaded again.

    Args:
        names: keys of FORMATS.
        data_dir: the folder of GLUE's files.
        log: gets one line per file.

    Raises:
        OSError: a download failed; the message names every file that is still missing, its address
            and the path where to put it.
        UserError: a file that is already there is wrong.
    """
    # which files are missing?
    missing = missing_sources(names, data_dir)
    if not missing:
        log("nothing to download: all files are there")
        return
    log(f"files to download: {len(missing)}")

    for index, source in enumerate(missing):
        # download it, or say which files have to be fetched by hand
        path = Path(data_dir, source.path)
        try:
            download([source.url], path, source.size, source.sha256)
        except UserError as error:
            message = str(error)
            rest = missing[index + 1 :]
            if rest:
                places = [f"{other.url} to {Path(data_dir, other.path)}" for other in rest]
                message += "; also missing: " + ", ".join(places)
            raise UserError(message) from None

        # unpack an archive into the task's folder
        if source.is_archive:
            folder = Path(data_dir, FORMATS[source.task].folder)
            unpack(path, folder, table_names(source.task))
        log(f"{source.url}: {source.size:,} bytes, SHA-256 agrees")


def table_names(task):
    """Names of the files in a task's folder: one per split, without the diagnostic sentences."""
    return [f"{split}.tsv" for split in FORMATS[task].rows if split != "diagnostic"]


def missing_sources(names, data_dir):
    """The sources of the tasks `names` that have to be downloaded, in the order of SOURCES.

    Raises UserError if a task's folder is there but lacks some of its files.
    """
    missing = []
    for source in SOURCES:
        if source.task not in names:
            continue
        folder = Path(data_dir, FORMATS[source.task].folder)
        absent = [name for name in table_names(source.task) if not (folder / name).exists()]

        if source.is_archive:
            # an archive makes its task's folder, so the folder must not be there yet
            if absent and folder.exists():
                raise UserError(
                    f"{folder} exists, but without {', '.join(absent)}: delete it or move it away"
                )
            is_missing = bool(absent)
        elif source.task == "mrpc" and not absent:
            # with all tables of MRPC, its texts are not needed
            is_missing = False
        else:
            is_missing = not Path(data_dir, source.path).exists()

        if is_missing:
            missing.append(source)
    return missing


def unpack(archive, folder, names):
    """Unpack some files of a zip archive.

    Only the named files are written, each under its own name in `folder`. So no path and no link
    in the archive can lead to another place. After an error there is no folder.

    Args:
        archive: the zip file. It contains a folder of the same name as `folder`.
        folder: the folder to make.
        names: names of the files to take from it.

    Raises:
        UserError: the archive is damaged or does not contain one of the files.
    """
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=folder.name, ignore_cleanup_errors=True
    ) as temporary:
        new = Path(temporary, folder.name)
        new.mkdir()
        try:
            with zipfile.ZipFile(archive) as files:
                for name in names:
                    content = files.read(f"{folder.name}/{name}")
                    (new / name).write_bytes(content)
                    flush_to_disk(new / name)  # its content, before the folder gets its name
        except (KeyError, zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise UserError(f"cannot unpack {archive}: {error}") from None

        # the folder gets its name when it is complete
        rename(new, folder)
