"""The Python examples of a documentation page, as modules that tests import and run."""

import re
from pathlib import Path

_DOCS = Path(__file__).parents[2] / "docs"


def write_examples(page: str, folder: Path, **untitled: str) -> None:
    """Write each Python block of *page* to *folder*, to the module named in its first line.

    Args:
        page: the path of the page in docs, without suffix, such as "how-to/celery".
        folder: where to write.
        untitled: for a block that begins with a docstring: the name of its module, and how the
            docstring begins.
    """
    text = (_DOCS / f"{page}.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        titles = {f"# {name}.py": name for name in re.findall(r"\A# (\w+)\.py$", code, re.M)}
        titles |= {f'"""{beginning}': name for name, beginning in untitled.items()}
        for beginning, name in titles.items():
            if code.startswith(beginning):
                (folder / f"{name}.py").write_text(code, encoding="utf-8")
