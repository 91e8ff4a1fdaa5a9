"""The benchmark of whole language models, at sizes for a CPU."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "lm.py"
KEYS = {
    "work", "phase", "who", "tokens_per_s", "ms", "peak_mb", "first_step_s", "mfu", "device",
    "versions", "date", "reason",
}  # fmt: skip

needs_proc = pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes")


@pytest.fixture(scope="module")
def lm() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_lms", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(out: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    command = [sys.executable, str(FILE), "--smoke", "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), done.stdout


def test_a_cell_that_fails_says_why_and_others_follow(tmp_path: Path) -> None:
    """No peer is installed here."""
    rows, shown = run(tmp_path / "rows.json", "--only", "T64|fla,prefill|")
    assert all(set(row) == KEYS for row in rows)
    peer, ours = rows
    assert peer["tokens_per_s"] is None and "No module named 'fla'" in peer["reason"]
    assert ours["phase"] == "prefill" and ours["reason"] is None
    assert ours["tokens_per_s"] > 0 and ours["ms"] > 0 and ours["first_step_s"] > 0
    assert len(shown.strip().splitlines()) == 2 * len(rows) + 1  # as they come, and a table


@pytest.mark.slow
def test_all_tiny_cells(tmp_path: Path) -> None:
    rows, _ = run(tmp_path / "rows.json", "--at-once", "2")
    assert {row["reason"] for row in rows if row["who"] != "fla"} == {None}
    assert {"ours", "transformers"} <= {row["who"] for row in rows}
    assert {row["phase"] for row in rows} == {"train", "decode", "prefill"}


def test_time_that_is_up_begins_nothing(tmp_path: Path) -> None:
    rows, _ = run(tmp_path / "rows.json", "--only", "prefill|", "--seconds", "0")
    assert [row["reason"] for row in rows] == ["not begun within 0 s"]


def test_sizes_are_those_of_the_names(lm: ModuleType) -> None:
    """Parameters of ours, counted without making them."""
    import torch

    wanted = {"DeltaNet 374M": 374, "DeltaNet 1.37B": 1366, "Mamba 386M": 386}
    wanted |= {"GatedDeltaNet 400M": 400, "Transformer 374M": 374, "GLA 374M": 374}
    models = {cell.model.name: cell.model for cell in lm.cells()}
    with torch.device("meta"):
        for name, millions in wanted.items():
            model = lm.build_ours(models[name], lm.VOCAB, None, "meta")
            count = sum(parameter.numel() for parameter in model.parameters())
            assert round(count / 1e6) == millions, name
            table = model.embedding.weight.numel()
            assert lm.flops_per_token(model) == 6 * (count - table)


def test_time_by_kind_and_what_is_idle(lm: ModuleType) -> None:
    kernels = [
        ("nvjet_tst_128x256", 0.0, 4.0),
        ("_convolution_forward_kernel", 3.0, 5.0),
        ("_prepare_kernel", 6.0, 7.0),
        ("triton_red_fused_mul_1", 9.0, 9.5),
    ]
    by_kind, by_name = lm.shares(kernels)
    assert by_kind == {
        "product": 4.0,
        "convolution": 2.0,
        "mixer": 1.0,
        "compiled elementwise": 0.5,
        "idle": 3.0,
    }
    assert by_name["nvjet_tst_128x256"] == 4.0


def test_table_and_pictures(lm: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {
            "work": f"DeltaNet 374M B{b} T{t}",
            "phase": "train",
            "who": who,
            "tokens_per_s": 1e5 * (2 if who == "ours" else 1) if b < 16 else None,
            "ms": 5.0,
            "peak_mb": 2048.0,
            "first_step_s": 3.0,
            "mfu": 0.5,
            "reason": None if b < 16 else "OutOfMemoryError",
        }
        for who in ("ours", "fla")
        for b, t in ((8, 1024), (4, 2048), (2, 4096), (8, 2048), (2, 2048), (16, 2048))
    ]
    lines = lm.table(rows).splitlines()
    assert lines[7].split()[-1] == "2.00" and lines[7].split()[-2] == "50.0%"
    assert lines[6].endswith("OutOfMemoryError")
    page = lm.markdown(rows).splitlines()
    assert len(page) == 2 + 6 and page[0].count("|") == page[2].count("|")
    assert "200.0k tokens/s | 50% | 2.0 | 3 s | 100.0k tokens/s fla | 2.0 | 3 s | 2.00 |" in page[2]
    assert "OutOfMemoryError" in page[-1]
    made = lm.plot(rows, tmp_path)
    assert [file.name for file in made] == ["lm_against_length.png", "lm_against_batch.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in made)


def test_a_cell_that_hangs_is_ended(
    lm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lm.LIMIT, "ours", 0.2)
    bench = lm.Bench(lm.smoke()[:1], tmp_path / "rows.json", seconds=9, smoke=True, at_once=1)
    (row,) = bench.run()
    assert row["reason"] == "no result within 0 s" and not bench.running


@needs_proc
def test_the_others_wait_while_one_is_timed(lm: ModuleType, tmp_path: Path) -> None:
    cells = [cell for cell in lm.smoke() if cell.who == "ours" and "train" in cell.phase][:2]
    bench = lm.Bench(cells, tmp_path / "rows.json", seconds=99, smoke=True, at_once=2)
    was = lm.Bench._timed
    states = []

    def timed(child: Any) -> Any:
        (other,) = [one for one in bench.running if one is not child] or [None]
        go_on = child.go_on

        def looked_at() -> None:
            if other is not None:
                status = Path(f"/proc/{other.process.pid}/status").read_text()
                states.append(next(line for line in status.splitlines() if "State" in line))
            go_on()

        child.go_on = looked_at
        found = was(bench, child)
        if other is not None:
            begun, ended = other.stops[-1]
            other.first = (begun - 5, ended - 0.1)
            assert 0 < other.stopped_in_first_step() < ended - begun
        return found

    bench._timed = timed
    rows = bench.run()
    assert [row["reason"] for row in rows] == [None, None]
    assert len(states) == 1 and "stopped" in states[0]


@needs_proc
def test_a_call_that_is_ended_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, str(FILE), "--smoke", "--at-once", "2", "--only", "T64|ours"]
    call = subprocess.Popen([*command, "--out", str(tmp_path / "rows.json")])
    children = Path(f"/proc/{call.pid}/task/{call.pid}/children")
    for _ in range(600):
        if len(found := children.read_text().split()) == 2:
            break
        time.sleep(0.05)
    assert len(found) == 2
    call.terminate()
    assert call.wait(30) == 1
    assert not any(Path(f"/proc/{one}").exists() for one in found)


def test_training_has_a_process_for_each_cell(lm: ModuleType) -> None:
    ours = [cell for cell in lm.cells() if cell.who == "ours"]
    groups = lm.in_groups(ours)
    assert [cell for group in groups for cell in group] == ours
    assert all(len(group) == 1 for group in groups if group[0].phase == "train")
    assert [len(group) for group in groups if group[0].phase == "decode"] == [5]


@pytest.mark.slow
def test_compiled_blocks_keep_less_than_by_default() -> None:
    """Norms and activations are not kept; the input and the outputs of products are."""

    def counted(*options: str) -> dict[str, float]:
        command = [sys.executable, str(FILE.parent / "kept.py"), "--only", "GLA", *options]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        _, *lines = done.stdout.splitlines()
        return {what: float(mib) for mib, _, what in (line.split() for line in lines)}

    plain, ours = counted("--plain"), counted()
    assert ours["input"] == plain["input"] == 16 * 2048 * 1024 * 4 / 2**20
    assert ours["product"] == plain["product"]
    assert sum(ours.values()) < 0.8 * sum(plain.values())
