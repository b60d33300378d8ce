"""The built-in toy language (language.py), its GLUE tasks (glue.py), its minimal pairs (pairs.py).

`python -m toy` prints documents of the language, or writes the GLUE tasks.
"""
