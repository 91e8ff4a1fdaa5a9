"""The page in a real browser: its runtime against the library, and what a person does."""

import json
import runpy
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from statetrack.automata import read
from statetrack.compiler import json_of_program, program_of_json
from statetrack.playground import Playground, entry
from tests.playground import programs

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "src/statetrack/playground/runtime.js"
Open = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any, static_page: Path) -> Iterator[Open]:
    """Opens the static page; the test fails if it logs anything or asks anybody."""
    contexts: list[Any] = []
    said: list[str] = []
    asked: list[str] = []

    def opened(
        address: str = "", *, hash: str = "", width: int = 1400, scheme: str = "light", **more: Any
    ) -> Any:
        options = {"reduced_motion": "reduce", **more}
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **options
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto((address or static_page.as_uri()) + hash)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    mine = ("file:", "data:", "blob:", "http://127.0.0.1:")
    assert [url for url in asked if not url.startswith(mine)] == []


@pytest.fixture(scope="module")
def served() -> Iterator[Playground]:
    """The real server with the real compiler."""
    playground = Playground([entry("parity")])
    thread = threading.Thread(target=playground.serve)
    thread.start()
    yield playground
    playground.stop()
    thread.join()
    playground.close()


def link(machine: str, **more: object) -> str:
    parts = {"m": machine, **more}
    return "#" + "&".join(f"{key}={quote(str(value))}" for key, value in parts.items())


def strip(page: Any, row: str) -> list[str]:
    """What a row of the word's strip says; the empty places are left out."""
    found: list[str] = page.locator(f"#strip .cell:not(.ghost) .{row}").all_inner_texts()
    return found


def wait_for(page: Any, selector: str, text: str) -> None:
    """Waits until an element says so."""
    from playwright.sync_api import expect

    expect(page.locator(selector)).to_have_text(text, timeout=60_000)


def lit(page: Any) -> str:
    """The state that the diagram lights."""
    text: str = page.locator("#diagram .node.on .name").text_content()
    return text


# -- the runtime against the library ------------------------------------------------------------

SIZES = pytest.mark.parametrize(
    "least, most", [(2, 5), pytest.param(6, 61, marks=pytest.mark.slow)], ids=["small", "large"]
)
ASKED = """(questions) => questions.map(({ program, word }) => {
  const { states, layers } = runtime.run(program, word);
  return { states, layers: layers.map(({ symbols, labels, h }) => ({ symbols, labels, h })) };
})"""


def check_runs(answers: list[dict[str, Any]], cases: list[Any]) -> None:
    for (name, program, word), answer in zip(cases, answers, strict=True):
        expected = programs.expected(program, word)
        assert answer["states"] == expected["states"] == program.machine.run(word).tolist(), name
        for got, wanted in zip(answer["layers"], expected["layers"], strict=True):
            assert got["symbols"] == wanted["symbols"] and got["labels"] == wanted["labels"], name
            if program.exact:  # no sum in an exact program rounds, so the order does not matter
                assert got["h"] == wanted["h"], name
            else:
                assert np.allclose(got["h"], wanted["h"], rtol=0, atol=1e-12), name


@SIZES
def test_the_runtime_does_what_the_library_does(open_page: Open, least: int, most: int) -> None:
    """Every layer's symbols, labels and state, on the shared table of machines."""
    cases = programs.table(least, most)
    assert len(cases) > 30
    questions = [programs.question(program, word) for _, program, word in cases]
    check_runs(open_page().evaluate(ASKED, questions), cases)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node here")
def test_the_runtime_runs_in_node_too(tmp_path: Path) -> None:
    cases = programs.table(2, 5)
    questions = [programs.question(program, word) for _, program, word in cases]
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    script = (
        f"const runtime = require({json.dumps(str(RUNTIME))});"
        "const questions = JSON.parse(require('fs').readFileSync('questions.json'));"
        f"console.log(JSON.stringify(({ASKED})(questions)));"
    )
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check_runs(json.loads(done.stdout), cases)


@SIZES
def test_a_closed_range_is_what_the_page_says_it_is(open_page: Open, least: int, most: int) -> None:
    """A with beta at most 1 - low and a at least low, and its eigenvalues, against numpy."""
    pairs = programs.transitions(least, most)[::3]
    cases = [(*pair, low) for pair in pairs for low in programs.LOWS]
    layers = [_layer_json(layer) for layer, _, _ in cases]
    asked = [
        {"layer": written, "symbol": symbol, "low": low}
        for written, (_, symbol, low) in zip(layers, cases, strict=True)
    ]
    answers = open_page().evaluate(
        """(asked) => asked.map(({ layer, symbol, low }) => {
          const matrix = runtime.transition(layer, symbol, low);
          return { matrix, eigenvalues: runtime.eigenvalues(matrix) };
        })""",
        asked,
    )
    for (layer, symbol, low), answer in zip(cases, answers, strict=True):
        expected = programs.closed_transition(layer, symbol, low)
        assert np.allclose(answer["matrix"], expected, rtol=0, atol=1e-12)
        values = np.linalg.eigvals(np.array(answer["matrix"]))
        # where eigenvalues coincide they move by the root of a rounding error
        assert programs.apart(answer["eigenvalues"], values) < 1e-4
        if low == -1:
            assert np.array_equal(np.array(answer["matrix"]), layer.transition(symbol)[0]) or (
                np.allclose(answer["matrix"], layer.transition(symbol)[0], rtol=0, atol=1e-15)
            )


def _layer_json(layer: Any) -> Any:
    from statetrack.compiler.program_json import _json_of_layer

    return _json_of_layer(layer)


def test_eigenvalues_of_any_matrix(open_page: Open) -> None:
    rng = np.random.default_rng(0)
    matrices = [rng.normal(size=(n, n)) for n in (1, 2, 3, 5, 9, 16) for _ in range(5)]
    found = open_page().evaluate(
        "(all) => all.map(runtime.eigenvalues)", [m.tolist() for m in matrices]
    )
    for matrix, values in zip(matrices, found, strict=True):
        assert programs.apart(values, np.linalg.eigvals(matrix)) < 1e-9


@pytest.mark.parametrize("low", [-1.0, -0.5, -0.25, 0.0])
def test_parity_dies_as_the_range_closes(open_page: Open, low: float) -> None:
    """After n ones the lead is |low|^n of the full one, and read while that is at least 1/256."""
    page = open_page(hash=link("parity", w="1" * 20, k="diagonal", t=20, low=low))
    readable = sum(abs(low) ** n >= 1 / 256 for n in range(1, 21))
    expected = [str(n % 2) if n <= readable else "?" for n in range(1, 21)]
    assert strip(page, "network") == expected
    assert strip(page, "machine") == [str(n % 2) for n in range(1, 21)]
    assert page.locator("#strip .network.wrong").count() == 20 - readable
    line = page.inner_text("#range-line")
    assert ("all 20 letters right" if readable == 20 else f"right for {readable} letter") in line
    signal = page.evaluate("(p) => runtime.compare(p[0], p[1], p[2]).signal", _parity(low))
    assert np.allclose(signal, [abs(low) ** n for n in range(1, 21)], rtol=1e-12)


def _parity(low: float) -> list[Any]:
    from statetrack.compiler import compile_program

    return [json_of_program(compile_program(read("parity"))), [1] * 20, low]


# -- what a person does -------------------------------------------------------------------------


def test_stepping_moves_the_machine_and_the_network(open_page: Open) -> None:
    page = open_page(hash=link("(a|b)*ab", w="aabab", t=0))
    states = [str(q) for q in read("(a|b)*ab").run("aabab")]
    assert lit(page) == "0" and page.locator("#back").is_disabled()
    for t, state in enumerate(states):
        page.click("#step")
        assert lit(page) == state
        assert strip(page, "machine")[t] == strip(page, "network")[t] == state
        assert page.locator("#strip .cell.here").count() == 1
        assert page.inner_text("#read") == f"{t + 1} of 5"
        assert f"state {state}" in page.inner_text("#answer")
    assert "which accepts" in page.inner_text("#answer")
    assert page.locator("#step").is_disabled()
    page.click("#back")
    assert lit(page) == states[3]
    page.click("#to-start")
    assert lit(page) == "0"
    page.locator("#position").fill("4")
    assert lit(page) == states[3]


def test_keys_do_the_same(open_page: Open) -> None:
    page = open_page(hash=link("z3", w="1212", t=0))
    page.locator("body").press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#read") == "2 of 4" and lit(page) == "0"
    page.keyboard.press("ArrowLeft")
    assert lit(page) == "1"
    page.keyboard.press("Home")
    assert page.inner_text("#read") == "0 of 4"
    assert "At the start" in page.inner_text("#said")
    page.focus("#word")
    page.keyboard.press("ArrowRight")  # moves in the text, not in time
    assert page.inner_text("#read") == "0 of 4"


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_playing_reads_the_whole_word(open_page: Open, motion: str) -> None:
    page = open_page(hash=link("s3", w="1 2 3 4", t=0), reduced_motion=motion)
    page.select_option("#speed", "350")
    page.click("#play")
    assert page.inner_text("#play") == "Pause"
    wait_for(page, "#read", "4 of 4")
    wait_for(page, "#play-name", "Play")
    assert lit(page) == str(read("s3").run([1, 2, 3, 4])[-1])
    assert page.locator(".layer.busy").count() == 0


def test_motion_goes_through_the_factors_and_can_be_stopped(open_page: Open) -> None:
    page = open_page(hash=link("s3", w="3 3", t=0), reduced_motion="no-preference")
    page.select_option("#speed", "1800")
    page.click("#step")
    page.wait_for_selector(".factors li.on")
    assert page.inner_text("#answer") == "The network is reading …"
    assert page.locator(".layer.busy").count() == 1
    page.click("#back")
    assert page.inner_text("#read") == "0 of 2" and page.locator(".layer.busy").count() == 0


def test_a_word_is_typed(open_page: Open) -> None:
    page = open_page(hash=link("(a|b)*ab"))
    page.fill("#word", "abba b")
    assert strip(page, "letter") == list("abbab")
    assert strip(page, "network") == [str(q) for q in read("(a|b)*ab").run("abbab")]
    page.fill("#word", "abx")
    assert "“x” is no letter of this machine. Its letters: a b" in page.inner_text("#word-note")
    assert page.get_attribute("#word", "aria-invalid") == "true"
    assert strip(page, "letter") == list("abbab")
    page.fill("#word", "a" * 300)
    assert len(strip(page, "letter")) == 200 and "first 200" in page.inner_text("#word-note")
    page.fill("#word", "")
    assert strip(page, "letter") == [] and page.inner_text("#read") == "0 of 0"


def test_a_word_is_painted(open_page: Open) -> None:
    page = open_page(hash=link("(a|b)*ab", w="aaaa", t=1))
    page.get_by_role("radio", name="letter b").check(force=True)
    boxes = [cell.bounding_box() for cell in page.locator("#strip .cell").all()]
    middle = [(box["x"] + box["width"] / 2, box["y"] + 15) for box in boxes]
    page.mouse.move(*middle[1])
    page.mouse.down()
    page.mouse.move(*middle[2])
    page.mouse.up()
    assert page.input_value("#word") == "abba"
    page.mouse.move(*middle[3])  # only while the button is held
    assert page.input_value("#word") == "abba"
    page.mouse.click(*middle[5])  # the second empty place
    assert page.input_value("#word") == "abbabb"
    assert strip(page, "machine") == [str(q) for q in read("(a|b)*ab").run("abbabb")]
    page.locator("#strip .cell").nth(0).focus()
    page.keyboard.press("b")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    assert page.input_value("#word") == "bbabb"
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert page.input_value("#word") == "bbabb" + "b" * 3


def test_a_machine_is_picked_and_a_method(open_page: Open) -> None:
    page = open_page()
    assert page.inner_text("#name") == "Parity"
    page.select_option("#gallery", "z5")
    assert page.inner_text("#name") == "Sum modulo 5"
    assert page.locator(".layer").count() == 1
    page.get_by_role("radio", name="reflections").check(force=True)
    assert page.locator(".layer").count() == 2
    assert "Not exact" in page.inner_text("#why")
    assert page.locator(".layer .mirror").count() == 1  # in the plane; layer 1 is a number
    page.get_by_role("radio", name="dense").check(force=True)
    assert "no range to close" in page.inner_text("#range-note")


def test_verdicts_are_coloured_and_said(open_page: Open) -> None:
    page = open_page(hash=link("z3"))
    shown = {
        item.locator("h3").inner_text().split(" ", 2)[2]: item.get_attribute("class")
        for item in page.locator("#families li").all()
    }
    known = {one["family"]: one["answer"] for one in entry("z3")["families"]}
    assert shown == known
    assert {"can", "cannot"} <= set(known.values())
    assert "theorem 1 of arXiv:2411.12537" in page.inner_text("#families")


@pytest.mark.parametrize(
    "text, kind",
    [("parity", ".vector"), ("(a|b)*ab", ".unit"), ("s3", "polygon"), ("z60", "rect.bar")],
)
def test_states_are_drawn_by_their_dimension(open_page: Open, text: str, kind: str) -> None:
    page = open_page(hash=link(text, t=2))
    assert page.locator(f".layer figure:first-child svg {kind}").count() >= 1
    assert page.locator(".layer .eigen").count() >= 1


def test_closing_slowly_ends_at_nought(open_page: Open) -> None:
    page = open_page(hash=link("parity", w="1011"))
    page.click("#close-slowly")
    wait_for(page, "#low-value", "0")
    assert len(strip(page, "letter")) == 16 and strip(page, "network")[0] == "?"
    assert "No program with eigenvalues in [0, 1]" in page.inner_text("#range-note")
    page.click("#reopen")
    assert page.locator("#strip .network.wrong").count() == 0


def test_a_star_free_machine_says_which_program_survives(open_page: Open) -> None:
    page = open_page(hash=link("(a|b)*aba", low=0, t=5))
    assert page.locator("#strip .network.wrong").count() > 0
    assert "method diagonal has a program in [0, 1]" in page.inner_text("#range-note")
    page.get_by_role("radio", name="diagonal").check(force=True)
    assert page.locator("#strip .network.wrong").count() == 0


def test_a_link_brings_back_what_was_shown(open_page: Open) -> None:
    page = open_page()
    page.select_option("#gallery", "s3")
    page.fill("#word", "145")
    page.locator("#word").blur()
    page.click("#step")
    page.locator("#low").fill("-0.5")
    address = page.evaluate("location.hash")
    again = open_page(hash=address)
    assert again.inner_text("#name") == "S3"
    assert again.input_value("#word") == "145"
    assert again.input_value("#low") == "-0.5"
    assert again.inner_text("#read") == page.inner_text("#read")
    assert strip(again, "network") == strip(page, "network")


def test_the_program_is_saved_as_the_library_reads_it(open_page: Open) -> None:
    page = open_page(hash=link("cerny_4"))
    with page.expect_download() as caught:
        page.click("#save")
    assert caught.value.suggested_filename == "program-cascade.json"
    saved = json.loads(Path(caught.value.path()).read_text())
    program = program_of_json(saved)
    assert program.run("abaab").tolist() == read("cerny_4").run("abaab").tolist()


# -- new expressions, and what nobody should type -----------------------------------------------


def test_new_expressions_are_compiled_by_the_server(open_page: Open, served: Playground) -> None:
    page = open_page(served.address)
    page.fill("#machine", "(abc)*")
    page.press("#machine", "Enter")
    wait_for(page, "#name", "(abc)*")
    assert page.locator("#diagram .node").count() == 4
    assert page.inner_text("#message") == ""
    page.fill("#machine", "(ab")
    page.click("text=Compile")
    page.wait_for_selector("#message.wrong")
    with pytest.raises(ValueError) as caught:
        read("(ab")
    assert page.inner_text("#message") == str(caught.value)
    assert page.inner_text("#name") == "(abc)*"
    page.fill("#machine", "(aa)*")
    page.fill("#alphabet", "ab")
    page.click("text=Compile")
    wait_for(page, "#name", "(aa)*")
    assert page.locator("#diagram .node").count() == 3
    assert page.evaluate("location.hash").find("a=ab") > 0


def test_the_static_page_says_how_to_compile(open_page: Open) -> None:
    page = open_page()
    page.fill("#machine", "(it's)*")
    page.click("text=Compile")
    said = page.inner_text("#message")
    assert "holds 30 machines and compiles nothing" in said
    assert said.endswith(r"statetrack playground '(it'\''s)*'")


HOSTILE = [
    "<img src=x onerror=window.hacked=1>",
    "<svg onload=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "javascript:window.hacked=1",
    "${window.hacked=1}",
    "'\"><iframe srcdoc='<script>parent.hacked=1</script>'>",
    "__proto__",
]


@pytest.mark.parametrize("live", [False, True], ids=["static", "live"])
def test_hostile_text_stays_text(open_page: Open, served: Playground, live: bool) -> None:
    for text in HOSTILE[:3] if live else HOSTILE:
        page = open_page(served.address if live else "")
        page.fill("#machine", text)
        page.click("text=Compile")
        if live and " " not in text:  # letters like any others
            wait_for(page, "#name", text)
        else:
            page.wait_for_selector("#message.wrong")
        page.wait_for_timeout(50)
        page.fill("#word", text)
        assert "is no letter" in page.inner_text("#word-note")
        made = "document.querySelectorAll('img, iframe, main script, [onload], [onerror]').length"
        assert page.evaluate(f"[window.hacked ?? null, {made}]") == [None, 0]
        page.close()


def test_a_late_answer_does_not_replace_a_newer_one(open_page: Open, served: Playground) -> None:
    page = open_page(served.address)
    page.fill("#machine", "(abcd)*")
    page.click("text=Compile")
    page.fill("#machine", "")
    page.click("text=Compile")
    assert page.inner_text("#message").startswith("Type a regular expression")
    with served._busy:  # the first one has been compiled
        page.wait_for_timeout(300)
    assert page.inner_text("#message").startswith("Type a regular expression")
    assert page.inner_text("#name") == "Parity"


def test_a_hostile_link_stays_text(open_page: Open) -> None:
    for text in HOSTILE:
        page = open_page(hash=link(text, w=text, k=text, t=text, low=text, a=text))
        page.wait_for_selector("#message.wrong")
        assert page.evaluate("window.hacked ?? null") is None
        page.close()
    page = open_page(hash=link("parity", w="01x", k="none", t="1e9", low="-7"))
    assert page.inner_text("#read") == "2 of 2" and page.input_value("#low") == "-1"


def test_hostile_letters_are_drawn_as_text(open_page: Open, served: Playground) -> None:
    page = open_page(served.address)
    page.fill("#machine", "(<|>|\"|'|/|=)*<")
    page.click("text=Compile")
    wait_for(page, "#name", "(<|>|\"|'|/|=)*<")
    assert page.locator("#brushes .brush").all_inner_texts() == sorted("<>\"'/=")


# -- how it looks -------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", ["(aa)*", "mod_arithmetic", "z60"])
def test_it_fits_a_narrow_phone(open_page: Open, machine: str) -> None:
    page = open_page(hash=link(machine, t=4), width=320)
    assert page.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_fits_and_axe_finds_nothing_serious(open_page: Open, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    Image = pytest.importorskip("PIL.Image")
    for machine, more in (("parity", {"low": -0.4}), ("mod_arithmetic", {}), ("z7", {})):
        page = open_page(hash=link(machine, t=4, **more), width=width, scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        told = [(one["id"], one["nodes"][0]["html"], one["nodes"][0]["any"]) for one in serious]
        assert told == []
        picture = np.asarray(Image.open(BytesIO(page.screenshot())).convert("L"))
        assert picture.std() > 5 and len(np.unique(picture)) > 50
        ground = picture[0, 0]
        assert (ground > 200) == (scheme == "light")


def test_the_controls_stay_in_sight(open_page: Open) -> None:
    page = open_page(hash=link("mod_arithmetic", t=3), width=400)
    page.locator(".layer").last.scroll_into_view_if_needed()
    box = page.locator("#dock").bounding_box()
    assert 0 <= box["y"] < 20
    page.click("#step")
    assert page.inner_text("#read") == "4 of 9"


def test_trained_eigenvalues_stand_beside_the_exact_ones(open_page: Open) -> None:
    page = open_page(hash=link("s3"))
    assert page.locator("#trained figure").count() >= 2
    assert page.locator("#trained .exact").count() == 2 * page.locator("#trained figure").count()
    assert page.locator("#trained .below").count() > 0
    page.click("#open-parity")
    assert page.inner_text("#name") == "Parity"


def test_the_pictures_of_the_guide_can_be_taken(
    browser: Any, static_page: Path, tmp_path: Path
) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "playground_pictures.py"))
    Image = pytest.importorskip("PIL.Image")
    for picture in script["shoot"](browser, static_page, tmp_path):
        committed = ROOT / "docs" / "images" / picture.name
        with Image.open(committed) as kept, Image.open(picture) as taken:
            assert taken.size == kept.size
            assert np.asarray(taken.convert("L")).std() > 10
