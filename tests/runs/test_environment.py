"""What a run says of the code and the machine that made it."""

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import torch

from statetrack.runs import environment as module
from statetrack.runs.environment import code, environment

NEITHER = {"commit": None, "dirty": None}
git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def run_git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", str(folder), *author, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a checkout of its own."""
    folder = tmp_path / "src" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("x = 1\n")
    (tmp_path / "README").write_text("read\n")
    run_git(tmp_path, "init", "--quiet")
    run_git(tmp_path, "add", ".")
    run_git(tmp_path, "commit", "--quiet", "-m", "one")
    return folder


def test_versions_hardware_and_threads() -> None:
    found = environment("cpu")
    assert found["versions"]["torch"] == metadata.version("torch")
    assert found["versions"].keys() >= {"python", "torch", "numpy", "safetensors"}
    assert found["device"] == "cpu" and found["threads"] == torch.get_num_threads()
    assert found["hardware"]["cpus"] == os.cpu_count() and found["hardware"]["gpu"] is None
    assert found["started"].endswith("Z") and found["code"] == code()
    assert code()["version"] == metadata.version("statetrack")
    assert "backends" not in found  # only the run knows them, when it has finished


@git
def test_the_commit_and_whether_the_package_differs(package: Path) -> None:
    commit = run_git(package, "rev-parse", "HEAD")
    ask = module._checkout.__wrapped__
    assert ask(package) == {"commit": commit, "dirty": False}
    (package.parents[1] / "README").write_text("changed\n")  # no code
    assert ask(package) == {"commit": commit, "dirty": False}
    (package / "new.py").touch()
    assert ask(package) == {"commit": commit, "dirty": True}
    (package / "new.py").unlink()
    (package / "__init__.py").write_text("x = 2\n")
    assert ask(package) == {"commit": commit, "dirty": True}


@git
def test_a_checkout_around_an_installed_package_is_not_its_own(package: Path) -> None:
    inside = package.parents[1] / ".venv" / "statetrack"
    inside.mkdir(parents=True)
    (inside / "__init__.py").touch()
    assert module._checkout.__wrapped__(inside) == NEITHER


@git
def test_the_environment_does_not_lead_git_elsewhere(
    package: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    assert module._checkout.__wrapped__(package)["dirty"] is False


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._checkout.__wrapped__(tmp_path) == NEITHER
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module._checkout.__wrapped__(module.PACKAGE) == NEITHER


def test_git_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = code()

    def never(*_: object, **__: object) -> None:
        raise AssertionError("asked again")

    monkeypatch.setattr(subprocess, "run", never)
    assert code() == first
