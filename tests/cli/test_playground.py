"""`statetrack playground`: mistakes, the address it prints, and how it ends."""

import http.client
import signal
import subprocess
import sys

import pytest

from tests.cli.words import complaint


@pytest.mark.parametrize(
    "words, says",
    [
        (["(a"], "is malformed"),
        (["partiy"], "did you mean 'parity'?"),
        (["parity", "--alphabet", "ab"], "has its own alphabet"),
        (["parity", "--port", "70000"], "port=70000 must be between 0"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in complaint(["playground", *words], capsys)


def test_it_serves_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "statetrack", "playground", "(ab)*", "--no-browser"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Playground: http://127.0.0.1:"), process.communicate()
        port = int(line.split(":")[3].split("/")[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/")
        page = connection.getresponse().read().decode()
        assert '"text":"(ab)*"' in page
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "stopped\n")
