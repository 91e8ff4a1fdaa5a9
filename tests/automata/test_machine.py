"""`Machine`: numbering, running, constructions, and one clear line for each kind of bad input."""

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import product
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statetrack.automata import Machine, holonomy, named, read
from tests.automata.cases import KINDS, random_machine
from tests.helpers import unhooked

few = settings(deadline=None, max_examples=60)
Table = tuple[list[list[int]], set[int]]


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Transitions over two letters and accepting states (plain data: type checks draw numbers)."""
    n = draw(st.integers(1, 7))
    row = st.lists(st.integers(0, n - 1), min_size=2, max_size=2)
    delta = draw(st.lists(row, min_size=n, max_size=n))
    return delta, draw(st.sets(st.integers(0, n - 1)))


def made(table: Table) -> Machine:
    return Machine.from_table(table[0], accepting=table[1])


words = st.lists(st.integers(0, 1), max_size=12)


@few
@given(tables(), st.data())
def test_names_of_states_do_not_matter(table: Table, data: st.DataObject) -> None:
    machine = made(table)
    n = machine.num_states
    new = data.draw(st.permutations(range(n)))
    delta = np.empty_like(machine.delta)
    outputs = np.empty_like(machine.outputs)
    for q in range(n):
        delta[new[q]] = np.array(new)[machine.delta[q]]
        outputs[new[q]] = machine.outputs[q]
    renamed = Machine.from_table(delta, start=new[0], outputs=outputs)
    assert renamed == machine
    assert bytes(renamed) == bytes(machine) and hash(renamed) == hash(machine)


@few
@given(tables(), words)
def test_minimal_machine_says_the_same_and_no_smaller_one_does(
    table: Table, word: list[int]
) -> None:
    machine = made(table)
    minimal = machine.minimal()
    assert minimal.minimal() == minimal
    assert minimal.accepts(word) == machine.accepts(word)
    n = minimal.num_states
    apart = minimal.outputs[:, None] != minimal.outputs
    for _ in range(n):
        for column in minimal.delta.T:
            apart = apart | apart[np.ix_(column, column)]
    assert (apart | np.eye(n, dtype=bool)).all()


@few
@given(tables(), tables(), words)
def test_products_and_complements_are_boolean(p: Table, q: Table, word: list[int]) -> None:
    a, b = made(p), made(q)
    x, y = a.accepts(word), b.accepts(word)
    assert a.product(b).accepts(word) == (x and y)
    assert a.product(b, np.logical_or).accepts(word) == (x or y)
    assert a.product(b, np.logical_xor).accepts(word) == (x != y)
    assert a.complement().accepts(word) == (not x)


def test_states_are_numbered_breadth_first_over_the_sorted_alphabet() -> None:
    machine = Machine.from_table([[0, 2], [1, 1], [1, 0]], alphabet="ba", accepting=[1])
    assert machine.alphabet == ("a", "b")
    # start 0: a leads to old 2 (new 1), b back to 0; old 2: a to 0, b to old 1 (new 2).
    assert machine.delta.tolist() == [[1, 0], [0, 2], [2, 2]]
    assert machine.outputs.tolist() == [False, False, True]


def test_unreachable_states_are_dropped_and_the_rest_keep_their_outputs() -> None:
    machine = Machine.from_table([[0], [0], [3], [2]], start=2)
    assert machine.delta.tolist() == [[1], [0]]
    assert machine.outputs.tolist() == [2, 3]


def test_machines_are_values() -> None:
    machine = Machine.from_regex("(ab)*", "ab")
    assert machine != machine.complement()
    assert machine != Machine.from_table(machine.delta, accepting=[0], alphabet="ac")
    assert len({machine, Machine.from_regex("(ab)*", "ba")}) == 1
    with pytest.raises(ValueError, match="read-only"):
        machine.delta[0, 0] = 1
    with pytest.raises(AttributeError):
        machine.alphabet = ("x",)  # type: ignore[misc]
    table = np.array([[0, 1], [1, 0]])
    kept = Machine.from_table(table)
    table[0, 0] = 1
    assert kept.delta[0, 0] == 0


def test_a_batch_runs_as_its_words_do() -> None:
    rng = np.random.default_rng(0)
    for kind in KINDS:
        machine = random_machine(rng, 8, 3, kind)
        batch = rng.integers(0, 3, (5, 40))
        states = machine.run(batch)
        assert states.shape == (5, 40)
        for word, row in zip(batch, states, strict=True):
            state = 0
            for letter, expected in zip(word, row, strict=True):
                state = int(machine.delta[state, letter])
                assert state == expected
            assert np.array_equal(machine.run(word), row)


def test_words_come_as_strings_letters_or_numbers() -> None:
    machine = Machine.from_regex("(a|b)*ab", "ab")
    expected = [1, 2, 0]
    for word in ("abb", ["a", "b", "b"], ("a", "b", "b"), [0, 1, 1], np.array([0, 1, 1])):
        assert machine.run(word).tolist() == expected
    for nothing in ("", [], np.zeros(0, dtype=int)):
        assert machine.run(nothing).tolist() == []
        assert not machine.accepts(nothing)
    assert machine.run(np.zeros((3, 0), dtype=int)).shape == (3, 0)


def test_a_million_letters_run_in_well_under_two_seconds() -> None:
    machine = named("mod_arithmetic")
    word = np.random.default_rng(0).integers(0, 8, 10**6)
    start = time.process_time()
    states = machine.run(word)
    assert time.process_time() - start < 2.0
    assert len(states) == 10**6 and states[-1] == machine.run(word[-5:])[-1]  # the sink


def test_automata_lib_objects_are_completed() -> None:
    from automata.fa.dfa import DFA

    partial = DFA(
        states={"p", "q"},
        input_symbols={"a", "b"},
        transitions={"p": {"a": "q"}, "q": {"b": "p"}},
        initial_state="p",
        final_states={"p"},
        allow_partial=True,
    )
    assert Machine.from_dfa(partial) == Machine.from_regex("(ab)*", "ab")


@pytest.mark.parametrize(
    ("regex", "alphabet", "accepted", "rejected"),
    [
        ("(a|b){3}", "ab", ["aba"], ["", "ab", "abab"]),  # digits are counts, not letters
        ("a.c", "abc", ["aac", "abc"], ["ac"]),
        ("[ab]+c?", "abc", ["ab", "abc"], ["", "c"]),
        ("(a|b)*a(a|b)*&(a|b)*b(a|b)*", "ab", ["ab", "ba"], ["aa", ""]),
        ("", "a", [""], ["a"]),
        (r"a\.b", "ab.", ["a.b"], ["aab", "ab"]),  # a backslash makes an operator a letter
        (r"[ab\+]+\ \\", "ab+ \\", ["a+ \\"], ["a+", "a\\"]),
        (".*", "a*. ", ["", "*. a"], []),
    ],
)
def test_regular_expressions(
    regex: str, alphabet: str, accepted: list[str], rejected: list[str]
) -> None:
    machine = Machine.from_regex(regex, alphabet)
    assert all(map(machine.accepts, accepted)) and not any(map(machine.accepts, rejected))


BAD_REGEX = [
    ("(ab", "ab", r"regex '\(ab' is malformed: .*"),
    ("*a", "ab", r"regex '\*a' is malformed: .*"),
    ("a|", "ab", r"regex 'a\|' is malformed: '\|' cannot appear at the end of a statement."),
    ("a{2", "a2", r"regex 'a\{2' is malformed: '\{' has no partner"),
    ("a{3,2}", "a", r"regex .* is malformed: of the two numbers .* the first is the smaller one"),
    ("b(a|b){0}", "ab", r"regex .* repeats something no times, \{0\}: write \(\) in its place"),
    ("a{,00}", "ab", r"regex .* repeats something no times, .*"),
    ("abc", "ab", "regex 'abc' uses 'c', which is not in the alphabet 'ab'"),
    ("c{3}", "ab", r"regex 'c\{3\}' uses 'c', which is not in the alphabet 'ab'"),
    (r"\d", "ab", r"regex .* uses '0', which is not in the alphabet 'ab'.*"),
    ("a b", "ab", "regex 'a b' contains a blank.*"),
    ("a", "a\ue003", r"letter '\\ue003' cannot be used in a regex.*use from_table for it"),
    (r"a\.", "ab", r"regex .* uses '\.', which is not in the alphabet 'ab'.*"),
    ("a", "", "the alphabet is empty.*"),
    ("a", "aa", "letter 'a' is in the alphabet twice"),
    ("a{99999999}", "ab", "too large: regex .* reached 99999999, the limit is 10000.*"),
    ("((a{99}){99}){99}", "ab", "too large: regex .* the limit is 10000.*"),
    ("(a|b)*a(a|b){14}", "ab", "too large: the automaton of regex .* reached 4097.*"),
]


@pytest.mark.parametrize(("regex", "alphabet", "message"), BAD_REGEX)
def test_bad_regular_expressions(regex: str, alphabet: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Machine.from_regex(regex, alphabet)
    _assert_one_line(caught.value, message)


BAD_TABLE = [
    (dict(delta=[[0, 1], [0]]), "incomplete table: state 1 has 1 entries, state 0 has 2.*"),
    (dict(delta=[[0, 2], [0, 1]]), "state 0, letter 1 goes to 2, but the states are 0 to 1"),
    (dict(delta=np.array([[0, -1]])), "state 0, letter 1 goes to -1, but the states are 0 to 0"),
    (dict(delta=[[0, 1], [0, [1]]]), r"state 1, letter 1 goes to \[1\]; a deterministic .*"),
    (dict(delta=[[0, {0, 1}], [0, 0]]), r"state 0, letter 1 goes to \{0, 1\}; a determ.*"),
    (dict(delta=[[0, 1.0], [0, 0]]), "state 0, letter 1 goes to 1.0; a deterministic .*"),
    (dict(delta=[]), "a table is a non-empty .* got shape .*"),
    (dict(delta=[[]]), "a table is a non-empty .*"),
    (dict(delta=[0, 1]), "row 0 of the table is 0, not a list of states"),
    (dict(delta=np.zeros((2, 2))), "a table is .* integers, got shape .* of float64"),
    (dict(delta=[[0]], start=1), "start 1 is not a state; the table has states 0 to 0"),
    (dict(delta=[[0]], start=-1), "start -1 is not a state; .*"),
    (dict(delta=[[0]], accepting=[3]), r"accepting state 3 is not in 0\.\.0"),
    (dict(delta=[[0]], accepting=[True]), "accepting lists state numbers, got True; .*"),
    (dict(delta=[[0]], outputs=[1, 2]), "outputs are 1 booleans or integers, .*"),
    (dict(delta=[[0]], accepting=[0], outputs=[1]), "give accepting or outputs, not both"),
    (dict(delta=[[0, 0]], alphabet="a"), "the table has 2 columns but the alphabet has 1"),
    (dict(delta=[[0, 0]], alphabet="aa"), "letter 'a' is in the alphabet twice"),
    (dict(delta=[[0, 0]], alphabet=["a", 1]), "the alphabet .* cannot be sorted; .*"),
    (dict(delta=np.zeros((5000, 5000), dtype=np.int8)), "too large: the table's entries .*"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_TABLE)
def test_bad_tables(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Machine.from_table(**arguments)  # type: ignore[arg-type]
    _assert_one_line(caught.value, message)


def test_bad_words() -> None:
    machine = Machine.from_regex("(ab)*", "ab")
    bad = [
        ("abc", "symbol 'c' is not in the alphabet .*"),
        ([0, 2], r"letter number 2 is not in 0\.\.1; .*"),
        ([0, -1], r"letter number -1 is not in 0\.\.1; .*"),
        ([0.5], "a word is a string or integers, got float64.*"),
        ([[0, 1], [0]], ".*equal lengths.*"),
        (np.zeros((1, 1, 1), dtype=int), "a word has 1 axis and a batch 2, .*"),
    ]
    for word, message in bad:
        with pytest.raises(ValueError) as caught:
            machine.run(word)
        _assert_one_line(caught.value, message)
    with pytest.raises(ValueError, match="integer outputs"):
        named("z5").accepts([0])
    with pytest.raises(ValueError, match="equal alphabets"):
        machine.product(Machine.from_regex("a", "a"))
    with pytest.raises(ValueError, match="integer outputs; say how to combine"):
        named("z5").product(named("z5"))


def test_dot_shows_every_arrow() -> None:
    dot = Machine.from_regex("(ab)*", "ab").to_dot()
    arrows = [line.strip() for line in dot.splitlines() if "->" in line]
    assert arrows == [
        "start -> 0;",
        '0 -> 1 [label="a"];',
        '0 -> 2 [label="b"];',
        '1 -> 0 [label="b"];',
        '1 -> 2 [label="a"];',
        '2 -> 2 [label="a,b"];',
    ]
    assert dot.count("doublecircle") == 1
    assert '0 [shape=circle, label="0 / 0"]' in named("z3").to_dot()


def test_svg_says_how_to_get_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="install graphviz"):
        named("z3").to_svg()


def test_svg_is_what_dot_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    program = tmp_path / "dot"  # type: ignore[operator]
    program.write_text(
        f"#!{sys.executable}\nimport sys\nprint(sys.argv[1], len(sys.stdin.read()))\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = named("z3")
    assert machine.to_svg() == f"-Tsvg {len(machine.to_dot())}\n"


SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
def test_svg_by_graphviz_itself() -> None:
    letters = ('"', "\\", "<", "&", "é", "\\n")  # the last one is a backslash and an n
    table = [[1, 0, 0, 0, 0, 2], [2, 1, 1, 1, 1, 2], [2, 2, 2, 2, 2, 0]]
    machine = Machine.from_table(table, accepting=[1], alphabet=letters)
    root = ElementTree.fromstring(machine.to_svg())
    assert root.tag == f"{SVG}svg"
    groups = {kind: [] for kind in ("node", "edge")}
    for group in root.iter(f"{SVG}g"):
        if group.get("class") in groups:
            groups[group.get("class")].append(group)
    titles = [group.findtext(f"{SVG}title") for group in groups["node"]]
    assert sorted(titles) == ["0", "1", "2", "start"]
    rings = [len(group.findall(f"{SVG}ellipse")) for group in groups["node"]]
    assert sorted(rings) == [1, 1, 1, 2]  # the accepting state has two
    arrows = {
        group.findtext(f"{SVG}title"): "".join(group.findtext(f"{SVG}text") or "")
        for group in groups["edge"]
    }
    expected = {"start->0": ""}
    for state, row in enumerate(machine.delta.tolist()):
        for target in set(row):
            read = [a for a, end in zip(machine.alphabet, row, strict=True) if end == target]
            expected[f"{state}->{target}"] = ",".join(map(str, read))
    assert arrows == expected


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import hashlib, numpy as np\n"
        "from statetrack.automata import Machine, holonomy\n"
        "m = Machine.from_regex('(aab|bba|ab)*b?', 'ab')\n"
        "c = holonomy(m)\n"
        "arrays = [a for l in c.levels for a in (l.before, l.after, l.action, l.actions)]\n"
        "data = bytes(m) + b''.join(a.tobytes() for a in arrays)\n"
        "print(hashlib.sha256(data).hexdigest())\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    machine = Machine.from_regex("(aab|bba|ab)*b?", "ab")
    arrays = [
        a
        for level in holonomy(machine).levels
        for a in (level.before, level.after, level.action, level.actions)
    ]
    data = bytes(machine) + b"".join(a.tobytes() for a in arrays)
    assert seen == {hashlib.sha256(data).hexdigest() + "\n"}


def test_import_loads_neither_automata_lib_nor_networkx() -> None:
    code = (
        "import sys, statetrack.automata as a\n"
        "a.named('s3'); a.holonomy(a.named('t_4'))\n"
        "assert not {'automata', 'networkx'} & set(sys.modules), 'loaded too early'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_file_of_the_package_imports_torch() -> None:
    import ast
    from pathlib import Path

    import statetrack.automata

    files = sorted(Path(statetrack.automata.__file__).parent.glob("*.py"))
    assert len(files) > 10
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not any(name.split(".")[0] == "torch" for name in names), file.name


def test_missing_automata_lib_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "automata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "automata", None)
    with pytest.raises(ImportError, match=r"pip install 'statetrack\[automata\]'"):
        Machine.from_regex("a", "a")
    with pytest.raises(ImportError, match=r"pip install 'statetrack\[automata\]'"):
        Machine.from_dfa(None)


def _assert_one_line(error: ValueError, pattern: str) -> None:
    import re

    text = str(error)
    assert "\n" not in text and re.fullmatch(pattern, text), text


# -- machines people have -----------------------------------------------------------------------


def test_partial_tables_and_dicts_are_completed_with_a_sink() -> None:
    whole = Machine.from_regex("(ab)*", "ab")
    assert Machine.from_table([[1, None], [None, 0]], accepting=[0], alphabet="ab") == whole
    arrows = {"even": {"a": "odd"}, "odd": {"b": "even"}}
    assert Machine.from_dict(arrows, "even", accepting=["even"]) == whole
    numbers = Machine.from_table([[1, None], [None, 0]])
    assert numbers.says([0, 1, 1]) == [1, 0, -1]
    words = Machine.from_dict(arrows, "even")
    assert words.says("abb") == ["odd", "even", ""] and words.minimal() == words
    assert words != whole and words.output_names == ("", "even", "odd")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Machine.from_dict({"x": {"a": "x"}}, "y"), "start 'y' is not a state"),
        (lambda: Machine.from_dict({}, "y"), "a dict of dicts"),
        (lambda: Machine.from_dict({0: {"a": 0}}, 0, accepting=[1]), "accepting 1 is not a state"),
        (lambda: Machine.from_dict({0: {"a": 1}}, 0, outputs={0: 1}), "state 1 has no output"),
        (lambda: unhooked(Machine.from_mealy)({0: {"a": 0}}, 0), "a pair"),
        (lambda: Machine.from_nfa({0: {"a": "0"}}, 0, [0]), "a list of states"),
        (lambda: named("s3").reverse(), "accepting states"),
    ],
)
def test_bad_arrows(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_mealy_machines_say_what_their_arrows_say() -> None:
    """A delay by one letter, against shifting the word."""
    delay = {q: {a: (a, q) for a in "xy"} for q in "xy"}
    machine = Machine.from_mealy(delay, "x")
    word = "xyyxyx"
    assert machine.says(word) == list("x" + word[:-1])


def test_automata_with_choices_against_all_their_runs() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        arrows = {
            q: {a: np.flatnonzero(rng.random(4) < 0.3).tolist() for a in ("a", "b", "")}
            for q in range(4)
        }
        machine = Machine.from_nfa(arrows, 0, [3])
        for word in words_up_to("ab", 4):
            now = closed({0}, arrows)
            for letter in word:
                now = closed({end for q in now for end in arrows[q][letter]}, arrows)
            assert machine.accepts(word) == (3 in now)


def closed(states: set[int], arrows: dict[int, dict[str, list[int]]]) -> set[int]:
    while (more := states | {end for q in states for end in arrows[q][""]}) != states:
        states = more
    return states


def words_up_to(letters: str, length: int) -> list[str]:
    return ["".join(word) for n in range(length + 1) for word in product(letters, repeat=n)]


def test_reverse_concatenation_and_star_against_their_definitions() -> None:
    a, b = Machine.from_regex("(ab|a)*b?", "ab"), Machine.from_regex("b(a|b)", "ab")
    backwards, both, many = a.reverse(), a.concatenate(b), b.star()
    for word in words_up_to("ab", 6):
        cuts = range(len(word) + 1)
        assert backwards.accepts(word) == a.accepts(word[::-1])
        assert both.accepts(word) == any(a.accepts(word[:c]) and b.accepts(word[c:]) for c in cuts)
        pieces = [word[i : i + 2] for i in range(0, len(word), 2)]
        assert many.accepts(word) == all(b.accepts(piece) for piece in pieces)


def test_counterexamples_are_shortest_words() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        tables = [rng.integers(0, 4, (4, 2)) for _ in range(2)]
        a, b = (Machine.from_table(t, outputs=rng.integers(0, 2, 4)) for t in tables)
        found = a.counterexample(b)
        every = [word for word in words_up_to("01", 5) if differ(a, b, word)]
        assert a.equivalent(b) == (found is None)
        if every:
            assert found is not None and len(found) == len(every[0])
        if found is not None:
            assert differ(a, b, "".join(map(str, found)))


def differ(a: Machine, b: Machine, word: str) -> bool:
    def last(machine: Machine) -> int:
        return int(machine.outputs[[0, *machine.run([int(x) for x in word])][-1]])

    return last(a) != last(b)


def test_hopcroft_and_moore_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    machines = [
        Machine.from_table(rng.integers(0, 9, (9, 2)), outputs=rng.integers(0, 2, 9))
        for _ in range(50)
    ]
    by_moore = [machine.minimal() for machine in machines]
    monkeypatch.setattr("statetrack.automata.machine.MOORE_ROUNDS", 0)
    assert [machine.minimal() for machine in machines] == by_moore


def test_diagrams_are_drawn_without_graphviz() -> None:
    for machine in (Machine.from_regex("(a|b)*ab", "ab"), named("s3"), named("counter_5")):
        root = ElementTree.fromstring(machine._repr_svg_() or "")
        circles = root.findall("{http://www.w3.org/2000/svg}circle")
        accepting = int(machine.outputs.sum()) if machine.outputs.dtype == bool else 0
        assert len(circles) == machine.num_states + accepting
    assert named("s5")._repr_svg_() is None


def test_a_machine_prints_its_table() -> None:
    lines = str(Machine.from_regex("(a|b)*ab", "ab")).splitlines()
    assert lines[0].startswith("Machine(3 states") and lines[-1].split() == ["2", "yes", "1", "0"]
    assert "104 more states" in str(named("s5"))


def test_a_machine_says_what_it_is_in_a_line() -> None:
    assert repr(Machine.from_regex("a*", "a")) == "Machine(1 state over 1 letter 'a')"
    assert repr(named("z60")) == "Machine(60 states over 60 letters '01234567…')"
    door = Machine.from_dict({"shut": {"open": "ajar"}, "ajar": {"shut": "shut"}}, "shut")
    assert repr(door) == "Machine(3 states over 2 letters 'open shut')"


@pytest.mark.slow
def test_many_optional_letters() -> None:
    assert Machine.from_regex("(a?){2000}", "a").num_states == 2002


def test_regular_classes_give_their_alphabet() -> None:
    assert read("[a-c]+").alphabet == ("a", "b", "c")
    assert read("[ax-z]y*").alphabet == ("a", "x", "y", "z")
    assert read(r"[0-1]+\.[01]").alphabet == (".", "0", "1")
    for regex in ("^(aa)*", "(aa)*$"):
        with pytest.raises(ValueError, match="leave out the"):
            read(regex)
    assert Machine.from_regex(r"a{0,1}\{0\}[{0}]", "a{}0").accepts("{0}0")
    assert Machine.from_regex("a$", "a$").accepts("a$")
    assert read("[0-1]+[.+*]").alphabet == ("*", "+", ".", "0", "1")
    assert read("[(|)]*[^.] over (|).").accepts("(()|")
    assert not read("[(|)]*[^.] over (|).").accepts("().")
    for regex in ("[^a]b", r"\w+"):
        with pytest.raises(ValueError, match="--alphabet abc"):
            read(regex)
    assert Machine.from_regex("[^a]b", "abc").accepts("cb")
