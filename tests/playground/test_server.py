"""The local server: the page, answers to its own page, and nothing for anybody else."""

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from statetrack.playground import Playground, entry
from statetrack.playground.server import LONGEST, MAX_BODY
from statetrack.playground.worker import Compiler


class Quick(Compiler):
    """Answers at once, with what it was asked; ends like the real one."""

    ended = False

    def __call__(self, text: str, alphabet: str | None = None) -> dict[str, Any]:
        return {"entry": {"text": text, "alphabet": alphabet}}

    def end(self) -> None:
        self.ended = True


@pytest.fixture(scope="module")
def served() -> Iterator[Playground]:
    playground = Playground([entry("parity")], compiler=Quick())
    thread = threading.Thread(target=playground.serve)
    thread.start()
    yield playground
    playground.stop()
    thread.join()
    playground.close()


def ask(
    served: Playground, method: str, path: str, body: str | None = None, **headers: str | None
) -> tuple[int, Any, dict[str, str]]:
    """Status, content and headers; a header that is None is not sent."""
    sent = {"Host": f"127.0.0.1:{served.port}", "Content-Type": "application/json"}
    if method == "POST":
        own = served.address.rstrip("/")
        sent |= {"X-Statetrack": served.secret, "Origin": own}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    for name, value in (sent | named).items():
        if value is not None:
            connection.putheader(name, value)
    if body is not None and "Content-Length" not in named:
        connection.putheader("Content-Length", str(len(body.encode())))
    connection.endheaders(None if body is None else body.encode())
    response = connection.getresponse()
    content = response.read().decode()
    connection.close()
    return response.status, content, dict(response.getheaders())


QUESTION = json.dumps({"machine": "(ab)*", "alphabet": None})


def test_the_page_is_given_with_its_policy(served: Playground) -> None:
    status, content, headers = ask(served, "GET", "/")
    assert status == 200 and served.secret in content
    assert content.encode() == served.page()
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert headers["Cache-Control"] == "no-store" and "Python" not in headers["Server"]
    assert "Access-Control-Allow-Origin" not in headers


def test_its_own_page_gets_an_answer(served: Playground) -> None:
    status, content, _ = ask(served, "POST", "/compile", QUESTION)
    assert (status, json.loads(content)) == (200, {"entry": {"text": "(ab)*", "alphabet": None}})
    status, _, _ = ask(
        served, "POST", "/compile", QUESTION, Host=f"localhost:{served.port}", Origin=None
    )
    assert status == 200


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "", None])
def test_a_name_bent_to_this_address_gets_nothing(
    served: Playground, method: str, host: str | None
) -> None:
    path = "/" if method == "GET" else "/compile"
    body = QUESTION if method == "POST" else None
    status, content, _ = ask(served, method, path, body, Host=host)
    assert status == 403 and served.secret not in content


@pytest.mark.parametrize(
    "wrong",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"X_Statetrack": None},
        {"X_Statetrack": "guess"},
        {"X_Statetrack": "gu\u00e9ss"},
    ],
    ids=str,
)
def test_other_pages_get_nothing(served: Playground, wrong: dict[str, str | None]) -> None:
    status, content, _ = ask(served, "POST", "/compile", QUESTION, **wrong)
    assert status == 403
    assert json.loads(content)["error"] == "questions come from the page of this server"


@pytest.mark.parametrize("path", ["/index.html", "/../etc/passwd", "/compile", "/?x"])
def test_there_is_one_page(served: Playground, path: str) -> None:
    assert ask(served, "GET", path)[0] == 404


@pytest.mark.parametrize(
    "body, headers, status",
    [
        ("x" * (MAX_BODY + 1), {}, 413),
        (QUESTION, {"Content_Length": None}, 411),
        (QUESTION, {"Content_Length": "-1"}, 411),
        ("no json", {}, 400),
        ("[" * 4000, {}, 400),
        ("[]", {}, 400),
        (json.dumps({"machine": "a"}), {}, 400),
        (json.dumps({"machine": 3, "alphabet": None}), {}, 400),
        (json.dumps({"machine": "a", "alphabet": None, "more": 1}), {}, 400),
    ],
)
def test_bad_questions_are_refused(
    served: Playground, body: str, headers: dict[str, str | None], status: int
) -> None:
    got, content, _ = ask(served, "POST", "/compile", body, **headers)
    assert got == status and json.loads(content).keys() == {"error"}


def test_a_long_expression_is_refused_in_a_line(served: Playground) -> None:
    long = json.dumps({"machine": "a" * (LONGEST + 1), "alphabet": None})
    status, content, _ = ask(served, "POST", "/compile", long)
    assert status == 200 and "at most 1000 letters" in json.loads(content)["error"]


def test_one_machine_at_a_time(served: Playground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statetrack.playground.server.PATIENCE", 0.01)
    with served._busy:
        status, answered = served.answer({"machine": "a", "alphabet": None})
    assert status == 200 and "another machine is being compiled" in answered["error"]
    assert "entry" in served.answer({"machine": "a", "alphabet": None})[1]


def test_it_listens_on_the_loopback_address_alone(served: Playground) -> None:
    assert served._server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_or_none_is_a_mistake(served: Playground) -> None:
    with pytest.raises(ValueError, match=f"port {served.port} cannot be used: .* leave --port out"):
        Playground([], served.port)
    with pytest.raises(ValueError, match="port=70000 must be between 0"):
        Playground([], 70000)


def test_closing_ends_what_is_being_compiled() -> None:
    quick = Quick()
    Playground([entry("parity")], compiler=quick).close()
    assert quick.ended
