"""Looks at how the walkthroughs read: how much of a page is code, and where its first picture is.

    tools/pages            prints a line for each page of the chapters

    words     outside of listings
    code      lines in listings, as a share of the page's lines. Output and commands to type, which
              stand in ```text and ```sh, do not count.
    picture   the line of the first one

A page has at most 45 % code: of a longer kernel it shows what is new, and links to the rest. Its
first picture stands in its first 60 lines. WITHOUT_PICTURE in tools/pages.py lists the pages that
need none, with their reasons. The exit code is 1 if a page breaks one of the rules, or if a page is
listed that has a picture.
"""
import pathlib
import re
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_CODE, LAST_PICTURE_LINE = 0.45, 60
WITHOUT_PICTURE: dict[str, str] = {
    "05_flash_attention/options.md": "to look things up: each option is a table or a paragraph",
}
NO_CODE = ("text", "sh")
FENCE = re.compile(r"\s*```(\w*)")
PICTURE = re.compile(r"!\[|<img\b")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


class Page(NamedTuple):
    lines: int
    words: int
    code: int
    picture: int | None  # its line

    @property
    def share(self):
        return self.code / self.lines


def look_at(text):
    lines = text.rstrip("\n").split("\n")
    listing, code, picture, prose = None, 0, None, []
    for number, line in enumerate(lines, 1):
        if found := FENCE.match(line):
            listing = found[1] if listing is None else None
        elif listing is not None:
            code += listing not in NO_CODE
        else:
            prose.append(line)
            if picture is None and PICTURE.search(line):
                picture = number
    return Page(len(lines), len(COMMENT.sub("", "\n".join(prose)).split()), code, picture)


def complaints(path, page, without_picture):
    if page.share > MOST_CODE:
        yield f"{path}: {page.share:.1%} code, {MOST_CODE:.0%} may be"
    if path in without_picture:
        if page.picture:
            yield f"{path}: has a picture, and is listed in WITHOUT_PICTURE"
    elif page.picture is None:
        yield f"{path}: no picture"
    elif page.picture > LAST_PICTURE_LINE:
        yield f"{path}: the first picture is on line {page.picture}, {LAST_PICTURE_LINE} is the last"


def main(arguments, root=ROOT, without_picture=None):
    if arguments:
        print(__doc__.strip())
        return 0 if arguments in (["-h"], ["--help"]) else 2
    without_picture = WITHOUT_PICTURE if without_picture is None else without_picture
    pages = {str(file.relative_to(root)): look_at(file.read_text(encoding="utf-8"))
             for file in sorted(root.glob("[0-9][0-9]_*/*.md"))}
    wrong = [f"{path}: listed in WITHOUT_PICTURE, and is no page"
             for path in sorted(set(without_picture) - set(pages))]
    print(f"{'':<36}{'lines':>7}{'words':>7}{'code':>6}{'picture':>9}")
    for path, page in pages.items():
        print(f"{path:<36}{page.lines:>7}{page.words:>7}{page.share:>6.0%}{page.picture or '–':>9}")
        wrong += complaints(path, page, without_picture)
    if not pages:
        wrong.append("there is no page")
    print("\n".join(wrong) or f"pages: {len(pages)}, nothing found")
    return 1 if wrong else 0
