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
            "device": "a GPU",
            "versions": {"torch": "2"},
            "date": "2026-01-01",
        }
        for who in ("ours", "fla")
        for b, t in ((8, 1024), (4, 2048), (2, 4096), (8, 2048), (2, 2048), (16, 2048))
    ]
    lines = lm.table(rows).splitlines()
    assert lines[7].split()[-1] == "2.00" and lines[7].split()[-2] == "50.0%"
    assert lines[6].endswith("OutOfMemoryError")
    page = lm.markdown(rows).splitlines()
    assert len(page) == 2 + 6 and page[0].count("|") == page[2].count("|")
    assert "200.0k tokens/s | 50% | 2.0 | 3 s | 100.0k tokens/s fla | 2.0 | 2.00 |" in page[2]
    assert "OutOfMemoryError" in page[-1] and page[-1].endswith("| 210k, 38 GiB |")
    made = lm.plot(rows, tmp_path)
    assert [file.name for file in made] == ["lm_against_length.png", "lm_against_batch.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in made)
    text = lm.on_page(rows, [tmp_path / "rows.json"], made)
    assert "records: [rows.json]" in text and "Ours trains 2.00 times as fast" in text
    assert "Short of" not in text
    page_file = tmp_path / "page.md"
    page_file.write_text(f"before\n{lm.MARKS[0]}\nold\n{lm.MARKS[1]}\nafter\n")
    lm.put_on_page(page_file, text)
    lm.put_on_page(page_file, text)
    whole = page_file.read_text()
    assert whole.startswith("before\n") and whole.endswith("\nafter\n") and "old" not in whole
    assert whole.count(text) == 1


def test_goals_are_of_cells(lm: ModuleType) -> None:
    assert set(lm.GOALS) <= {f"{cell.phase} {cell.work}" for cell in lm.cells()}


@pytest.mark.parametrize(
    ("work", "ours", "short"),
    [
        ("train DeltaNet 374M B16 T2048", {"tokens_per_s": 211e3, "peak_mb": 37e3}, False),
        ("train DeltaNet 374M B16 T2048", {"tokens_per_s": 209e3, "peak_mb": 37e3}, True),
        ("train DeltaNet 374M B16 T2048", {"tokens_per_s": 211e3, "peak_mb": 40e3}, True),
        ("train Mamba 386M B8 T2048", {"tokens_per_s": 131e3, "first_step_s": 31.0}, True),
        ("train Mamba 386M B8 T2048", {"tokens_per_s": 131e3, "first_step_s": 29.0}, False),
        ("decode DeltaNet 374M B64", {"tokens_per_s": 1.0, "ms": 2.1}, True),
        ("decode DeltaNet 374M B64", {"tokens_per_s": 1.0, "ms": 1.9}, False),
        ("train GLA 374M B16 T2048", {"tokens_per_s": 1.2e5}, True),
        ("train GLA 374M B16 T2048", {"tokens_per_s": 1.4e5}, False),
        ("train GLA 374M B16 T2048", {"tokens_per_s": None}, False),
        ("train DeltaNet 374M B4 T2048", {"tokens_per_s": 1.0}, False),
    ],
)
def test_what_is_short_of_its_goal(
    lm: ModuleType, work: str, ours: dict[str, Any], short: bool
) -> None:
    blank = dict.fromkeys(("peak_mb", "first_step_s", "ms"), 0.0)
    sides = {"ours": blank | ours, "peer": blank | {"tokens_per_s": 1e5}}
    phase, _, rest = work.partition(" ")
    assert (lm._missed((phase, rest), sides) is not None) == short


def test_a_narrow_stream_is_beside_the_same_peer_and_goal(lm: ModuleType) -> None:
    work = "DeltaNet 374M B16 T2048"
    shared = dict.fromkeys(("ms", "first_step_s", "mfu"), 1.0) | {"phase": "train", "date": ""}
    shared |= {"versions": {}, "device": "", "peak_mb": 37e3, "who": "ours"}
    wide, narrow = (
        shared | {"work": name, "tokens_per_s": speed}
        for name, speed in ((work, 199e3), (work + lm.NARROW, 211e3))
    )
    peer = wide | {"who": "fla", "tokens_per_s": 100e3}
    sides = lm.by_work([wide, narrow, peer])["train", work + lm.NARROW]
    assert sides == {"ours": narrow, "peer": peer}
    assert lm.markdown([wide, narrow, peer]).splitlines()[-1].endswith("2.11 | 210k, 38 GiB |")
    assert "Short of" not in lm.on_page([wide, narrow, peer], [], [])
    slow = narrow | {"tokens_per_s": 205e3}
    assert f"Short of a goal: train {work}." in lm.on_page([wide, slow, peer], [], [])


def test_the_first_sentence(lm: ModuleType) -> None:
    row = {"tokens_per_s": 188e3, "peak_mb": 36556.8, "mfu": 0.49, "ms": 0.83}
    works = {
        ("train", "DeltaNet 374M B16 T2048"): {"ours": row, "peer": {"tokens_per_s": None}},
        ("decode", "DeltaNet 374M B1"): {"ours": row},
    }
    (said,) = lm.headline(works)
    assert "188 thousand tokens a second in 35.7 GiB, 49%" in said and "0.83 ms" in said


@pytest.mark.slow
def test_what_was_tuned_before_leaves_peers_no_first_step(lm: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (llama,) = [cell for cell in lm.smoke() if cell.who == "transformers"]
    options = {"seconds": 99, "smoke": True, "at_once": 1, "tuned": tmp_path / "tuned"}
    (fresh,) = lm.Bench([llama], tmp_path / "rows.json", **options).run()
    (later,) = lm.Bench([llama], tmp_path / "rows.json", **options).run()
    assert fresh["first_step_s"] > 0 and later["first_step_s"] is None
    assert later["tokens_per_s"] > 0


def test_time_that_is_up_ends_what_has_begun(lm: ModuleType, tmp_path: Path) -> None:
    bench = lm.Bench(lm.smoke()[:1], tmp_path / "rows.json", seconds=0.5, smoke=True, at_once=1)
    (row,) = bench.run()
    assert "not done when the" in row["reason"] and not bench.running


def test_a_cell_that_hangs_is_ended(
    lm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(lm.LIMIT, "ours", 0.2)
    bench = lm.Bench(lm.smoke()[:1], tmp_path / "rows.json", seconds=9, smoke=True, at_once=1)
    (row,) = bench.run()
    assert row["reason"].startswith("no result within 0 s, kernels still") and not bench.running


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
            other.first = [(begun - 5, ended - 0.1)]
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
    for _ in range(3000):  # a busy machine imports torch slowly
        if len(found := children.read_text().split()) > 1:
            break
        time.sleep(0.05)
    assert len(found) > 1
    call.terminate()
    assert call.wait(120) == 1
    assert not any(Path(f"/proc/{one}").exists() for one in found)


def test_training_has_a_process_for_each_cell(lm: ModuleType) -> None:
    ours = [cell for cell in lm.cells() if cell.who == "ours"]
    groups = lm.in_groups(ours)
    assert [cell for group in groups for cell in group] == ours
    assert all(len(group) == 1 for group in groups if group[0].phase == "train")
    assert [len(group) for group in groups if group[0].phase == "decode"] == [5]
    whole = lm.in_order([*lm.sweep(), *lm.cells()])
    assert not any(cell.swept for cell in whole[: len(lm.cells()) - 1])
    assert whole[0].who == "ours" and "Gated" in whole[-1].title


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


def test_processes_wait_until_there_is_memory(
    lm: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that do not fit at once: the second has room only after the first is done."""
    cells = [cell for cell in lm.smoke() if cell.who == "ours" and "train" in cell.phase][:2]
    monkeypatch.setattr(lm.Cell, "few_gib", property(lambda self: 1.0))
    monkeypatch.setattr(lm.Cell, "gib", property(lambda self: 5.0))
    monkeypatch.setattr(lm, "ROOM", 7.0)
    bench = lm.Bench(cells, tmp_path / "rows.json", seconds=99, smoke=True, at_once=2)
    together = []
    given = lm.Child.give_room

    def give_room(self: Any) -> None:
        given(self)
        together.append(sum(one.gib for one in bench.running))

    monkeypatch.setattr(lm.Child, "give_room", give_room)
    rows = bench.run()
    assert [row["reason"] for row in rows] == [None, None]
    assert len(together) == 2 and max(together) <= 7.0


def test_a_shortened_model_has_one_layer_of_each_kind(lm: ModuleType) -> None:
    (hybrid,) = [cell.model for cell in lm.smoke() if "hybrid" in cell.work]
    model = lm.build_ours(hybrid, 96, None, "meta")
    whole = model.backbone.blocks
    with lm.shortened(model):
        kinds = [type(block.mixer).__name__ for block in model.backbone.blocks]
    assert kinds == ["DeltaNet", "Attention"] and model.backbone.blocks is whole
