"""What kind of thing a token is, from the text that it writes."""

import keyword

from statetrack.lm.text import Text

__all__ = ["CLASSES", "class_of", "token_classes"]

C_KEYWORDS = frozenset(
    "auto bool break case char const continue default do double else enum extern float for goto if "
    "inline int long register return short signed sizeof static struct switch typedef union "
    "unsigned void volatile while".split()
)
KEYWORDS = C_KEYWORDS | frozenset(keyword.kwlist)
OPENING, CLOSING, QUOTES = "([{", ")]}", "\"'`"

CLASSES = (
    "end of document",
    "newline or indent",
    "quote",
    "opening bracket",
    "closing bracket",
    "digits",
    "keyword",
    "word",
    "punctuation",
    "other",
)
"""All there are; a keyword is one of C or Python, which prose uses as words."""


def class_of(text: bytes | None) -> str:
    """The class of a token that writes `text`; None is a special token.

    The last bracket of a token decides, so that `()` closes.

    >>> class_of(b" (("), class_of(b"():"), class_of(b"\\n    "), class_of(b" return")
    ('opening bracket', 'closing bracket', 'newline or indent', 'keyword')
    """
    if text is None:
        return "end of document"
    if not text.strip(b" \t\r\n"):
        return "newline or indent" if text != b" " else "other"
    try:
        said = text.decode().strip(" \t")
    except UnicodeDecodeError:  # a part of a character
        return "other"
    if "\n" in said:
        return "newline or indent"
    if any(quote in said for quote in QUOTES) and not any(letter.isalnum() for letter in said):
        return "quote"
    brackets = [letter for letter in said if letter in OPENING + CLOSING]
    if brackets:
        return "opening bracket" if brackets[-1] in OPENING else "closing bracket"
    if said.isdigit():
        return "digits"
    if said in KEYWORDS:
        return "keyword"
    if said.isascii() and (said[0].isalpha() or said[0] == "_"):
        return "word"
    return "punctuation" if said.isascii() and not said[0].isalnum() else "other"


def token_classes(text: Text) -> list[str]:
    """The class of every token of a tokenizer."""
    return [class_of(one) for one in text.vocabulary()]
