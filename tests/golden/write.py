"""Write the golden files of all cases, or of those that are named (see tests/golden)."""

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.golden.cases import CASES, runs_of
from tests.golden.figures import FOLDER, PUBLISHED, figures, published, write_report


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], metavar="NAME")
    options = parser.parse_args()
    if not options.names:
        save(PUBLISHED, published())
    for name in options.names or CASES:
        target = FOLDER / name
        target.mkdir(exist_ok=True)
        with TemporaryDirectory() as temporary:
            folder = Path(temporary)
            runs = runs_of(name, folder)
            save(target / "figures.json", figures(runs, folder))
            report = write_report(runs, folder)
            shutil.copy(report, target)


def save(file, figures):
    """Write a row a line, so that a change of one is seen as such."""
    lines = []
    for name, row in figures.items():
        pair = json.dumps({name: row}, ensure_ascii=False)
        lines.append(pair[1:-1])
    rows = ",\n".join(lines)
    file.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
