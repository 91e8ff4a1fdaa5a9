"""Draws who may import whom, in docs/design/house.md, from the table in tests/test_package.py.

.venv/bin/python docs/import_graph.py
"""

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "docs" / "design" / "house.md"
BLOCK = re.compile(r"^```mermaid\n.*?^```", re.MULTILINE | re.DOTALL)


def reaches(table: dict[str, set[str]], part: str) -> set[str]:
    """All that a part may import, directly or through others."""
    return table[part].union(*(reaches(table, below) for below in table[part]))


def drawn(table: dict[str, set[str]]) -> str:
    """The table as a mermaid diagram, without the arrows that follow from others."""
    lines = ["flowchart BT"]
    for part in (part for part in table if not part.startswith("_")):
        implied = set().union(*(reaches(table, below) for below in table[part]))
        lines += [f"  {below} --> {part}" for below in sorted(table[part] - implied)]
    return "\n".join(["```mermaid", *lines, "```"])


def main() -> None:
    table = runpy.run_path(str(ROOT / "tests" / "test_package.py"))["MAY_IMPORT"]
    HOUSE.write_text(BLOCK.sub(drawn(table), HOUSE.read_text()))
    print(f"written to {HOUSE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
