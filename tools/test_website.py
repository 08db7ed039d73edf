import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent))

import website  # noqa: E402


class Order(unittest.TestCase):
    def test_a_chapter_s_pages_stand_as_its_readme_leads_to_them(self):
        texts = {"README.md": "[b](docs/b.md) [a](docs/a.md)", "docs/a.md": "", "docs/b.md": "",
                 "docs/map.md": "", "docs/notes/x.md": "", "docs/results/README.md": "",
                 "01_one/README.md": "[z](z.md), [a](a.md)", "01_one/a.md": "", "01_one/z.md": "",
                 "01_one/hopper.md": "", "01_one/shapes.md": "", "02_two/README.md": "", "cpu/README.md": ""}
        self.assertEqual(website.reading_order(texts), {
            "Start": ["README.md", "docs/map.md"],
            "First pass": ["01_one/README.md", "01_one/z.md", "01_one/a.md", "02_two/README.md"],
            "Second pass, Hopper": ["01_one/hopper.md", "01_one/shapes.md"],
            "Across the chapters": ["docs/b.md", "docs/a.md"],
            "Devices and interfaces": ["cpu/README.md"],
            "For maintainers": ["docs/notes/x.md", "docs/results/README.md"]})


class Copies(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root, self.stage = pathlib.Path(folder.name).resolve() / "root", pathlib.Path(folder.name) / "stage"

    def staged(self, files):
        """What becomes of these files, {path: text}."""
        for path, text in files.items():
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).write_text(text, encoding="utf-8")
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        website.Stage(self.stage, self.root).run()
        return {str(file.relative_to(self.stage)): file.read_text(encoding="utf-8")
                for file in self.stage.rglob("*") if file.is_file()}

    def test_links(self):
        page = ("[c](../01_one/README.md#x) [d](../01_one) [k](k.cu) `[no](k.cu)`\n"
                "![alt](f.svg) [e](https://x.org) [here](#x)\n```text\n[no](k.cu)\n```\n")
        copy = self.staged({"README.md": "# R", "01_one/README.md": "# One", "docs/a.md": page,
                            "docs/k.cu": "int k;\n", "docs/f.svg": "<svg/>"})
        self.assertEqual(copy["docs/a.md"], page.replace("../01_one/README.md", "../01_one/index.md")
                         .replace("(../01_one)", "(../01_one/index.md)").replace("(k.cu)", "(k.cu.md)", 1))
        self.assertIn("# docs/k.cu\n\n```{code-block} cuda\n:linenos:\n\nint k;\n```", copy["docs/k.cu.md"])
        self.assertEqual(copy["docs/f.svg"], "<svg/>")
        self.assertIn("\n01_one/index.md\n", copy["index.md"])

    def test_a_folder_and_a_page_of_one_name(self):
        copy = self.staged({"README.md": "# R", "docs/a.md": "# A\n[d](a)", "docs/a/k.cu": "int k;\n"})
        self.assertEqual(copy["docs/a.md"], "# A\n[d](a/index.md)")
        self.assertIn("# docs/a\n\n- `k.cu`", copy["docs/a/index.md"])

    def test_two_pages_of_one_name_are_refused(self):
        with self.assertRaisesRegex(website.documents.DocumentError, "both become a.md"):
            self.staged({"README.md": "# R", "a.md": "[s](a)", "a": "text"})

    def test_mathematics(self):
        copy = self.staged({"README.md": "a $`x^2`$ b\n```math\ny\n```\n```text\n$`x`$\n```\n"})
        self.assertTrue(copy["index.md"].startswith(
            "a {math}`x^2` b\n```{math}\ny\n```\n```text\n$`x`$\n```\n"), copy["index.md"])

    def test_what_is_left_of_an_earlier_copy_goes(self):
        self.stage.mkdir()
        (self.stage / "old.md").write_text("# old", encoding="utf-8")
        self.assertNotIn("old.md", self.staged({"README.md": "# R"}))


class Sites(unittest.TestCase):
    """What is wrong in the files of a site."""

    def wrong(self, **files):
        with tempfile.TemporaryDirectory() as folder:
            site = pathlib.Path(folder).resolve()
            for name, text in files.items():
                (site / name.replace("_", ".")).write_text(text, encoding="utf-8")
            return [what for _, what in website.dead_ends(site)]

    def test_links_anchors_and_files(self):
        self.assertEqual(self.wrong(a_html="<a href='b.html#there'></a><a href='https://x.org'></a>",
                                    b_html="<h1 id='there'></h1><a href='#there'></a>"), [])
        self.assertEqual(self.wrong(a_html="<a href='c.html'></a>"), ["there is no c.html"])
        self.assertEqual(self.wrong(a_html="<a href='b.html#gone'></a>", b_html="<p id='x'>"),
                         ["there is no anchor b.html#gone"])
        self.assertEqual(self.wrong(a_html="<script src='x.js'></script>"), ["there is no x.js"])

    def test_nothing_from_elsewhere(self):
        self.assertEqual(self.wrong(a_html="<link rel='stylesheet' href='https://x.org/y.css'>"),
                         ["loads https://x.org/y.css from elsewhere"])
        self.assertEqual(self.wrong(a_html="<script src='//x.org/y.js'></script>"),
                         ["loads //x.org/y.js from elsewhere"])
        self.assertEqual(self.wrong(a_css="a { src: url(https://x.org/y.woff2) }"),
                         ["loads https://x.org/y.woff2 from elsewhere"])

    def test_a_figure_needs_a_text(self):
        self.assertEqual(self.wrong(a_html="<img src='f.svg' alt='a warp'>", f_svg=""), [])
        for text in ("", "alt=''", "alt='f.svg'"):
            self.assertEqual(self.wrong(a_html=f"<img src='f.svg' {text}>", f_svg=""),
                             ["the figure f.svg has no text for those who do not see it"])


if __name__ == "__main__":
    unittest.main()
