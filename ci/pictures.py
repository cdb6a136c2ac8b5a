"""Pictures of a report, section by section, as the README shows them.

    python ci/pictures.py [--bundle B --name NAME]

Without a bundle it is of a build that is decided by recorded times of an MI355X, and
is made here. Pictures go to `ci/pictures/NAME-SECTION.png`.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from browser import Page, browser, program

ROOT = Path(__file__).parents[1]
FOLDER = Path(__file__).parent / "pictures"
RECORDED = ROOT / "tests" / "data" / "recorded"
FILES = ("flydsl_shapes.csv", "flydsl.csv")
BUILD = (
    *("build", "--shapes", FILES[0], "--target", "mi355x"),
    *("--backends", "ATEN,TRITON,FLYDSL", "--runner", f"recorded:{FILES[1]}"),
)
# Of the bundle's chapter: its sections in this order, and those shown in the dark too.
SECTIONS = ("time", "choice", "roof", "sure", "failed", "cost", "lists")
DARK = ("choice", "roof")
# Rows of the table of lists, which is as long as there are lists.
_MOST_ROWS = 22
_MARGIN = 24
_WIDTH = 1200
_LIMIT_BYTES = 300_000


def flytune(words: Sequence[str], folder: Path) -> None:
    """Run a flytune command in a folder."""
    code = "from flytune.tuner.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *words], check=True, cwd=folder)


def main() -> None:
    """Make the bundle, its report, and the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path)
    parser.add_argument("--name", default="gfx950")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flytune-pictures-") as directory:
        folder = Path(directory)
        bundle = options.bundle and options.bundle.absolute()
        if bundle is None:
            # A picture shows the command: no path of this machine is in it.
            for name in FILES:
                shutil.copy(RECORDED / name, folder)
            bundle = folder / f"{options.name}.tar.zst"
            flytune((*BUILD, "--work", "work", "--out", bundle.name), folder)
        report = folder / "report.html"
        flytune(("report", str(bundle), "--html", str(report)), folder)
        FOLDER.mkdir(exist_ok=True)
        with browser(program()) as page:
            take(page, report, options.name)
            if page.complaints:
                sys.exit(f"error: the page complains: {page.complaints[0]}")


def take(page: Page, report: Path, name: str) -> None:
    """Take the pictures of one report."""
    page.media(prefers_color_scheme="light")
    page.open(report, width=_WIDTH)
    page.run(
        "document.querySelectorAll('#b0-table tbody tr').forEach((row, at) =>"
        f" {{ row.hidden = at >= {_MOST_ROWS}; }})"
    )
    section(page, "#b0 section", f"{name}-intro")
    for one in SECTIONS:
        section(page, f"#b0-{one}", f"{name}-{one}")
    page.media(prefers_color_scheme="dark")
    for one in DARK:
        section(page, f"#b0-{one}", f"{name}-{one}-dark")
    # A4 on its side, less its margins.
    page.size(1032, 720)
    page.media("print")
    section(page, "#b0-roof", f"{name}-print")


def section(page: Page, selector: str, name: str) -> None:
    """Write the picture of one section, with a margin.

    Raises:
        SystemExit: it is too large to be shown in a README.
    """
    box = page.box(selector)
    path = FOLDER / f"{name}.png"
    left = max(0, box["x"] - _MARGIN)
    width = box["width"] + box["x"] - left + _MARGIN
    page.picture(path, {**box, "x": left, "width": width})
    if (size := path.stat().st_size) > _LIMIT_BYTES:
        sys.exit(f"error: a picture is too large: {path}: {size} bytes")
    print(f"{path.relative_to(ROOT)}: {size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
