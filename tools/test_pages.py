#!/usr/bin/env python3
"""Tests of pages.py: what counts as code and as a picture, and which pages are refused; and of the
front page's numbers. Run by CI."""
import contextlib
import io
import pathlib
import re
import tempfile
import unittest

import pages

ROOT = pathlib.Path(__file__).parents[1]

PAGE = """# A title

<!-- a comment,
of two lines -->
Four words are here.

```cpp
one();
![no picture](in_a_listing.svg)
```

![A picture](figures/a.svg)

```text
output
```
"""


class Pages(unittest.TestCase):
    def test_what_counts(self):
        page = pages.look_at(PAGE)
        self.assertEqual((page.lines, page.code, page.picture), (16, 2, 12))
        self.assertEqual(page.words, len("# A title Four words are here. ![A picture](a)".split()))

    def check(self, text, without_picture=()):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "01_first").mkdir()
            (root / "01_first/README.md").write_text(text, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                status = pages.main([], root, dict.fromkeys(without_picture, "a reason"))
        return status, printed.getvalue().splitlines()[-1]

    def test_rules(self):
        picture, code = "![A picture](a.svg)\n", "```cpp\n" + "code\n" * 9 + "```\n"
        readme = "01_first/README.md"
        for text, listed, said in (
                (PAGE, (), "pages: 1, nothing found"),
                (picture + code + "text\n" * 8, (), "pages: 1, nothing found"),
                (picture + code + "text\n" * 7, (), f"{readme}: 47.4% code, 45% may be"),
                ("text\n" * 59 + picture, (), "pages: 1, nothing found"),
                ("text\n" * 60 + picture, (),
                 f"{readme}: the first picture is on line 61, 60 is the last"),
                ("text\n", (), f"{readme}: no picture"),
                ("text\n", (readme,), "pages: 1, nothing found"),
                (PAGE, (readme,), f"{readme}: has a picture, and is listed in WITHOUT_PICTURE"),
                (PAGE, ("01_first/gone.md",),
                 "01_first/gone.md: listed in WITHOUT_PICTURE, and is no page")):
            with self.subTest(said):
                self.assertEqual(self.check(text, listed), (said.endswith("nothing found") is False, said))


class FrontPage(unittest.TestCase):
    def test_it_counts_each_chapters_steps_and_exercises(self):
        rows = re.findall(r"^\| (\d\d) \|.*\| ([\d +]+) steps, (\d+) exercises \|",
                          (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
        self.assertEqual(len(rows), 7)
        for chapter, steps, exercises in rows:
            with self.subTest(chapter):
                folder, = ROOT.glob(f"{chapter}_*")
                found = [path for path in folder.rglob("*.cu")
                         if re.match(r"(step|forward|backward)\d+_", path.name)]
                self.assertEqual(sum(map(int, steps.split("+"))), len(found))
                self.assertEqual(int(exercises), len([*folder.glob("exercises/*.cu")]))


if __name__ == "__main__":
    unittest.main()
