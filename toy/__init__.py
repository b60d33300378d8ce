"""The toy language (language.py), its GLUE tasks (glue.py) and its minimal pairs (pairs.py)."""
