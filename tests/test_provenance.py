"""support/provenance.py: what is kept with every result."""

import json

import pytest
import torch

from support import provenance


def test_a_result_says_when_on_what_and_by_which_code_it_was_made():
    made_by = provenance.made_by(torch.device("cpu"))
    assert set(made_by) == {"date", "device", "torch", "threads", "code"}
    assert made_by["device"].startswith("cpu (")
    assert made_by["threads"] == torch.get_num_threads()

    # plain values, which JSON and torch.load(weights_only=True) read back
    assert json.loads(json.dumps(made_by)) == made_by
    assert type(made_by["torch"]) is str


@pytest.mark.parametrize("name", ["model.py", "support/files.py", "toy/glue.py", "lab/pairs.py"])
def test_the_digest_of_the_code_changes_with_a_file(tmp_path, monkeypatch, name):
    for file in ("model.py", "support/files.py", "toy/glue.py", "lab/pairs.py"):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    before = provenance.code_digest()
    assert provenance.code_digest() == before
    (tmp_path / name).write_text("x = 2\n", encoding="utf-8")
    assert provenance.code_digest() != before
