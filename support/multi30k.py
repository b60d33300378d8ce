"""Multi30k: descriptions of pictures in English and German. Elliott et al. 2016

Task 1, tokenized and lower-cased, from github.com/multi30k/dataset.
"""

from support.corpus import read_lines
from support.files import download

URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/tok/"
)
FILES = {  # of each split, the SHA-256 of the English and of the German file
    "train": (
        "08925f8e0572bcd5a006702fc5fe20e2d77c6917d4eebd576fc20de6693c2119",
        "cb5a23529b65ec2061f1dc446192a9c37382b63cc75f81a0be59d34894b3a505",
    ),
    "val": (
        "46573ce391ae227f1c72f873392436a20ef18e0a6d518098cfbd70b77c8572ec",
        "97232bd273eceb7207f689527386a97e4be2616b18ada47576bdaf96c8ae1f00",
    ),
    "test_2016_flickr": (
        "5b7f32627cf99eced828311b955dae9800bb52bc8b91cf8b6526829e605b29d2",
        "c6a33d39d48f9f510de147651316cd9d918e09ad0219df734a2f16b6baccacc4",
    ),
}


def read_split(split, cache_dir):
    """The pairs of "train", "val" or "test_2016_flickr"."""
    columns = []
    for language, digest in zip(("en", "de"), FILES[split], strict=True):
        name = f"{split}.lc.norm.tok.{language}"
        path = download(URL + name, cache_dir / "downloads" / "multi30k" / name, digest)
        columns.append(list(read_lines(path)))
    return list(zip(*columns, strict=True))
