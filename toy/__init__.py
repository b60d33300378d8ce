"""The built-in toy language (language.py), its GLUE tasks and its minimal pairs (glue.py).

`python -m toy` prints documents of the language, or writes the GLUE tasks.
"""
