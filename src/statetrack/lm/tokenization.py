"""Text to token shards: in parallel, in jobs that are done once, however often it is interrupted.

A job is some files, or a range of lines of a large .jsonl file. It writes a shard for each split
and then says so in `.jobs/`. When all jobs are done the manifest is written.
"""

import dataclasses
import fnmatch
import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from statetrack._extras import needs
from statetrack.lm.sampler import permuted
from statetrack.lm.shards import DTYPES, END_DTYPE, MANIFEST, Manifest, Shard
from statetrack.lm.text import END, TOKENIZER, Text, files_in, row_of
from statetrack.runs.files import (
    checksum,
    checksum_of,
    exclusive,
    json_bytes,
    write_atomically,
    write_json,
)
from statetrack.runs.warn import warn

__all__ = ["Source", "sources_of", "tokenize"]

JOB_BYTES = 2**25
"""Text of one job, and so of one shard."""
SAMPLE_BYTES = 10**8
"""Text that a tokenizer is trained on at most."""
SAMPLE_STEP = 2**18
"""Text of a .jsonl file that is taken for it at a time."""
JOBS = ".jobs"
TRAINED = f"{JOBS}/trained.json"
SPLITS = ("train", "validation")

Progress = Callable[[int, int, int], None]
"""Is told the bytes done, the bytes in all, and the tokens so far."""


@dataclass(frozen=True)
class Source:
    """A file of text, the domain it belongs to, and its name there."""

    domain: str
    name: str
    path: Path


@dataclass(frozen=True)
class Piece:
    """A file, or the lines of a .jsonl file that begin at the bytes `start` to `end` - 1."""

    source: Source
    start: int
    end: int


@dataclass(frozen=True)
class Settings:
    """What every job needs to know."""

    out: Path
    end: int
    dtype: str
    tokenizer_sha256: str
    hold_out: tuple[str, ...]
    hold_out_share: float

    @property
    def key(self) -> dict[str, Any]:
        """What the tokens of a job depend on, besides the text."""
        return {k: v for k, v in dataclasses.asdict(self).items() if k != "out"}


@dataclass(frozen=True)
class Job:
    domain: str
    number: int
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)

    def key(self, settings: Settings) -> str:
        """The same as long as neither the files nor the settings have changed."""
        files = [
            [p.source.name, p.start, p.end, (s := p.source.path.stat()).st_size, s.st_mtime_ns]
            for p in self.pieces
        ]
        return checksum(json_bytes([self.domain, files, settings.key]))


def sources_of(paths: Sequence[str | Path], *, by_folder: bool = False) -> list[Source]:
    """The files behind what users give: a file or a folder, which may have a name in front.

    `code=src/` is the domain `code`; without a name the domain is called as the file or folder.
    With `by_folder` every sub-folder of a folder is a domain of its own.
    """
    found: list[Source] = []
    for given in map(str, paths):
        name, equals, rest = given.partition("=")
        path = Path(rest if equals and not Path(given).exists() else given)
        if not path.exists():
            raise ValueError(f"{path} does not exist: give a text file, a .jsonl file or a folder")
        is_named = path != Path(given)
        domain = name if is_named else path.resolve().stem
        if not by_folder:
            found += _files(domain, path)
            continue
        if is_named or not path.is_dir():
            what = "has a name already" if is_named else "is no folder"
            raise ValueError(
                f"{given} {what}: leave out --by-folder, or give folders by themselves"
            )
        inside = [one for one in sorted(path.iterdir()) if not one.name.startswith(".")]
        folders = [one for one in inside if one.is_dir()]
        if not folders:
            raise ValueError(f"{path} has no sub-folders to be domains: leave out --by-folder")
        for folder in folders:
            found += _files(folder.name, folder)
        if beside := [one for one in inside if one.is_file()]:
            warn(f"{beside[0]} lies in no sub-folder of {path}, and so in no domain: left out")
    if not found:
        raise ValueError(f"there is no text in {', '.join(map(str, paths))}")
    seen: set[tuple[str, str]] = set()
    for source in found:
        file = source.domain, os.path.abspath(source.path)
        if file in seen:
            raise ValueError(f"{source.path} is given twice for the domain {source.domain!r}")
        seen.add(file)
    for domain in {source.domain for source in found}:
        if not domain or domain.startswith(".") or "/" in domain:
            raise ValueError(f"{domain!r} is no name for a domain: write name=PATH")
    return found


def _files(domain: str, path: Path) -> list[Source]:
    if path.is_file():
        return [Source(domain, path.name, path)]
    return [Source(domain, str(inside.relative_to(path)), inside) for inside in files_in(path)]


def tokenize(
    sources: Sequence[Source],
    out: Path | str,
    *,
    tokenizer: Text | None = None,
    vocab_size: int = 32_000,
    end: str = END,
    hold_out: Sequence[str] = (),
    hold_out_share: float = 0.0,
    workers: int | None = None,
    launcher: Literal["processes", "ray"] = "processes",
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Writes the shards of `sources` to `out`; what an interrupted call has done is not done again.

    Text that has changed since is read again. Finished shards of domains that are not among
    `sources` are refused, since they would be lost.

    Args:
        tokenizer: one is trained on a sample of the text unless it is given: byte-level BPE with
            `vocab_size` tokens.
        end: the token that ends every document.
        hold_out: patterns of `domain/name` or `domain/project`; what matches is for validation.
        hold_out_share: the share of projects that is for validation. The project of a text is the
            first folder of its name, or the "project" of its line; else every text is one.
        workers: processes, one for each core by default; 0 is this one.
    """
    if not 0 <= hold_out_share < 1:
        raise ValueError(f"hold_out_share={hold_out_share} must be at least 0 and below 1")
    in_lines = any(source.path.suffix == ".jsonl" for source in sources)
    for pattern in () if in_lines else hold_out:
        if not any(fnmatch.fnmatch(f"{s.domain}/{s.name}", pattern) for s in sources):
            raise ValueError(f"nothing to hold out matches {pattern!r}, as domain/folder/*")
    if workers is not None and workers < 0:
        raise ValueError(f"workers={workers} must be at least 0 (0: in this process)")
    out = Path(out)
    _expect_outside(out, sources)
    (out / JOBS).mkdir(parents=True, exist_ok=True)
    with exclusive(out / JOBS / "lock"):
        _expect_no_others(out, {source.domain for source in sources})
        jobs = _jobs(sources)
        path = out / TOKENIZER
        if tokenizer is not None:
            tokenizer.tokenizer.save(str(path))
        elif not path.exists() or not _was_trained(out, vocab_size):
            sample = _sample(jobs, tuple(hold_out), hold_out_share)
            say(f"training a tokenizer of {vocab_size} tokens on {len(sample)} texts")
            trained = Text.train(sample, vocab_size)
            write_atomically(path, trained.tokenizer.to_str(pretty=True).encode())
            write_json(out / TRAINED, {"vocab_size": vocab_size, "sha256": checksum_of(path)})
        text = Text.read(path)
        last = text.tokenizer.token_to_id(end)
        if last is None:
            raise ValueError(
                f"the tokenizer has no token {end!r} to end documents with: name one of its own "
                "with --end"
            )
        settings = Settings(
            out=out,
            end=last,
            dtype="uint16" if len(text) <= 2**16 else "uint32",
            tokenizer_sha256=checksum_of(path),
            hold_out=tuple(hold_out),
            hold_out_share=hold_out_share,
        )
        results = _do_all(jobs, settings, workers, launcher, progress)
        manifest = Manifest(
            out, settings.dtype, len(text), last, settings.tokenizer_sha256, _splits(jobs, results)
        )
        skipped = sorted(name for result in results.values() for name in result["skipped"])
        many = f"{len(skipped)} files are" if len(skipped) != 1 else "1 file is"
        left_out = f"{many} not UTF-8 and left out, the first is {skipped[0]}" if skipped else ""
        if not manifest.splits:
            raise ValueError(f"there is no text in any of the files; {left_out}".rstrip("; "))
        about = {"skipped": skipped, "hold_out": list(hold_out), "hold_out_share": hold_out_share}
        write_json(out / MANIFEST, manifest.to_dict() | {"about": about})
        _remove_strangers(manifest)
    if left_out:
        say(left_out)
    return manifest


def _expect_outside(out: Path, sources: Sequence[Source]) -> None:
    """Refuses to read as text what lies where shards go."""
    folder = os.path.abspath(out)
    written = [os.path.join(folder, name) for name in (MANIFEST, TOKENIZER, JOBS, *SPLITS)]
    for source in sources:
        path = os.path.abspath(source.path)
        if any(path == one or path.startswith(one + os.sep) for one in written):
            raise ValueError(
                f"{source.path} would be read as text, but lies where {out} has its shards: give "
                "--out a folder outside of the text"
            )


def _expect_no_others(out: Path, domains: Set[str]) -> None:
    """Refuses to replace finished shards of other domains."""
    try:
        there = Manifest.read(out)
    except ValueError:  # nothing was finished there, or it is damaged
        return
    others = {name for split in SPLITS for name in there.domains(split)} - domains
    if others:
        raise ValueError(
            f"{out} holds the finished shards of {', '.join(sorted(others))}, which would be lost: "
            "name their text, too, or give another folder"
        )


def _was_trained(out: Path, vocab_size: int) -> bool:
    """Whether the tokenizer that is there was trained here, at this size."""
    try:
        known = json.loads((out / TRAINED).read_bytes())
    except (OSError, ValueError):
        return False
    return bool(known == {"vocab_size": vocab_size, "sha256": checksum_of(out / TOKENIZER)})


def _jobs(sources: Sequence[Source]) -> list[Job]:
    """Files in their order, domain by domain, `JOB_BYTES` of them in a job."""
    jobs: list[Job] = []
    for domain in dict.fromkeys(source.domain for source in sources):
        pieces: list[Piece] = []
        number = size = 0
        for piece in (p for s in sources if s.domain == domain for p in _pieces(s)):
            if pieces and size + piece.end - piece.start > JOB_BYTES:
                jobs.append(Job(domain, number, tuple(pieces)))
                pieces, size, number = [], 0, number + 1
            pieces.append(piece)
            size += piece.end - piece.start
        if pieces:
            jobs.append(Job(domain, number, tuple(pieces)))
    return jobs


def _pieces(source: Source, most: int = JOB_BYTES) -> Iterator[Piece]:
    size = source.path.stat().st_size
    step = most if source.path.suffix == ".jsonl" else max(size, 1)
    for start in range(0, max(size, 1), step):
        yield Piece(source, start, min(start + step, size))


def _documents(piece: Piece) -> Iterator[tuple[str, str]]:
    """The texts of a piece, each with the project it is from."""
    source = piece.source
    folder, slash, _ = source.name.partition("/")
    if source.path.suffix != ".jsonl":
        yield source.path.read_bytes().decode(), folder if slash else source.name
        return
    with source.path.open("rb") as file:
        file.seek(max(0, piece.start - 1))
        if piece.start and file.read(1) != b"\n":
            file.readline()  # it began before: the piece before this one has it
        while file.tell() < piece.end and (line := file.readline()):
            row = row_of(line, f"{source.path}, the line at byte {file.tell() - len(line)}")
            text: str = row["text"]
            yield text, str(row.get("project") or checksum(text.encode()))


def _is_held_out(source: Source, project: str, patterns: Sequence[str], share: float) -> bool:
    names = (f"{source.domain}/{source.name}", f"{source.domain}/{project}")
    if any(fnmatch.fnmatch(name, pattern) for pattern in patterns for name in names):
        return True
    drawn = hashlib.sha256(f"{source.domain}/{project}".encode()).digest()
    return int.from_bytes(drawn[:6], "big") < share * 2**48


def _sample(jobs: Sequence[Job], patterns: Sequence[str], share: float) -> list[str]:
    """Texts from all over the training split, `SAMPLE_BYTES` of them, of a domain by its size."""
    total = sum(job.size for job in jobs)
    found: list[str] = []
    for domain in dict.fromkeys(job.domain for job in jobs):
        sources = {p.source: None for job in jobs if job.domain == domain for p in job.pieces}
        pieces = [piece for source in sources for piece in _pieces(source, SAMPLE_STEP)]
        size = sum(job.size for job in jobs if job.domain == domain)
        left = min(size, round(SAMPLE_BYTES * size / total))
        for place in range(len(pieces)):
            piece = pieces[permuted(place, len(pieces), "sample")]
            try:
                for text, project in _documents(piece):
                    if not _is_held_out(piece.source, project, patterns, share):
                        found.append(text[:left])
                        left -= len(found[-1])
            except UnicodeDecodeError:
                continue
            if left <= 0:
                break
    return [text for text in found if text]


def _do_all(
    jobs: Sequence[Job],
    settings: Settings,
    workers: int | None,
    launcher: str,
    progress: Progress | None,
) -> dict[tuple[str, int], dict[str, Any]]:
    """The results of all jobs; those of an earlier call are read."""
    results: dict[tuple[str, int], dict[str, Any]] = {}
    total, done, tokens = sum(job.size for job in jobs), 0, 0

    def add(job: Job, result: dict[str, Any]) -> None:
        nonlocal done, tokens
        results[job.domain, job.number] = result
        done += job.size
        tokens += sum(one["tokens"] for one in result["shards"].values())
        if progress is not None:
            progress(done, total, tokens)

    left = []
    for job in jobs:
        known = _known(job, settings)
        if known is None:
            left.append(job)
        else:
            add(job, known)
    for job, result in _each(left, settings, workers, launcher):
        add(job, result)
    return results


def _each(
    jobs: Sequence[Job], settings: Settings, workers: int | None, launcher: str
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Every job with its result, in the order they end."""
    if launcher == "ray":
        with needs("tokenizing on Ray", "ray", "ray"):
            import ray
        work = ray.remote(_do)
        waiting = {work.remote(job, settings): job for job in jobs}
        while waiting:
            (one,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(one), ray.get(one)
        return
    workers = min(len(jobs), (os.cpu_count() or 1) if workers is None else workers)
    if workers <= 1:
        for job in jobs:
            yield job, _do(job, settings)
        return
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the processes are the parallelism
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(_do, job, settings): job for job in jobs}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _known(job: Job, settings: Settings) -> dict[str, Any] | None:
    """What an earlier call has found, if its files are still there."""
    try:
        found = json.loads(_marker(job, settings).read_bytes())
        files = [settings.out / f"{one['name']}.bin" for one in found["shards"].values()]
        if found["key"] == job.key(settings) and all(path.is_file() for path in files):
            return dict(found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _marker(job: Job, settings: Settings) -> Path:
    return settings.out / JOBS / f"{job.domain}-{job.number:05}.json"


_texts: dict[str, Text] = {}


def _do(job: Job, settings: Settings) -> dict[str, Any]:
    """One job: shards for the splits that its texts belong to, then its marker."""
    sha256 = settings.tokenizer_sha256
    if sha256 not in _texts:
        _texts[sha256] = Text.read(settings.out / TOKENIZER)
        _texts[sha256].tokenizer.encode_special_tokens = True  # in a text they are only words
    text = _texts[sha256]
    key = job.key(settings)
    tokens: dict[str, list[Any]] = {split: [] for split in SPLITS}
    sizes = dict.fromkeys(SPLITS, 0)
    skipped = []
    for piece in job.pieces:
        try:
            for words, project in _documents(piece):
                held = _is_held_out(
                    piece.source, project, settings.hold_out, settings.hold_out_share
                )
                if not words:
                    continue
                split = SPLITS[held]
                found = [*text.encode(words), settings.end]
                tokens[split].append(np.array(found, dtype=DTYPES[settings.dtype]))
                sizes[split] += len(words.encode())
        except UnicodeDecodeError:
            skipped.append(f"{piece.source.domain}/{piece.source.name}")
    shards = {
        split: vars(_write(job, settings, split, tokens[split], sizes[split]))
        for split in SPLITS
        if tokens[split]
    }
    result = {"key": key, "shards": shards, "skipped": skipped}
    write_json(_marker(job, settings), result)
    return result


def _write(job: Job, settings: Settings, split: str, tokens: list[Any], size: int) -> Shard:
    name = f"{split}/{job.domain}/{job.number:05}"
    path = settings.out / name
    path.parent.mkdir(parents=True, exist_ok=True)
    content = np.concatenate(tokens).tobytes()
    ends = np.cumsum([len(one) for one in tokens]).astype(END_DTYPE).tobytes()
    write_atomically(path.with_name(f"{path.name}.bin"), content)
    write_atomically(path.with_name(f"{path.name}.ends"), ends)
    count = sum(map(len, tokens))
    return Shard(name, count, len(tokens), size, checksum(content), checksum(ends))


def _splits(
    jobs: Sequence[Job], results: Mapping[tuple[str, int], dict[str, Any]]
) -> dict[str, dict[str, list[Shard]]]:
    found: dict[str, dict[str, list[Shard]]] = {}
    for split in SPLITS:
        for job in jobs:
            one = results[job.domain, job.number]["shards"].get(split)
            if one is not None:
                found.setdefault(split, {}).setdefault(job.domain, []).append(Shard(**one))
    return found


def _remove_strangers(manifest: Manifest) -> None:
    """Removes shards that an earlier call with other texts has left."""
    ours = {shard.name for shard in manifest.shards()}
    for split in SPLITS:
        for path in (manifest.folder / split).rglob("*"):
            if path.suffix in (".bin", ".ends"):
                if str(path.relative_to(manifest.folder).with_suffix("")) not in ours:
                    path.unlink()
