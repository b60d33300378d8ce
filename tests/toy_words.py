"""The words of the toy language as its tests read them, listed here a second time."""

import re

# animals and people: {singular: plural}
NOUNS = """
    dog dogs, cat cats, horse horses, mouse mice, cow cows, fox foxes, goat goats, wolf wolves,
    rabbit rabbits, duck ducks, goose geese, hen hens, owl owls, child children, farmer farmers,
    doctor doctors, teacher teachers, baker bakers, sailor sailors, nurse nurses, pilot pilots,
    singer singers
"""
NOUNS = dict(pair.split() for pair in NOUNS.split(","))
PEOPLE = {*["child", "farmer", "doctor", "teacher", "baker", "sailor", "nurse", "pilot", "singer"]}
WOMEN = {"anna", "maria", "emma", "ruth"}
MEN = {"tom", "david", "omar", "paul"}
NAMES = WOMEN | MEN
SINGULAR = {plural: singular for singular, plural in NOUNS.items()}


def words_of(text):
    return re.findall(r"\w+", text)


def is_noun(word):
    return word in NOUNS or word in SINGULAR or word in NAMES


def nouns_in(text):
    return [word for word in words_of(text) if is_noun(word)]


def is_plural(noun):
    assert is_noun(noun), noun
    return noun in SINGULAR


def is_human(noun):
    return noun in NAMES or SINGULAR.get(noun, noun) in PEOPLE


def pronoun_for(noun):
    """The pronoun that means a noun."""
    if noun in WOMEN:
        return "she"
    if noun in MEN:
        return "he"
    if is_plural(noun):
        return "they"
    return "it"


# {pronoun: its reflexive}
REFLEXIVES = {"it": "itself", "they": "themselves", "she": "herself", "he": "himself"}
