"""toy/language.py: the same bytes everywhere, and the example of its docstring works."""

import hashlib
import re
from random import Random

from toy import language

SHA256_OF_2000 = "9ff0d833c69caef548c5d9267a34adc0b744c15b535d71f1d21fa0e8538a9e57"


def test_the_text_has_the_published_hash():
    sentences = []
    for document in language.documents(0, 2000):
        sentences += document
    assert hashlib.sha256("\n".join(sentences).encode()).hexdigest() == SHA256_OF_2000


def test_the_scene_that_the_module_s_docstring_shows_works():
    lines = language.__doc__.split("def playing_scene")[1].split("\n\n")[0]
    program = "def playing_scene" + lines.replace("\n" + " " * 18, "\n")
    names = dict(vars(language))
    exec(program, names)

    story = language.Story(Random(0).random)
    first, second = names["playing_scene"](story)
    assert re.fullmatch(r".* (play|plays|played) \.", first)
    assert re.fullmatch(r".* (is|are|was|were) not ill \.", second)
