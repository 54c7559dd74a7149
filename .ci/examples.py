"""Python examples of the documentation, for mypy.

python .ci/examples.py DIR    # writes each as a file of its own
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("api.md",)
_BLOCK = re.compile(r"(?ms)^```python\n(.*?)^```")


def examples() -> dict[str, str]:
    """The examples by the names of their files."""
    found: dict[str, str] = {}
    for page in PAGES:
        text = (DOCS / page).read_text("utf-8")
        for number, block in enumerate(_BLOCK.findall(text), 1):
            found[f"{Path(page).stem}_{number}.py"] = block
    return found


if __name__ == "__main__":
    for name, block in examples().items():
        Path(sys.argv[1], name).write_text(block, "utf-8")
