"""Tables, pages and pictures of language models against a study whose numbers are known."""

import dataclasses
import json
from pathlib import Path
from typing import get_args

import pytest

from statetrack.lm.recipes import RECIPES
from statetrack.models.presets import WIDTHS
from statetrack.report import figures, write_book
from statetrack.report.cells import KEYS
from statetrack.report.language import (
    Asked,
    Cause,
    Difference,
    differences,
    families,
    read_study,
)
from statetrack.report.language_figures import (
    differences_picture,
    examples_picture,
    heads_picture,
    position_picture,
)
from statetrack.report.language_pages import (
    heads_answer,
    heads_tables,
    in_short,
    language_answer,
    language_tables,
    probe_tables,
    short_table,
    summary_rows,
)
from statetrack.runs import Record, find_runs
from statetrack.runs.archive import store
from statetrack.runs.stored import Place
from tests.lm import corpus
from tests.report import studies
from tests.report.folders import write_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    shards = corpus.shards(folder).folder
    return studies.write_study(folder / "results", shards)


@pytest.fixture(scope="module")
def with_control(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("control")
    shards = corpus.shards(folder).folder
    found = studies.write_study(folder / "results", shards)
    studies.write_control(found, shards)
    return found


def asked(root: Path) -> list[Asked]:
    return read_study(root, find_runs(root))


def link(text: str, place: Place) -> str:
    return f"[{text}]({place.path.parent.name}/{place.path.name})"


def test_windows_are_compared_one_by_one(root: Path) -> None:
    found = families(asked(root))
    assert [(one.layer, one.between, len(one.members)) for one in found] == [
        ("DeltaNet", (0.0, 1.0), 2),
        ("DeltaNet", (-1.0, 1.0), 2),
    ]
    told = {(one.domain, one.end): one for one in differences(found)}
    assert {end for _, end in told} == {16, 32, 64, 128, 256}
    code = told["code", 16]
    assert code.mean == pytest.approx(-0.15) and code.windows == 4
    assert code.seeds == pytest.approx((-0.1, -0.2))
    # every window differs alike, however much the windows differ from one another
    assert code.high - code.low < 1e-9
    prose = told["prose", 256]
    assert prose.mean == pytest.approx(0.0) and prose.windows == 2
    # two seeds that are 0.1 apart cannot say what a third would do
    assert code.verdict == prose.verdict == "open"


def test_models_that_began_otherwise_are_compared_among_themselves(tmp_path: Path) -> None:
    shards = corpus.shards(tmp_path).folder
    root, runs = tmp_path / "results", []
    recipe = RECIPES["60M"]
    for warmup, std, gap in ((recipe["warmup"], recipe["std"], -0.15), (0.3, 0.5, 0.3)):
        for low, shift in ((0.0, 0.0), (-1.0, gap)):
            tiny = studies.config(shards, low, 0)
            backbone = dataclasses.replace(tiny.model.backbone, d_model=WIDTHS["60M"][0])
            schedule = dataclasses.replace(tiny.schedule, warmup=warmup)
            model = dataclasses.replace(tiny.model, backbone=backbone, projection_std=std)
            one = dataclasses.replace(tiny, model=model, schedule=schedule)
            rows = [Record(2, "validation", "loss", 2.0)]
            runs.append(write_run(tmp_path / "runs", one, rows))
            path = root / "language" / "loss" / f"{one.fingerprint}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(studies.loss({"code": shift})))
    store(runs, root / "language")
    found = families(asked(root))
    otherwise = "DeltaNet, warm-up 30 %, first weights 0.5"
    assert [one.label for one in found] == [
        "DeltaNet [0, 1]",
        "DeltaNet [-1, 1]",
        f"{otherwise} [0, 1]",
        f"{otherwise} [-1, 1]",
    ]
    told = {
        one.layer: one.mean for one in differences(found) if (one.domain, one.end) == ("code", 16)
    }
    assert told == pytest.approx({"DeltaNet": -0.15, otherwise: 0.3})


@pytest.mark.parametrize(
    ("seeds", "interval", "cause", "verdict"),
    [
        ((-0.10, -0.11, -0.12), 0.01, "range", "lower"),
        ((0.10, 0.11, 0.12), 0.01, "range", "higher"),
        ((-0.10, -0.11, -0.12), 0.2, "range", "open"),  # text does not show it
        ((-0.02, -0.10, -0.21), 0.01, "range", "open"),  # seeds do not
        ((0.001, -0.001, 0.0), 0.005, "range", "alike"),
        ((0.001, -0.001, 0.0), 0.02, "range", "open"),  # text may hide more than that
        ((-0.1,), 0.01, "range", "one seed"),
        ((-0.1,), 0.01, "clamp", "lower"),
        ((-0.001,), 0.0005, "clamp", "alike"),  # there, but next to nothing
    ],
)
def test_a_verdict_needs_text_and_seeds(
    seeds: tuple[float, ...], interval: float, cause: Cause, verdict: str
) -> None:
    mean = sum(seeds) / len(seeds)
    ends = mean - interval, mean + interval
    assert Difference(cause, "x", "code", 16, mean, *ends, seeds, 4).verdict == verdict


def test_the_sign_is_told_from_the_speed(with_control: Path) -> None:
    found = families(asked(with_control))
    assert [one.label for one in found] == [
        "DeltaNet [0, 1]",
        "DeltaNet [-1, 1]",
        "DeltaNet [0, 1], 2σ(x) capped",
        "DeltaNet [-1, 1], range learnt",
        "DeltaNet [-1, 1], β from 0.5",
    ]
    by_cause: dict[Cause, Difference] = {}
    for cause in get_args(Cause):
        told = {
            (one.domain, one.end): one
            for one in differences(found, cause)
            if one.layer == "DeltaNet"
        }
        by_cause[cause] = told["code", 16]
    # -0.1 and -0.2, of which 0.02 are the sign; the trained models would miss it by 0.03
    means = {cause: one.mean for cause, one in by_cause.items()}
    known = {"range": -0.15, "speed": -0.13, "sign": -0.02, "clamp": 0.03, "learnt": -0.05}
    assert means == pytest.approx(known | {"started": -0.07})
    assert means["range"] == pytest.approx(means["speed"] + means["sign"])
    verdicts = {cause: one.verdict for cause, one in by_cause.items()}
    assert [name for name, verdict in verdicts.items() if verdict == "open"] == ["range", "speed"]
    assert verdicts["sign"] == verdicts["learnt"] == "lower" and verdicts["clamp"] == "higher"
    # two seeds 0.1 apart say nothing of a third
    assert by_cause["range"].over_seeds == pytest.approx(12.71 * 0.05, rel=1e-3)
    assert by_cause["sign"].over_seeds == pytest.approx(0.0, abs=1e-9)


def test_what_was_compared_in_short(root: Path, with_control: Path) -> None:
    said = language_answer(asked(with_control))
    assert said == language_answer(asked(root))  # the answer is about the ranges alone
    lines = short_table(asked(with_control))
    assert lines[1] == "| compared | code | prose | seeds | verdict |"
    for line in (
        "| DeltaNet: [-1, 1] minus [0, 1] | -0.150 | +0.000 | 2 | open |",
        "| DeltaNet: [-1, 1] minus control: the sign | -0.020 | +0.000 | 2 "
        "| lower on code; open on prose |",
        "| DeltaNet: clamped to 0 minus unclamped | +0.030 | +0.000 | 2 "
        "| higher on code; alike on prose |",
    ):
        assert line in lines
    assert "| DeltaNet: learnt range minus [0, 1] | -0.050 | " in "\n".join(lines)
    assert "| DeltaNet: [-1, 1], β from 0.5, minus [0, 1] | -0.070 | " in "\n".join(lines)
    alone = short_table([one for one in asked(with_control) if one.seed == 0])
    assert "| DeltaNet: [-1, 1] minus control: the sign | -0.020 | +0.050 | 1 | one seed |" in alone
    assert not any("control:" in line for line in short_table(asked(root)))
    assert short_table([]) == []


def test_the_picture_of_differences(with_control: Path) -> None:
    rows = in_short(asked(with_control))
    assert len(rows) == 7  # with the clamp of a special one, which the picture leaves out
    picture = differences_picture("d", rows)
    assert picture is not None
    code, prose = picture.figure.axes
    assert [text.get_text() for text in code.get_yticklabels()] == [name for name, _ in rows[:6]]
    dots = [line.get_xdata()[0] for line in code.get_lines() if line.get_marker() == "o"]
    assert dots == pytest.approx([-0.15, -0.07, -0.05, -0.13, -0.02, 0.03])
    assert code.get_xlim() == prose.get_xlim()
    assert differences_picture("none", []) is None


def test_models_with_a_control_in_tables_and_pictures(with_control: Path) -> None:
    lines = language_tables(asked(with_control), link)
    (control,) = [line for line in lines if line.startswith("| DeltaNet [0, 1], 2σ(x) capped |")]
    assert "[2.1715 (0.1000)](loss/" in control
    assert any("clamped to 0 minus" in line and "+0.0300" in line for line in lines)
    assert "not run" not in control
    # a clamp is told of models with a β of their own, too
    own = [line for line in lines if line.startswith("| DeltaNet, β from 0.5: clamped to 0")]
    assert own and all("+0.07" in line for line in own if "| code |" in line)
    (learnt,) = [line for line in lines if line.startswith("| DeltaNet [-1, 1], range learnt |")]
    assert "not run" not in learnt
    rows = summary_rows(asked(with_control), with_control)
    models = {row["model"] for row in rows if row["seeds"]}
    special = ("2σ(x) capped", "range learnt", "β from 0.5")
    assert models == {"DeltaNet", *(f"DeltaNet, {one}" for one in special)}
    found = families(asked(with_control))
    told, sign = differences(found), differences(found, "sign")
    picture = position_picture("position", "DeltaNet", found, told, sign)
    assert picture is not None
    assert len(picture.figure.axes[0].get_lines()) == 5
    names = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert names[2:] == [
        "DeltaNet [0, 1], 2σ(x) capped, 2 seeds",
        "DeltaNet [-1, 1], range learnt, 2 seeds",
        "DeltaNet [-1, 1], β from 0.5, 2 seeds",
        "[-1, 1] minus [0, 1]",
        "[-1, 1] minus the control",
    ]


def test_a_model_without_a_range_comes_last(tmp_path: Path) -> None:
    shards = corpus.shards(tmp_path).folder
    root = studies.write_study(tmp_path / "results", shards, seeds=1)
    one = corpus.config(shards, model=corpus.model("Attention", num_heads=2), length=16)
    stored = write_run(tmp_path / "other", one, [Record(2, "validation", "loss", 2.0)])
    store([stored], root / "language")
    answer = root / "language" / "loss" / f"{one.fingerprint}.json"
    answer.write_text(json.dumps(studies.loss({"code": 0.0})))
    assert [family.layer for family in families(asked(root))] == ["DeltaNet"] * 2 + ["Attention"]


def test_the_answer_is_in_the_first_sentence(root: Path) -> None:
    said = language_answer(asked(root))
    assert said == (
        "With [-1, 1] every seed of DeltaNet is lower on code, but seeds differ too "
        "much to count on it. "
        "Open for DeltaNet on prose: seeds differ by more than the ranges do."
    )
    assert language_answer([]).startswith("Not known")
    heads = heads_answer(asked(root))
    assert heads == (
        "In DeltaNet [-1, 1] 25.1 % of all tokens and heads have an eigenvalue below 0, "
        "most of all on tokens of the class opening bracket."
    )
    assert heads_answer([]).startswith("Not known")


def test_heads_that_were_counted_together(root: Path) -> None:
    study = asked(root)
    for one in study:
        one.answers["heads"] |= {"heads": [], "examples": []}
    lines = heads_tables(study, link, {})
    shares = "| DeltaNet [-1, 1] | 25.1 %, 25.1 % | 12.6 % |"
    assert f"{shares}  |  |  | opening bracket (90.0 %) | word (10.0 %) |" in lines
    by_head = heads_tables(asked(root), link, {"DeltaNet [-1, 1]": ["a picture"]})
    assert f"{shares} 4 | 1 | 2 | opening bracket (90.0 %) | word (10.0 %) |" in by_head
    assert "a picture" in by_head
    assert any(line.startswith("| opening bracket | 20 |") for line in lines)
    assert not any("layer | head" in line for line in lines)


def test_tables_link_to_their_records_and_say_what_is_missing(root: Path) -> None:
    lines = language_tables(asked(root), link)
    (usual,) = [line for line in lines if line.startswith("| DeltaNet [0, 1] |")]
    assert "[2.3015 (0.0000)](loss/" in usual
    (extended,) = [line for line in lines if line.startswith("| DeltaNet [-1, 1] |")]
    assert "[2.1515 (0.1000)](loss/" in extended
    missing = [line for line in lines if "not run" in line]
    assert len(missing) == 17
    for name, words in (
        ("GLA [-1, 1]", "more --only 'GLA [-1, 1]'"),
        ("GLA [0, 1], 2s - 1 capped", "control --only 'CappedGLA'"),
        ("DeltaNet [-1, 1], range learnt", "control --only 'DeltaNet learnt [-1, 1]'"),
        ("DeltaNet [-1, 1], β from 0.5", "start --only 'DeltaNet start=0.5 [-1, 1]'"),
    ):
        (line,) = [line for line in missing if line.startswith(f"| {name} |")]
        assert f" --models {words} --tokens 1e8 " in line
    widths = {line.count(" | ") for line in lines if line.startswith("| ") and "rate" in line}
    assert len(widths) == 1
    empty = language_tables([], link)
    assert sum("not run" in line for line in empty) == 19
    told = "\n".join(probe_tables(asked(root), link))
    assert "A guess gets 0.200. Fine-tuned: 200 steps of 32 traces of up to 32" in told
    assert "| DeltaNet [-1, 1] | fine-tuned | [0.900](probes/" in told
    assert "| DeltaNet [-1, 1] | as it is | [0.500](probes/" in told


def test_rows_of_the_summary(root: Path) -> None:
    rows = summary_rows(asked(root), root)
    assert all(tuple(row) == KEYS for row in rows)
    one = next(
        row
        for row in rows
        if (row["task"], row["length"], row["eigen_range"]) == ("code", 16, [-1.0, 1.0])
    )
    assert one["metric"] == "loss" and one["seeds"] == 2
    assert one["best"] == pytest.approx(2.1015) and one["median"] == pytest.approx(2.1515)
    assert one["record"].startswith("results/language/loss/")
    tuned = [row for row in rows if row["task"] == "boxes fine-tuned" and row["length"] == 64]
    assert {row["best"] for row in tuned} == {0.25, 0.45}
    empty = [row for row in rows if row["seeds"] == 0]
    assert len(empty) == 51 and all(row["record"] is None for row in empty)


def test_pictures(root: Path) -> None:
    study = asked(root)
    found = families(study)
    position = position_picture("position", "DeltaNet", found, differences(found))
    assert position is not None
    lines = position.figure.axes[0].get_lines()
    assert lines[0].get_linestyle() != lines[1].get_linestyle()  # told apart without colour
    assert position_picture("none", "Mamba", found, []) is None
    # like is compared with like: the seeds that all have
    fewer = families(
        [one for one in study if one.seed == 0 or one.run.config is study[0].run.config]
    )
    picture = position_picture("fewer", "DeltaNet", fewer, [])
    assert picture is not None
    names = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert names == ["DeltaNet [0, 1], 1 seed", "DeltaNet [-1, 1], 1 seed"]
    heads = study[-1].answers["heads"]
    for picture in (heads_picture("h", heads, "x"), examples_picture("t", heads, "x")):
        assert picture is not None and len(figures.to_png(picture)) > 1000
    texts = examples_picture("t", heads, "x")
    assert texts is not None
    said = [text.get_text() for text in texts.figure.axes[0].texts]
    assert "code: layer 1, head 0" in said and "·f" in said and "↵" in said
    # tokens below 0 are underlined as well as coloured: five of thirteen, for two heads
    assert len(texts.figure.axes[0].lines) == 2 * 5
    assert heads_picture("h", {"heads": []}, "x") is None
    assert examples_picture("t", {"heads": []}, "x") is None


def test_the_book_has_pages_for_its_questions(root: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    written = write_book([], find_runs(root), root, page)
    pages = {path.stem for path in written if path.parent == tmp_path / "docs" / "results"}
    assert pages == {"groups", "code", "chess", "controls", "language", "heads"}
    text = (tmp_path / "docs/results/language.md").read_text()
    assert (
        "\n# Does [-1, 1] matter for language models?\n\nWith [-1, 1] every seed of DeltaNet"
        in text
    )
    for path in (tmp_path / "docs/results").glob("*.md"):
        for source in path.read_text().split('src="')[1:]:
            assert (path.parent / source.partition('"')[0]).is_file()
    assert "Not known" in (tmp_path / "docs/results/chess.md").read_text()
    rows = json.loads((root / "summary.json").read_text())
    assert {row["experiment"] for row in rows} == {"language"}
    assert "| windows |" in text and "| windows |" not in page.read_text()
    assert "\n## language\n" in page.read_text() and "(results/language.md)" in page.read_text()
