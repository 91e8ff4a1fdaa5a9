"""Text to tokens and back, with the tokenizer that lies beside a model."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from statetrack._extras import needs
from statetrack.automata import Machine, over_tokens
from statetrack.models import CausalLM, Constraint
from statetrack.runs.warn import warn

__all__ = [
    "END",
    "TOKENIZER",
    "Text",
    "constraint",
    "files_in",
    "load_text",
    "read_documents",
    "row_of",
]

TOKENIZER = "tokenizer.json"
END = "<|endoftext|>"
LEAST = 257
"""Tokens of a tokenizer over bytes that also ends texts."""
BROKEN = "\ufffd"
"""What stands for bytes that are no whole character yet."""
ENDS = (END, "</s>", "<|end_of_text|>", "<eos>")
BEGINS = ("<s>", "<|begin_of_text|>", "<bos>")
"""What tokenizers of the field call the tokens after and before a text."""


class Text:
    """A tokenizer of the `tokenizers` library, as language models need it.

    >>> text = Text.of_bytes()
    >>> text.encode("naïve")
    [110, 97, 195, 175, 118, 101]
    >>> text.decode([110, 97, 195, 175])
    'naï'
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def read(cls, path: str | Path) -> "Text":
        """The tokenizer in a file that `tokenizers` wrote."""
        try:
            return cls(_tokenizers().Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{path} is not a tokenizer: {error}") from None

    @classmethod
    def of_bytes(cls) -> "Text":
        """The 256 bytes as tokens, which need no training: token b is byte b."""
        library = _tokenizers()
        alphabet = _characters_of_bytes()
        tokens = {character: byte for byte, character in enumerate(alphabet)}
        tokenizer = library.Tokenizer(library.models.BPE(vocab=tokens, merges=[]))
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        tokenizer.decoder = library.decoders.ByteLevel()
        return cls(tokenizer)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Text":
        """A byte-level BPE tokenizer of `texts`. Token 0 is <|endoftext|>."""
        if vocab_size < LEAST:
            raise ValueError(
                f"vocab_size={vocab_size} must be at least {LEAST}: the 256 bytes, and {END}"
            )
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @property
    def end(self) -> int | None:
        """The token that ends a text, if there is one."""
        return self._first_of(ENDS)

    @property
    def begin(self) -> int | None:
        """The token that stands before a text: one for that, or else the one that ends a text."""
        return self._first_of((*BEGINS, *ENDS))

    def _first_of(self, names: Sequence[str]) -> int | None:
        ids = (self.tokenizer.token_to_id(name) for name in names)
        return next((token for token in ids if token is not None), None)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The tokens of a text, with those that the tokenizer puts round it if `special`."""
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=special).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        found: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return found

    def vocabulary(self) -> list[bytes | None]:
        """The bytes that each token writes; None for special tokens, such as the end of a text.

        For tokenizers over bytes (GPT-2's way) and those with ▁ for a space (SentencePiece's way).

        >>> Text.of_bytes().vocabulary()[97]
        b'a'
        """
        described = json.loads(self.tokenizer.to_str())
        special = {token["id"] for token in described["added_tokens"] if token["special"]}
        plain = {token["id"]: token["content"] for token in described["added_tokens"]}
        kinds = _kinds(described["decoder"])
        found: list[bytes | None] = [None] * len(self)
        for text, token in self.tokenizer.get_vocab().items():
            if token in special or token >= len(found):
                continue
            if token in plain:
                found[token] = plain[token].encode()
            elif "ByteLevel" in kinds:
                found[token] = bytes(_BYTES[character] for character in text)
            elif "ByteFallback" in kinds and re.fullmatch(r"<0x[0-9A-F]{2}>", text):
                found[token] = bytes.fromhex(text[3:5])
            elif kinds & {"Metaspace", "Replace"}:
                found[token] = text.replace("▁", " ").encode()
            else:
                raise ValueError(
                    "this tokenizer does not say which bytes its tokens write (its decoder is "
                    f"{', '.join(sorted(kinds)) or 'missing'}); known are ByteLevel, and ▁ for a "
                    "space. Give the bytes of every token to automata.over_tokens yourself"
                )
        return found

    def stream(self, tokens: Iterable[int]) -> Iterator[str]:
        """What each token adds to the text; nothing while a character is not whole.

        >>> list(Text.of_bytes().stream([110, 195, 175]))
        ['n', '', 'ï']
        """
        held: list[int] = []
        said = ""
        for token in tokens:
            held.append(token)
            text = self.decode(held)
            if text.endswith(BROKEN):
                yield ""
                continue
            yield text[len(said) :]
            said = text
            if text.endswith("\n"):  # a place where decoding may begin anew
                held, said = [], ""

    def save(self, path: str | Path) -> None:
        self.tokenizer.save(str(path))

    def expect_fit(self, model: CausalLM, name: str = "the tokenizer") -> None:
        """The model knows every token that the tokenizer writes."""
        size = model.config.vocab_size
        largest = max(self.tokenizer.get_vocab().values(), default=0)
        if largest >= size:
            raise ValueError(
                f"{name} has tokens up to {largest} and the model knows 0 to {size - 1}: they do "
                "not belong together"
            )


def constraint(machine: Machine, text: Text, *, end: str = END) -> Constraint:
    """Keeps `CausalLM.generate` to the texts that a machine over characters or bytes accepts.

    `end` is the token that ends a text.

    >>> from statetrack.automata import read
    >>> text = Text.train(["0.5 and 12.25"], vocab_size=300)
    >>> constraint(read(r"[0-9]+\\.[0-9]+"), text).shortest
    4
    """
    number = text.tokenizer.token_to_id(end)
    if number is None:
        raise ValueError(
            f"the tokenizer has no token {end!r} to end a text with; name the one it has with end="
        )
    tokens = over_tokens(machine, text.vocabulary())
    if tokens.machine.outputs.dtype != bool:
        raise ValueError("a constraint needs a machine with accepting states")
    return Constraint(tokens.machine.delta, tokens.letter, tokens.machine.outputs, end=int(number))


def load_text(folder: str | Path, model: CausalLM | None = None) -> Text:
    """The tokenizer of the model in `folder`, which it must fit."""
    path = Path(folder) / TOKENIZER
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {TOKENIZER}: put the tokenizer there that the model was trained with"
        )
    text = Text.read(path)
    if model is not None:
        text.expect_fit(model, str(path))
    return text


def read_documents(path: Path) -> Iterator[str]:
    """The texts in a file or folder.

    A .jsonl file has one in the field "text" of every line. Any other file is one text, and a
    folder holds files, in the order of their names.
    """
    if path.is_dir():
        for inside in files_in(path):
            yield from read_documents(inside)
        return
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give a text file, a .jsonl file or a folder")
    if path.suffix != ".jsonl":
        try:
            yield path.read_bytes().decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not text in UTF-8") from None
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            yield str(row_of(line, f"{path}, line {number}")["text"])


def files_in(folder: Path) -> list[Path]:
    """The files in a folder and below, by name, but nothing whose name begins with a dot."""
    found = []
    for path in sorted(folder.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if path.is_file():
            found.append(path)
        elif path.is_dir() and path.is_symlink():
            warn(f"{path} is a link to a folder, which is not followed: give it by itself")
    return found


def row_of(line: bytes, place: str) -> dict[str, Any]:
    """The JSON object in a line of a .jsonl file, which has a "text"."""
    try:
        row = json.loads(line)
        row["text"].encode()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f'{place}: no JSON object with a "text"') from None
    return dict(row)


def _tokenizers() -> Any:
    with needs("text", "tokenizers", "lm"):
        import tokenizers
    return tokenizers


def _characters_of_bytes() -> list[str]:
    """The character that stands for each byte in a byte-level tokenizer.

    Printable bytes of Latin-1 stand for themselves, the others for characters from 256 on.
    """
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in shown]
    table = {byte: chr(byte) for byte in shown}
    table |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [table[byte] for byte in range(256)]


_BYTES = {character: byte for byte, character in enumerate(_characters_of_bytes())}


def _kinds(decoder: Any) -> set[str]:
    """The names of a decoder and of those inside it."""
    if not isinstance(decoder, dict):
        return set()
    inside = [_kinds(part) for part in decoder.get("decoders", [])]
    return {str(decoder.get("type"))}.union(*inside)
