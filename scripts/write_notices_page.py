"""Write the table of codes in docs/reference/notices.md anew, from the registry."""

from pathlib import Path

from wardround.core.notices import reference

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "notices.md"

if __name__ == "__main__":
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    mark = next(number for number, line in enumerate(lines) if line.startswith("<!-- generated"))
    PAGE.write_text("".join(lines[: mark + 1]) + "\n" + reference(), encoding="utf-8")
