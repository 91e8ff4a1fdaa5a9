"""Pages from the command line."""

from pathlib import Path

import pytest

from statetrack.cli import main
from tests.cli.words import SMALL, complaint


def test_a_page_is_not_written_over_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page"
    page.mkdir()
    assert main(["train", *SMALL, "--out", str(runs), "--device", "cpu"]) == 0
    capsys.readouterr()
    assert f"{page} is a folder" in complaint(["report", str(runs), "--out", str(page)], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page", "runs"]
