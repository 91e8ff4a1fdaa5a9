"""Token shards: documents as memory-mapped numbers, and the manifest that says what they are.

SHARDS/
    manifest.json           counts and hashes of everything below
    tokenizer.json
    train/code/00000.bin    tokens, end to end: every document, then the token that ends it
    train/code/00000.ends   where each document ends, the token that ends it included
    validation/code/...
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from statetrack._suggest import did_you_mean
from statetrack.runs.files import checksum, checksum_of, json_bytes, write_json

__all__ = ["DTYPES", "MANIFEST", "Manifest", "Part", "Shard", "verify"]

MANIFEST = "manifest.json"
VERIFIED = ".verified.json"
DTYPES = {"uint16": np.uint16, "uint32": np.uint32}
END_DTYPE = np.uint64
FORMAT = 1

Tokens = npt.NDArray[Any]


@dataclass(frozen=True)
class Shard:
    """One pair of files, named without their endings, relative to the folder."""

    name: str
    tokens: int
    documents: int
    text_bytes: int
    sha256: str
    ends_sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is in a folder of shards.

    Attributes:
        vocab_size: tokens of the tokenizer.
        end: the token that ends a document.
        splits: split -> domain -> its shards.
    """

    folder: Path
    dtype: str
    vocab_size: int
    end: int
    tokenizer_sha256: str
    splits: Mapping[str, Mapping[str, Sequence[Shard]]]

    @classmethod
    def read(cls, folder: Path | str) -> "Manifest":
        folder = Path(folder)
        path = folder / MANIFEST
        if not path.is_file():
            raise ValueError(
                f"{folder} has no {MANIFEST}: make shards with `statetrack lm tokenize`, and wait "
                "for it to finish"
            )
        try:
            found = json.loads(path.read_bytes())
            if found["format"] != FORMAT or found["dtype"] not in DTYPES:
                raise ValueError(f"format {found['format']} with {found['dtype']} is unknown")
            return cls(
                folder,
                found["dtype"],
                int(found["vocab_size"]),
                int(found["end"]),
                str(found["tokenizer_sha256"]),
                {
                    split: {name: [Shard(**one) for one in shards] for name, shards in each.items()}
                    for split, each in found["splits"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a manifest of token shards: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """What the file says, apart from what only people read."""
        return {
            "format": FORMAT,
            "dtype": self.dtype,
            "vocab_size": self.vocab_size,
            "end": self.end,
            "tokenizer_sha256": self.tokenizer_sha256,
            "splits": {
                split: {name: [vars(one) for one in shards] for name, shards in each.items()}
                for split, each in self.splits.items()
            },
        }

    @property
    def sha256(self) -> str:
        """The same for equal tokens, wherever the folder lies."""
        return checksum(json_bytes(self.to_dict()))

    def tokens(self, split: str) -> dict[str, int]:
        """How many there are, by domain."""
        return {
            name: sum(one.tokens for one in shards)
            for name, shards in self.splits.get(split, {}).items()
        }

    def domains(self, split: str) -> list[str]:
        return sorted(self.splits.get(split, {}))

    def shards(self) -> list[Shard]:
        return [one for each in self.splits.values() for shards in each.values() for one in shards]


class Part:
    """The tokens of one domain of a split, as if its shards were one array."""

    def __init__(self, manifest: Manifest, split: str, domain: str) -> None:
        domains = manifest.splits.get(split, {})
        if domain not in domains:
            near = did_you_mean(domain, domains)
            raise ValueError(
                f"{manifest.folder} has no {split} text of domain {domain!r}; {near}"
                f"there are {', '.join(domains) or 'none'}"
            )
        self.split, self.domain = split, domain
        self._folder, self._dtype = manifest.folder, DTYPES[manifest.dtype]
        self.shards = list(domains[domain])
        self._starts = np.cumsum([0] + [one.tokens for one in self.shards])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def windows(self, length: int, most: int) -> list[npt.NDArray[np.int64]]:
        """At most so many windows of the text, at equal distances; none lie over one another."""
        count = min(most, len(self) // length)
        step = (len(self) - length) // max(1, count - 1)
        return [self.read(i * step, length) for i in range(count)]

    def read(self, first: int, count: int) -> npt.NDArray[np.int64]:
        """Tokens `first` to `first + count - 1`, which may lie in several shards."""
        assert 0 <= first and first + count <= len(self), "a window beyond the text"
        found = np.empty(count, dtype=np.int64)
        done = 0
        index = int(np.searchsorted(self._starts, first, side="right")) - 1
        while done < count:
            here = first + done - int(self._starts[index])
            tokens = self._tokens(index)
            take = min(count - done, len(tokens) - here)
            found[done : done + take] = tokens[here : here + take]
            done, index = done + take, index + 1
        return found

    def where(self, first: int, count: int) -> str:
        """In which shard, at which token and in which documents a window lies, in words."""
        index = int(np.searchsorted(self._starts, first, side="right")) - 1
        one, here = self.shards[index], first - int(self._starts[index])
        ends = self._ends(index)
        low = int(np.searchsorted(ends, here, side="right"))
        high = min(int(np.searchsorted(ends, here + count - 1, side="right")), len(ends) - 1)
        documents = f"document {low}" if low == high else f"documents {low} to {high}"
        return f"{one.name}.bin at token {here} ({documents})"

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - as long as the part itself
    def _tokens(self, index: int) -> Tokens:
        return np.memmap(self._path(index, ".bin"), dtype=self._dtype, mode="r")

    @functools.lru_cache(maxsize=4096)  # noqa: B019
    def _ends(self, index: int) -> Tokens:
        return np.memmap(self._path(index, ".ends"), dtype=END_DTYPE, mode="r")

    def _path(self, index: int, ending: str) -> Path:
        return self._folder / f"{self.shards[index].name}{ending}"


def verify(manifest: Manifest) -> None:
    """Refuses shards that are missing or have changed since the manifest was written.

    Sizes are compared always. Hashes are compared once, and again only for a file whose time or
    size is another one since; which were found right is kept in the folder if it can be.
    """
    known_at = manifest.folder / VERIFIED
    try:
        known = json.loads(known_at.read_bytes())
        assert isinstance(known, dict)
    except (OSError, ValueError, AssertionError):
        known = {}
    right = dict(known)
    width = np.dtype(DTYPES[manifest.dtype]).itemsize
    wanted: dict[str, tuple[int | None, str]] = {
        "tokenizer.json": (None, manifest.tokenizer_sha256)
    }
    for one in manifest.shards():
        wanted[f"{one.name}.bin"] = (one.tokens * width, one.sha256)
        wanted[f"{one.name}.ends"] = (one.documents * 8, one.ends_sha256)
    for name, (size, sha256) in wanted.items():
        path = manifest.folder / name
        if not path.is_file():
            raise ValueError(f"{path} is missing, which {MANIFEST} lists: tokenize the text again")
        found = path.stat()
        seen = [found.st_size, found.st_mtime_ns, sha256]
        if known.get(name) == seen:
            continue
        if (size is not None and found.st_size != size) or checksum_of(path) != sha256:
            raise ValueError(
                f"{path} has changed since {MANIFEST} was written: tokenize the text again"
            )
        right[name] = seen
    if right != known:
        try:
            write_json(known_at, right)
        except OSError:  # a folder that nobody may write to is looked at again next time
            pass
