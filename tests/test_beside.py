"""The test files that run in a second process, beside the others (conftest.py)."""


def test_the_files_that_run_beside_the_others_pass(beside):
    code, text = beside
    assert code == 0, text
