"""The page in which machines and their exact networks run."""

import sys
from pathlib import Path

from statetrack.cli.options import Flag

__all__ = ["playground"]


def playground(
    machine: str = "parity",
    *,
    alphabet: str | None = None,
    port: int = 0,
    no_browser: Flag = False,
    static: Path | None = None,
) -> int:
    """Watch a machine and its exact network run, in the browser.

    The page draws the machine and the compiled network, says what can track it, and steps through
    words. A small server on this machine compiles what is typed there; Ctrl-C ends it.

    Parameters
    ----------
    machine
        What to begin with: a regular expression ('(a|b)*ab'), a name (s5_points, z7,
        mod_arithmetic), or a file: a JSON table or a DOT diagram.
    alphabet
        Of a regular expression; by default its own letters.
    port
        Of the server; by default any that is free.
    no_browser
        Only print the address.
    static
        Write the page with the machines of the gallery to this .html file, or as index.html into
        this folder, and stop. It needs no server, and compiles nothing.
    """
    from statetrack.playground import Playground, entry, write_page

    first = entry(machine, alphabet)
    if static is not None:
        print(f"Playground: {write_page(static, first)}")
        return 0
    served = Playground([first], port)
    try:
        print(f"Playground: {served.address} (Ctrl-C ends it)", flush=True)
        if not no_browser:
            import webbrowser

            if not webbrowser.open(served.address):
                print("No browser was found here; open the address in one.", flush=True)
        served.serve()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        served.close()
    return 0
