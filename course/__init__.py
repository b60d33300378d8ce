"""The assignment: `python -m course` makes the blanks and grades what students write into them."""
