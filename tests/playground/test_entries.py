"""What the page is told of a machine is what the library says."""

import json

import pytest

from statetrack.automata import Machine, read
from statetrack.compiler import compile_program, explain, program_of_json
from statetrack.playground import entry
from statetrack.playground.entries import entry_of, example_word
from statetrack.playground.gallery import found


@pytest.mark.parametrize("text", ["parity", "(a|b)*ab", "cerny_4", "s3", "z2_x_z3"])
def test_an_entry_is_what_the_library_says(text: str) -> None:
    machine = read(text)
    made = json.loads(json.dumps(entry_of(machine, text)))
    said = explain(machine)
    assert [one["family"] for one in made["families"]] == [row.family for row in said.rows]
    assert [one["answer"] for one in made["families"]] == [row.verdict.answer for row in said.rows]
    assert [one["reason"] for one in made["families"]] == [row.verdict.reason for row in said.rows]
    assert "\n".join(made["facts"]) == str(said).split("\n\n")[0]
    taken = compile_program(machine)
    assert made["programs"][0]["method"] == taken.method
    word = made["word"]
    for one in made["programs"]:
        program = program_of_json(one["program"])
        assert program.run(word).tolist() == machine.run(word).tolist()
        assert len(one["layers"]) == len(program.stages)
    methods = [one["method"] for one in made["programs"] + made["refused"]]
    assert len(set(methods)) == len(methods)


def test_what_is_refused_says_why() -> None:
    made = entry_of(read("a*b*"), "a*b*")
    refused = {one["method"]: one["why"] for one in made["refused"]}
    assert "needs letters that permute the states" in refused["group"]
    assert refused.keys() == {"group", "one-layer", "rotation", "reflections"}


def test_the_gallery_gives_title_and_word() -> None:
    made = entry_of(read("s3"), "s3", found("s3"))
    assert made["title"] == "S3" and made["word"] == [1, 2, 3, 5, 1, 4, 2, 2]


def test_large_programs_are_left_out_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = read("s4")
    made = entry_of(machine, "s4")
    assert {"method": "dense", "why": "it is built, but too large to show"} not in made["refused"]
    monkeypatch.setattr("statetrack.playground.entries.LARGEST_MORE", 20_000)
    made = entry_of(machine, "s4")
    assert {"method": "dense", "why": "it is built, but too large to show"} in made["refused"]
    monkeypatch.setattr("statetrack.playground.entries.LARGEST", 1_000)
    with pytest.raises(ValueError, match="too large to show: .* more than 1,000 characters"):
        entry_of(machine, "s4")


def test_an_example_word_takes_every_arrow_it_can() -> None:
    machine = Machine.from_regex("(a|b)*ab", "ab")
    word = example_word(machine)
    states = [0, *machine.run(word).tolist()]
    assert set(zip(states, word, strict=False)) == {(q, a) for q in range(3) for a in range(2)}
    assert example_word(read("(ab)*"), 5) == [0, 1, 0, 1, 0]  # and keeps out of the sink


def test_entry_reads_a_text() -> None:
    wider = entry("(aa)*", "ab")["programs"][0]["program"]
    assert wider["machine"]["alphabet"] == ["a", "b"]
    assert entry("parity")["title"] == "Parity"
