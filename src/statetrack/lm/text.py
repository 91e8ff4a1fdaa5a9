"""Text to tokens and back, with the tokenizer that lies beside a model."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from statetrack._extras import needs
from statetrack.models import CausalLM

__all__ = ["TOKENIZER", "Text", "load_text", "read_documents"]

TOKENIZER = "tokenizer.json"
BROKEN = "\ufffd"
"""What stands for bytes that are no whole character yet."""


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
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text).ids
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        found: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
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
        if len(self) > size:
            raise ValueError(
                f"{name} has {len(self)} tokens and the model knows {size}: they do not belong "
                "together"
            )


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
        for inside in sorted(path.rglob("*")):
            if inside.is_file() and not inside.name.startswith("."):
                yield from read_documents(inside)
        return
    if not path.is_file():
        raise ValueError(f"{path} does not exist: give a text file, a .jsonl file or a folder")
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not text in UTF-8") from None
    if path.suffix != ".jsonl":
        yield content
        return
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            yield str(json.loads(line)["text"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f'{path}, line {number}: no JSON object with a "text"') from None


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
