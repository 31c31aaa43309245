"""Write the golden files of all cases, or of those that are named (see tests/golden)."""

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.cases import CASES, runs_of
from tests.golden.figures import FOLDER, PUBLISHED, Figures, figures, published, write_report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], metavar="NAME")
    names = parser.parse_args().names
    if not names:
        save(PUBLISHED, published())
    for name in names or CASES:
        target = FOLDER / name
        target.mkdir(exist_ok=True)
        with TemporaryDirectory() as folder:
            runs = runs_of(name, Path(folder))
            save(target / "figures.json", figures(runs, Path(folder)))
            shutil.copy(write_report(runs, Path(folder)), target)


def save(file: Path, found: Figures) -> None:
    """Write a row a line, so that a change of one is seen as such."""
    rows = []
    for name, row in found.items():
        pair = json.dumps({name: row}, ensure_ascii=False)
        rows.append(pair[1:-1])
    file.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
