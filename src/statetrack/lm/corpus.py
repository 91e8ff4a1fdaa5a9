"""Text from packages with known licences, by domain, for studies that can be repeated anywhere.

What is gathered is never part of this package: `gather` downloads packages with apt and pip, as
they are set up here, and writes one .jsonl file a domain, with the project and the licence of every
text.
"""

import fnmatch
import gzip
import json
import subprocess
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = ["PACKAGES", "Package", "gather"]

LEAST, MOST = 200, 2**20
"""Bytes of a text; longer code is data more often than code."""


@dataclass(frozen=True)
class Package:
    """Files of a package that match any of `patterns` and none of `but`.

    The project of a file is the package, or with `by_folder` the folder so deep in it; 0: the file.
    """

    domain: str
    kind: Literal["deb", "wheel"]
    name: str
    version: str
    licence: str
    patterns: tuple[str, ...]
    but: tuple[str, ...] = ()
    by_folder: int | None = None


KERNEL = "6.1.192-2"
PACKAGES = (
    Package(
        "code",
        "deb",
        "linux-source-6.1",
        KERNEL,
        "GPL-2",
        ("*.c", "*.h"),
        but=("*/drivers/gpu/drm/amd/include/*",),
        by_folder=2,
    ),
    Package(
        "prose",
        "deb",
        "linux-source-6.1",
        KERNEL,
        "GPL-2",
        ("*/Documentation/*.rst",),
        by_folder=3,
    ),
    Package("code", "wheel", "ansible", "12.3.0", "GPL-3", ("*.py",), by_folder=3),
    Package("code", "wheel", "sympy", "1.14.0", "BSD-3", ("*.py",)),
    Package("code", "wheel", "twisted", "26.10.0", "MIT", ("*.py",)),
    Package("code", "wheel", "jax", "0.10.2", "Apache-2", ("*.py",)),
    Package(
        "math",
        "deb",
        "metamath-databases",
        "0.0.0~20210101.git55fe226-2",
        "public domain",
        ("*.mm",),
        by_folder=0,
    ),
    Package(
        "prose", "deb", "jargon-text", "4.4.7-4.1", "public domain", ("*jargon.txt", "*jargon")
    ),
)
"""What the study reads, by version: another one is another text. Licences are as they state."""


def gather(
    out: Path | str,
    packages: Sequence[Package] = PACKAGES,
    *,
    most_mb: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, int]:
    """Writes `out`/domain.jsonl; how many bytes of text each domain has.

    A package that cannot be had is said and left out, and the text is another one then. Of a
    package with more than `most_mb` about as much is taken, evenly from all of its projects: a text
    is in or out by its own hash.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    sizes: dict[str, int] = {}
    for domain in dict.fromkeys(package.domain for package in packages):
        temporary = out / f".tmp-{domain}.jsonl"
        sizes[domain] = 0
        with temporary.open("w", encoding="utf-8") as file:
            for package in (one for one in packages if one.domain == domain):
                try:
                    found = list(_texts(package))
                except (OSError, subprocess.CalledProcessError) as error:
                    say(f"{package.name} {package.version} is left out: {_reason(error)}")
                    continue
                if most_mb is not None:
                    found = _share(found, most_mb * 1e6)
                for project, text in found:
                    row = {"text": text, "project": project, "licence": package.licence}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                size = sum(len(text) for _, text in found)
                say(f"{domain}: {package.name} ({package.licence}), {size / 1e6:.1f} MB")
                sizes[domain] += size
        temporary.replace(out / f"{domain}.jsonl")
    return sizes


def _share(texts: list[tuple[str, str]], most: float) -> list[tuple[str, str]]:
    size = sum(len(text) for _, text in texts)
    return [one for one in texts if zlib.crc32(one[1].encode()) * size < most * 2**32]


def _texts(package: Package) -> Iterator[tuple[str, str]]:
    """The project and the text of every file that is meant."""
    with tempfile.TemporaryDirectory() as folder:
        archive = _downloaded(package, Path(folder))
        files = _of_deb(archive) if package.kind == "deb" else _of_zip(archive)
        for name, content in files:
            path = f"/{name.lstrip('./')}"
            meant = any(fnmatch.fnmatch(path, pattern) for pattern in package.patterns)
            if not meant or any(fnmatch.fnmatch(path, pattern) for pattern in package.but):
                continue
            if len(content) < LEAST or (package.domain == "code" and len(content) > MOST):
                continue
            try:
                text = content.decode()
            except UnicodeDecodeError:
                continue
            yield _project(package, path), text


def _project(package: Package, path: str) -> str:
    """
    >>> kernel = Package("code", "deb", "linux", "6.1", "GPL-2", ("*.c",), by_folder=2)
    >>> _project(kernel, "/linux-6.1/fs/ext4/inode.c")
    'linux/fs'
    """
    if package.by_folder is None:
        return package.name
    if package.by_folder == 0:
        return f"{package.name}/{Path(path).stem}"
    folders = path.strip("/").split("/")[:-1]
    return "/".join([package.name, *folders[1 : package.by_folder]])


def _downloaded(package: Package, folder: Path) -> Path:
    command = ["apt-get", "download", f"{package.name}={package.version}"]
    if package.kind == "wheel":
        wanted = f"{package.name}=={package.version}"
        command = ["pip", "download", "--no-deps", "--only-binary", ":all:", wanted]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (found,) = folder.iterdir()
    return found


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    """In a line: of a command, the last one it said."""
    if isinstance(error, OSError):
        return str(error)
    said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
    hint = " (`apt-get update` may find it)" if error.cmd[0] == "apt-get" else ""
    return (said[-1] if said else str(error)) + hint


def _of_deb(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a Debian package, and of the tar archives in it."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE) as deb:
        assert deb.stdout is not None
        yield from _of_tar(deb.stdout)


def _of_tar(stream: Any) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream, mode="r|*") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isfile() else None
            if file is None:
                continue
            if ".tar." in member.name:
                yield from _of_tar(file)
            elif member.name.endswith(".gz"):
                yield member.name.removesuffix(".gz"), gzip.decompress(file.read())
            else:
                yield member.name, file.read()


def _of_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                yield name, archive.read(name)
