"""The page: structure, escaping, what is missing, determinism; and the command."""

import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from statetrack import tasks
from statetrack.analysis import audit_run
from statetrack.analysis.spectra import MAX_DOTS
from statetrack.cli import main
from statetrack.experiments.plan import Plan
from statetrack.report import build, read_runs, render, write_report
from statetrack.report.figures import curves_picture
from statetrack.report.spectra import spectrum
from statetrack.report.tables import Curve, Point, group_runs
from statetrack.runs import Record, Run, folder
from statetrack.training import RunConfig, run
from tests.report.folders import OtherKind, parity, puzzle_config, scores, write_run
from tests.training import tiny

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Ids, text of table cells, text outside scripts, and the JSON; tags must match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.table: dict[str, list[list[str]]] = {}
        self.text = self.script = ""
        self.feed(text)
        assert self.open == []
        self.data = json.loads(self.script)

    @property
    def numbers(self) -> dict[str, dict[str, str]]:
        """Model -> column -> what the table of all numbers says."""
        head, *lines = self.table["numbers"]
        return {line[0]: dict(zip(head, line, strict=True)) for line in lines}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        fields = dict(attrs)
        assert not any(name.startswith("on") for name in fields)
        if fields.get("id"):
            self.ids.append(str(fields["id"]))
        self.links += [str(v) for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)
        self.json = fields.get("type") == "application/json"
        if tag == "table":
            self.tables.append([])
            self.table[str(fields.get("id"))] = self.tables[-1]
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        if self.open and self.open[-1] == "script" and self.json:
            self.script += data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for 12 steps: two seeds of one model, one of another, one that has no A(x)."""
    root = tmp_path_factory.mktemp("trained")
    for config in (
        tiny.config(),
        tiny.config(seed=1, data_seed=1),
        tiny.config(model=tiny.model(eigen_range=(0.0, 1.0))),
        tiny.config(model=tiny.model("SLSTM", num_heads=2)),
    ):
        run(config, root)
    return root


def test_the_table_shows_what_the_records_say(trained: Path) -> None:
    page = Page(render(build(read_runs([trained]))))
    by_model = page.numbers
    assert list(by_model) == ["DeltaNet [0, 1]", "DeltaNet [-1, 1]", "SLSTM"]
    values = sorted(
        Run(trained / tiny.config(seed=s, data_seed=s).fingerprint).last("scaled_accuracy") or 0.0
        for s in (0, 1)
    )
    signed = by_model["DeltaNet [-1, 1]"]
    assert signed["best"] == f"{values[1]:z.3f}"
    assert signed["median"] == f"{sum(values) / 2:z.3f}"
    assert signed["spread"] == f"{values[1] - values[0]:z.3f}"
    assert (signed["seeds"], signed["judged lengths"], signed["rate"]) == ("2", "8–12", "0.001")
    assert by_model["SLSTM"]["spread"] == "–"
    assert all(line["paper’s best"] == "" for line in by_model.values())
    assert "4 runs, 4 finished. 3 of 3 cells have a number." in page.text
    assert "Nothing: every run has finished and has its number." in page.text


def test_the_page_needs_nothing_beside_itself(trained: Path) -> None:
    text = render(build(read_runs([trained])))
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    inside = [link for link in page.links if link.startswith("#")]
    assert set(page.links) - set(inside) == {"data:,"}
    assert {link[1:] for link in inside} <= set(page.ids)
    assert set(re.findall(r"url\(#?([^)]*)\)", text)) <= set(page.ids)
    assert {u for u in re.findall(r"https?://[^\s\"'<]+", text) if "www.w3.org" not in u} == set()
    assert 'name="viewport"' in text and "@media print" in text
    for section in ("overview", "table", "lengths", "learning", "spectra", "runs", "missing"):
        assert section in page.ids and f"#{section}" in page.links


def test_every_number_links_to_the_record_behind_it(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages" / "one.html"
    links = [link for link in Page(write_report(read_runs([trained]), out).read_text()).links]
    files = [link for link in links if link.endswith(".jsonl")]
    behind = [(out.parent / link).resolve() for link in files]
    assert all(path.is_file() for path in behind)
    best = max(
        (Run(trained / tiny.config(seed=s, data_seed=s).fingerprint) for s in (0, 1)),
        key=lambda member: member.last("scaled_accuracy") or 0.0,
    )
    # best, median and spread of the two seeds; best and median of the two models with one seed;
    # and each of the four in the list of runs
    assert len(behind) == 3 + 2 + 2 + 4
    assert behind.count(best.folder.resolve() / "records.jsonl") == 3
    assert not any(link.endswith("audit.json") for link in links)


def test_an_audit_speaks_for_the_weights(trained: Path, tmp_path: Path) -> None:
    member = Run(shutil.copytree(trained / tiny.config().fingerprint, tmp_path / "runs" / "one"))
    (group,) = group_runs([member])
    from_weights = spectrum(group)
    found = audit_run(member, lengths=(8,), sequences=4).to_dict()
    found["horizon"]["exact_to"]["0.99"] = 4321
    (member.folder / "audit.json").write_text(json.dumps(found))
    (member.folder / "model.safetensors").unlink()
    assert spectrum(group) == from_weights
    page = Page(write_report([member], tmp_path / "x.html").read_text())
    assert page.numbers["DeltaNet [-1, 1]"]["exact to"] == "4321"
    assert "runs/one/audit.json" in page.links


def test_the_plots_have_the_values_of_the_curves(trained: Path) -> None:
    report = build(read_runs([trained]))
    found = Page(render(report)).data
    (block,) = report.blocks
    assert found["blocks"][0]["mark"] == 7  # sequences of up to 8 have 7 bits
    assert found["blocks"][0]["cells"] == [0, 1, 2]
    for i, drawn in block.members.items():
        for name, curve in (
            ("length", drawn.by_length),
            ("loss", drawn.losses),
            ("score", drawn.scores),
        ):
            numbers = found[name][str(i)]
            assert numbers["x"] == pytest.approx([point.x for point in curve.points])
            assert numbers["y"] == pytest.approx([p.middle for p in curve.points], abs=1e-4)
            assert numbers["seeds"] == curve.seeds and ("low" in numbers) == (curve.seeds > 1)
            wheres = numbers.get("where", [f"step {x}" for x in numbers["x"]])
            assert wheres == [point.where for point in curve.points]
    assert found["operations"] == {}
    assert [found["facets"]["model"][fact[4]] for fact in found["facts"]] == [
        "DeltaNet",
        "DeltaNet",
        "SLSTM",
    ]
    assert found["dashes"] == {"[-1, 1]": "", "[0, 1]": "5 3", "none": "1.5 2.5"}


@pytest.mark.parametrize("models", [("DeltaNet",), ("DeltaNet", "Mamba"), ("",)], ids=len)
def test_a_legend_of_long_names_stays_inside_its_picture(models: tuple[str, ...]) -> None:
    variants = [f"1 layer, conv_size={i}, lengths=[3, 256], option=0.0" for i in range(5)]
    curves = [
        Curve(variant, (Point(1.0, "1", 0.5, 0.5, 0.5),), 1, model, "[0, 1]", variant)
        for model in models
        for variant in variants
    ]
    picture = curves_picture("x", "x", curves, x_label="x", y_label="y")
    assert picture is not None
    (legend,) = picture.figure.legends
    box, whole = legend.get_window_extent(), picture.figure.bbox
    assert len(legend.get_texts()) >= 5
    assert box.x0 >= 0 and box.x1 <= whole.width and box.y1 < whole.height / 2


def test_spectra_are_those_of_the_transitions(trained: Path) -> None:
    groups = {group.label: group for group in group_runs(read_runs([trained]))}
    for label, low in (("DeltaNet [0, 1]", 0.0), ("DeltaNet [-1, 1]", -1.0)):
        found = spectrum(groups[label])
        assert found is not None and 1 <= len(found.dots) <= MAX_DOTS
        assert sum(dot.share for dot in found.dots) == pytest.approx(1)
        assert found.lowest is not None and low <= found.lowest < 1
        # two heads of size 4: three of four eigenvalues are 1, the fourth is 1 - beta
        at_one = sum(dot.share for dot in found.dots if dot.real == 1.0)
        assert 0.75 <= at_one < 1
    nonlinear = spectrum(groups["SLSTM"])
    assert nonlinear is not None and nonlinear.dots == () and nonlinear.reason is not None
    assert "SLSTM has no transitions" in Page(render(build(read_runs([trained])))).text


def test_complex_eigenvalues_of_two_layers(tmp_path: Path) -> None:
    """A free matrix per token: layers are told apart, pairs are mirrored at the real axis."""
    model = tiny.model("FullMatrix", state_dim=3, num_layers=2)
    (group,) = group_runs([run(tiny.config(model=model), tmp_path)])
    found = spectrum(group)
    assert found is not None and {dot.layer for dot in found.dots} == {1, 2}
    assert any(dot.imag > 0 for dot in found.dots)
    places = {(dot.layer, dot.real, dot.imag) for dot in found.dots}
    assert places == {(layer, real, -imag + 0.0) for layer, real, imag in places}
    page = Page(render(build([run(tiny.config(model=model), tmp_path)])))
    drawn = page.data["dots"]["0"]
    assert not drawn["real"] and [layer["layer"] for layer in drawn["layers"]] == [1, 2]
    for layer in drawn["layers"]:
        mine = [dot for dot in found.dots if dot.layer == layer["layer"]]
        assert layer["x"] == pytest.approx([dot.real for dot in mine], abs=1e-4)
        assert layer["y"] == pytest.approx([dot.imag for dot in mine], abs=1e-4)


def test_odd_names_are_escaped(tmp_path: Path) -> None:
    name = "regex:(<b>)*"
    task = tasks.get(name)
    model = replace(tiny.model(), vocab_size=task.vocab_size, num_classes=task.num_classes)
    config = RunConfig(task=name, model=model, steps=2, batch=2, log_every=1)
    config = replace(config, checkpoint_every=None, evaluation=replace(config.evaluation, every=1))
    error = "Traceback\nValueError: <script>alert('x')</script> & \"more\""
    write_run(tmp_path, config, [], finished=False, error=error)
    written = write_run(tmp_path / "<img src=x onerror=alert(1)>", parity(), scores(0.5))
    odd = written.folder.rename(written.folder.with_name("<i>run"))
    text = render(build(read_runs([tmp_path])))
    page = Page(text)
    assert "<script>alert" not in text and "<i>" not in text and "<b>" not in text
    assert text.count("<script>") == 1
    assert name in page.text and odd.name in page.text
    reason = "ValueError: <script>alert('x')</script> & \"more\""
    assert [line[2] for line in page.tables[-2][1:]] == [reason]  # the run
    assert [line[:3] for line in page.tables[-1][1:]] == [
        ["DeltaNet [-1, 1]", name, "no finished run has a number"]  # and its cell
    ]


def test_missing_numbers_stay_missing(tmp_path: Path) -> None:
    write_run(tmp_path, parity(), [], finished=False, error="OSError: no space left")
    page = Page(render(build(read_runs([tmp_path]))))
    cells = page.numbers["DeltaNet [-1, 1]"]
    for column in ("best", "median", "spread", "in training", "rate"):
        assert cells[column] == "–"
    assert cells["seeds"] == "0 (1 missing)"
    assert page.tables[-2][1][2] == "OSError: no space left"
    assert page.data["blocks"] == [] and page.data["length"] == {}
    assert "0 of 1 cells have a number; 1 are empty" in page.text


PLAN = Plan(
    experiment="toy",
    summary="a toy",
    scale="paper",
    version="ran",
    configs=tuple(
        parity(seed, model=tiny.model(eigen_range=(low, 1.0)), lr=lr)
        for low in (0.0, -1.0)
        for lr in (1e-3, 1e-2)
        for seed in (0, 1, 2)
    ),
)


def test_empty_cells_are_counted_and_have_their_command(tmp_path: Path) -> None:
    folder = tmp_path / "toy-paper-ran"
    runs = [write_run(folder, parity(seed), scores(0.5)) for seed in (0, 1)]
    stranger = write_run(tmp_path / "mine", parity(model=tiny.model("Mamba")), scores(0.2))
    remark = {"toy-paper-ran/parity/DeltaNet [-1, 1]": "It had fewer steps."}
    report = build([*runs, stranger], [PLAN], remarks=remark)
    assert [(one.label, one.row is None) for one in report.entries] == [
        ("DeltaNet [0, 1]", True),
        ("DeltaNet [-1, 1]", False),
        ("Mamba [-1, 1]", False),
    ]
    planned, mine = report.heat
    assert (planned.filled, planned.cells, mine.filled, mine.cells) == (1, 2, 1, 1)
    page = Page(render(report))
    assert "2 of 3 cells have a number; 1 are empty" in page.text
    assert "Nothing:" not in page.text
    command = "statetrack reproduce toy --scale paper --version ran"
    (line,) = page.tables[-1][1:]
    only = "--only 'parity DeltaNet [0, 1]'"
    assert line == ["DeltaNet [0, 1]", "parity", "not run", f"{command} {only} --out runs"]
    assert {"#missing-0", "#row-1", "#row-2"} <= set(page.links)
    assert {"missing-0", "row-1", "row-2"} <= set(page.ids)
    said = "It had fewer steps. (learning rate 0.001 of 0.001, 0.01, 2 of 3 seeds)"
    assert said in page.numbers["DeltaNet [-1, 1]"]["remark"]
    assert page.data["facets"]["scale"] == ["paper", "none"]


def test_a_cell_is_coloured_by_what_the_paper_has(tmp_path: Path) -> None:
    def judged(low: float) -> RunConfig:
        config = parity(model=tiny.model(eigen_range=(low, 1.0)))
        settings = replace(config.evaluation, lengths=(40, 256), test_lengths=None)
        return replace(config, evaluation=settings)

    runs = [
        write_run(tmp_path, judged(0.0), scores(0.04)),  # the paper has 0.017
        write_run(tmp_path, judged(-1.0), scores(0.6)),  # and 1.000
    ]
    report = build(runs)
    assert report.against_paper == {"above": 0, "equal": 1, "below": 1, "empty": 0}
    text = render(report)
    assert '<td class="equal" data-i="0"><a href="#row-0">0.040</a>' in text
    assert '<td class="far-below" data-i="1"><a href="#row-1">0.600</a>' in text
    assert Page(text).numbers["DeltaNet [-1, 1]"]["ours minus paper’s"] == "-0.400"


def test_applied_tasks_show_accuracy_by_length_and_by_operations(tmp_path: Path) -> None:
    config = puzzle_config()
    rows = [Record(4, "validation", "scaled_accuracy", 0.5)]
    rows += [Record(4, "test", "accuracy", v, t, count=2) for t, v in ((20, 1.0), (50, 0.75))]
    rows += [
        Record(4, "test", "accuracy", v, count=5, operations=n) for n, v in ((1, 0.9), (4, 0.6))
    ]
    page = Page(render(build([write_run(tmp_path, config, rows)])))
    (table,) = [table for table in page.tables if ["", "length, tokens", "operations"] in table]
    assert table[1:] == [
        ["32", "64", "1", "4"],
        ["DeltaNet [-1, 1]", "1.000", "0.750", "0.900", "0.600"],
    ]
    drawn = page.data["operations"]["0"]
    assert (drawn["x"], drawn["y"]) == ([1, 4], [0.9, 0.6])
    assert drawn["where"] == ["1 operation", "3 to 4 operations"]


def test_runs_of_another_kind_are_listed_with_their_last_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(folder.KINDS, OtherKind.KIND, "tests.report.folders:OtherKind")
    rows = [Record(step, "validation", "loss", 4.0 / step) for step in (1, 2)]
    other = write_run(tmp_path, OtherKind(tokens=3), rows)
    write_run(tmp_path, parity(), scores(0.5))
    report = build(read_runs([tmp_path]))
    assert (report.runs, report.finished, len(report.entries)) == (2, 2, 1)
    page = Page(render(report))
    lines = [line for table in page.tables for line in table]
    assert [other.folder.name, "lm", "yes", "validation loss 2"] in lines
    alone = Page(render(build([other])))
    assert alone.data["facts"] == [] and "1 run, 1 finished." in alone.text


def test_weights_that_cannot_be_read_leave_a_reason(trained: Path, tmp_path: Path) -> None:
    name = tiny.config().fingerprint
    shutil.copytree(trained / name, tmp_path / name)
    weights = tmp_path / name / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    (group,) = group_runs(read_runs([tmp_path]))
    cut = spectrum(group)
    reason = f"{name}/model.safetensors cannot be read: "
    assert cut is not None and cut.dots == () and (cut.reason or "").startswith(reason)
    assert reason in Page(render(build(read_runs([tmp_path])))).text


def test_same_runs_same_bytes(trained: Path, tmp_path: Path) -> None:
    runs = read_runs([trained])
    first = write_report(runs, tmp_path / "a.html").read_bytes()
    assert write_report(runs[::-1], tmp_path / "b.html").read_bytes() == first
    assert write_report(read_runs([trained]), tmp_path / "c.html").read_bytes() == first


def test_plots_are_files_only_when_asked_for(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "pages" / "one.html"
    assert main(["report", str(trained), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"Report: {out}\n"
    assert [path.name for path in out.parent.iterdir()] == ["one.html"]
    assert main(["report", str(trained), "--out", str(out), "--plots"]) == 0
    plots = sorted(path.name for path in (out.parent / "one_plots").iterdir())
    stems = ["length-1-parity", "loss-1-parity", "score-1-parity"]
    stems += ["spectrum-1-parity-1", "spectrum-1-parity-2"]
    assert plots == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    for path in (out.parent / "one_plots").iterdir():
        start = path.read_bytes()[:8]
        assert start.startswith(b"<svg") or start == b"\x89PNG\r\n\x1a\n"


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main(["report", *words, "--out", str(tmp_path / "x.html")]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert not (tmp_path / "x.html").exists()
        return captured.err

    assert "statetrack train" in said()
    assert "nowhere is no folder" in said(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "there are no runs in" in said(str(tmp_path / "empty"))
    broken = write_run(tmp_path / "runs", parity(), scores(0.5)).folder
    good = write_run(tmp_path / "runs", parity(1), scores(0.5)).folder
    for name, content in (
        ("config.json", '{"task": "parity"'),
        ("config.json", '{"task": "parity", "stepz": 3}'),
        ("records.jsonl", '{"step": 1}\n'),
        ("records.jsonl", "[1]\n"),
        ("run.json", "[]"),
        ("audit.json", "{}"),
    ):
        kept = (broken / name).read_text() if (broken / name).exists() else None
        (broken / name).write_text(content)
        error = said(str(good), str(tmp_path / "runs"))
        assert f"{broken} is broken: {name}" in error
        if kept is None:
            (broken / name).unlink()
        else:
            (broken / name).write_text(kept)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "x.html")]) == 0


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_what_to_install_is_said(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [write_run(tmp_path, parity(), scores(0.5))]
    for name in [n for n in sys.modules if n.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"needs? {package}: pip install 'statetrack\[report\]'"):
        write_report(runs, tmp_path / "x.html", plots=True)


def test_demo_ends_in_a_report_or_says_why_not(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrack.experiments import demo as recipe

    monkeypatch.setattr(recipe, "demo", lambda seed=0: [tiny.config()])  # it is there already
    assert main(["demo", "--out", str(trained), "--workers", "0"]) == 0
    assert f"Report: {trained / 'report.html'}" in capsys.readouterr().out
    (trained / "report.html").unlink()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["demo", "--out", str(trained), "--workers", "0"]) == 0
    assert "No report: the report needs jinja2" in capsys.readouterr().out
    assert not (trained / "report.html").exists()
