"""Runs the guide on length extrapolation with more steps, and draws its picture.

python docs/length_extrapolation.py      # one core, about a minute
"""

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "guide" / "length_extrapolation.md"
PICTURE = ROOT / "docs" / "images" / "length_extrapolation.png"
STEPS = 300


def main() -> None:
    torch.set_num_threads(1)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    code, count = re.subn(r"steps = \d+.*", f"steps = {STEPS}", "\n".join(blocks))
    assert count == 1, "the page sets steps once"
    code = code.replace('"loss.png"', f"{str(PICTURE)!r}, dpi=130")
    exec(compile(code, str(PAGE), "exec"), {})
    print(f"written to {PICTURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
