"""Builds the project's pages into a site, which needs no server and loads nothing from elsewhere.

    tools/site            builds build/site; begin at build/site/index.html
    tools/site --check    builds it, and opens every page in a browser: links, console, mathematics,
                          figures, search, light and dark, the width of a phone

The pages are those that a forge shows. Sphinx reads them from a copy in which a README.md is an
index.md and a link to a source file leads to a page with its text. Mathematics is written as forges
take it: a fence ```math, or $`…`$ in a line. KaTeX is Debian's, fonts are the reader's own.
"""
import html.parser
import os
import pathlib
import re
import shutil
import sys
import time
import urllib.parse

import documents

ROOT = pathlib.Path(__file__).parents[1]
FILES = ROOT / "tools/site_files"
KATEX = pathlib.Path("/usr/share/javascript/katex")

# The parts of the site and which pages they have, in reading order. A page is in the first part
# that takes it.
PARTS = {
    "Start": r"README\.md|docs/map\.md",
    "Second pass, Hopper": r"\d\d_\w+/((\w+_)?hopper|eight_bits|shapes)\.md",
    "First pass": r"\d\d_\w+/\w+\.md",
    "For maintainers": r"CONTRIBUTING\.md|docs/(notes|results)/\w+\.md",
    "Across the chapters": r"docs/.*\.md",
    "Devices and interfaces": r".*\.md",
}
READ = ["Start", "First pass", "Second pass, Hopper", "Across the chapters",
        "Devices and interfaces", "For maintainers"]
LINK = re.compile(r"\]\((?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]+)?\)")
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1")
LEXERS = {".cu": "cuda", ".cuh": "cuda", ".cpp": "cpp", ".hpp": "cpp", ".h": "c", ".c": "c",
          ".inc": "cpp", ".py": "python", ".sh": "bash", ".json": "json", ".ipynb": "json"}


# ---- Which pages, and in what order ----
def reading_order(texts):
    """{part: pages}, for texts {path: text}. A chapter's pages, and those across chapters, stand in
    the order in which its README.md, or the front page, leads to them."""
    order = {part: [] for part in READ}
    for page in sorted(texts, key=lambda page: place(page, texts)):
        part = next(part for part, pattern in PARTS.items() if re.fullmatch(pattern, page))
        order[part].append(page)
    return order


def place(page, texts):
    folder = page.split("/")[0] + "/"
    start = folder + "README.md" if folder + "README.md" in texts else "README.md"
    if page in (start, "README.md"):
        return folder if page != "README.md" else "", 0, page
    base = os.path.dirname(start)
    linked = [os.path.normpath(os.path.join(base, link["path"])) for link in LINK.finditer(texts[start])]
    return folder, 1 + (linked.index(page) if page in linked else len(linked)), page


# ---- The copy that Sphinx reads ----
def staged(page):
    """The path in the copy: a README.md is its folder's index."""
    return re.sub(r"README\.md$", "index.md", page)


class Stage:
    def __init__(self, folder, root=ROOT):
        self.folder, self.root = folder, root
        project = documents.Project(root)
        self.texts = {page: project.read(page) for page in project.pages()}
        self.sources = set()  # linked files that are no pages, each of which gets a page

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")

    def link(self, page, found):
        """A link as the copy has it."""
        target = os.path.normpath(os.path.join(os.path.dirname(page), found["path"]))
        file = self.root / target
        if f"{target}/README.md" in self.texts:
            target = f"{target}/README.md"
        if target not in self.texts:
            if found["path"].endswith((".svg", ".png")):
                (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, self.folder / target)
                return found[0]
            if not file.exists():
                return found[0]  # Sphinx says so
            self.sources.add(target)
            target = self.page_of(target)
        return f"]({os.path.relpath(staged(target), os.path.dirname(page) or '.')}{found['anchor'] or ''})"

    def page(self, page, text):
        lines = text.split("\n")
        for number, line in documents.prose(lines):
            line = re.sub(r"\$`([^`]+)`\$", r"{math}`\1`", line)
            # Links in code are no links.
            code = []
            line = CODE.sub(lambda found: code.append(found[0]) or f"\0{len(code) - 1}\0", line)
            line = LINK.sub(lambda found: self.link(page, found), line)
            lines[number - 1] = re.sub("\0(\\d+)\0", lambda found: code[int(found[1])], line)
        return re.sub(r"^(\s*)```math$", r"\1```{math}", "\n".join(lines), flags=re.MULTILINE)

    def page_of(self, path):
        """The page of a source. That of a folder stands in it: beside it may be a page of its name."""
        return path + ("/index.md" if (self.root / path).is_dir() else ".md")

    def source(self, path):
        file = self.root / path
        if file.is_dir():
            names = "\n".join(f"- `{each.name}`" for each in sorted(file.iterdir()))
            return f"---\norphan: true\n---\n# {path}\n\n{names}\n"
        lines = documents.fenced(file.read_text(encoding="utf-8").rstrip("\n").split("\n"), "")
        lines[0] += "{code-block} " + LEXERS.get(file.suffix, "text")
        return "\n".join(["---", "orphan: true", "---", f"# {path}", "", lines[0], ":linenos:", "",
                          *lines[1:], ""])

    def run(self):
        order = reading_order(self.texts)
        written = {}
        for page, text in self.texts.items():
            written[staged(page)] = self.page(page, text)
        for part, pages in order.items():
            listed = "\n".join(staged(page) for page in pages if page != "README.md")
            written["index.md"] += f"\n```{{toctree}}\n:hidden:\n:caption: {part}\n\n{listed}\n```\n"
        for path in sorted(self.sources):
            page = self.page_of(path)
            if page in written:
                raise documents.DocumentError(f"{path} and a page both become {page}")
            written[page] = self.source(path)
        for path, text in written.items():
            self.write(path, text)
        for file in self.folder.rglob("*.md"):
            if str(file.relative_to(self.folder)) not in written:
                file.unlink()
        return order


# ---- Sphinx ----
def slug(title):
    """The anchor of a heading, as forges write it."""
    return next(iter(documents.anchors_of([f"# {title}"])), "")


def visit_math(element):
    """Leaves a formula as it is, in an element that site.js sets."""
    def visit(writer, node):
        from docutils.nodes import SkipNode
        writer.body.append(f'<{element} class="math">{writer.encode(node.astext())}</{element}>')
        raise SkipNode
    return visit, None


def tell_sizes(app, doctree, _):
    """Gives figures their size, so that text does not move when they come."""
    from docutils import nodes
    for image in list(doctree.findall(nodes.image)):
        drawing = (pathlib.Path(app.srcdir) / image["uri"]).read_text(encoding="utf-8")
        image["width"], image["height"] = re.search(r'width="(\d+)" height="(\d+)"', drawing).groups()


def load_katex(app, page, template, context, doctree):
    from docutils import nodes
    if doctree and any(isinstance(node, (nodes.math, nodes.math_block)) for node in doctree.findall()):
        app.add_css_file("katex.min.css")
        app.add_js_file("katex.min.js")


def setup(app):
    """This file is an extension of Sphinx, too."""
    app.add_html_math_renderer("katex", visit_math("span"), visit_math("div"))
    app.connect("doctree-resolved", tell_sizes)
    app.connect("html-page-context", load_katex)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


SETTINGS = {
    "project": "Tile by Tile",
    "extensions": ["myst_parser", "sphinx_copybutton", "website"],
    "html_theme": "furo",
    "html_title": "Tile by Tile",
    "html_math_renderer": "katex",
    "html_static_path": [str(FILES), str(KATEX / "katex.min.css"), str(KATEX / "katex.min.js")],
    "html_css_files": ["site.css"],
    "html_js_files": ["site.js"],
    "html_use_index": False,
    "html_copy_source": False,
    "html_show_copyright": False,
    "myst_heading_anchors": 6,
    "myst_heading_slug_func": "website.slug",
    "copybutton_prompt_text": "$ ",
    "pygments_style": "friendly",
    "highlight_language": "text",
    "suppress_warnings": ["myst.header"],
}


def build(site, pages):
    from sphinx.application import Sphinx
    order = Stage(pages).run()
    app = Sphinx(str(pages), None, str(site), str(site) + "_doctrees", "html", SETTINGS,
                 status=None, warningiserror=False, parallel=os.cpu_count() or 1)
    app.build()
    shutil.copytree(KATEX / "fonts", site / "_static/fonts", dirs_exist_ok=True,
                    ignore=lambda _, names: [name for name in names if not name.endswith(".woff2")])
    return order, app.statuscode


# ---- The check ----
class Page(html.parser.HTMLParser):
    """The links, anchors, figures and loaded files of a page of the site."""

    def __init__(self, file):
        super().__init__()
        self.anchors, self.links, self.loads, self.without_alt = set(), [], [], []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") != "canonical":
            self.loads.append(values["href"])
        elif values.get("src"):
            self.loads.append(values["src"])
        # Without a text of its own, a figure gets its path.
        if tag == "img" and (not values.get("alt") or values["alt"] == values["src"]):
            self.without_alt.append(values["src"])


def dead_ends(site):
    """What is wrong in the files themselves: (page, what)."""
    pages = {file: Page(file) for file in sorted(site.rglob("*.html"))}
    for file, page in pages.items():
        name = file.relative_to(site)
        for source in page.without_alt:
            yield name, f"the figure {source} has no text for those who do not see it"
        for url in page.loads + page.links:
            parts = urllib.parse.urlsplit(url)
            if parts.scheme or parts.netloc:
                if url in page.loads and parts.scheme != "data":
                    yield name, f"loads {url} from elsewhere"
                continue
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            if not target.is_file():
                yield name, f"there is no {url}"
            elif parts.fragment and target in pages and parts.fragment not in pages[target].anchors:
                yield name, f"there is no anchor {url}"
    for file in site.rglob("*.css"):
        for url in re.findall(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^)\"']*)", file.read_text("utf-8")):
            yield file.relative_to(site), f"loads {url} from elsewhere"


# What a page looks like in the browser. What is too wide scrolls in .content of Furo.
LOOK = """
const ground = getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number);
return {
  brightness: (ground[0] + ground[1] + ground[2]) / 3,
  width: Math.max(document.documentElement.scrollWidth,
                  document.querySelector(".content")?.scrollWidth ?? 0),
  missing: [...document.images].filter(i => !i.naturalWidth).map(i => i.src),
  letters: [...document.images].filter(i => i.width < 0.74 * i.getAttribute("width")).map(i => i.src),
  formulas: document.querySelectorAll(".math").length,
  set: document.querySelectorAll(".math .katex").length,
  cut: [...document.querySelectorAll("div.math")].filter(e => e.scrollWidth > e.clientWidth + 1).length,
  buttons: document.querySelectorAll("div.highlight").length - document.querySelectorAll("button.copybtn").length,
}"""


def in_browser(site, pages):
    """Opens the pages at two widths, and looks at each in light and dark. Yields what is wrong:
    (page, what)."""
    from selenium import webdriver
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(flag)
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options,
                               service=webdriver.chrome.service.Service("/usr/bin/chromedriver"))
    formulas = 0
    try:
        # A page is loaded in the scheme that the one before was left in.
        for width, height, schemes in ((1280, 900, ("dark", "light")), (360, 740, ("light", "dark"))):
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
            for page in pages:
                browser.get((site / page).as_uri())
                for entry in browser.get_log("browser"):
                    yield page, f"the console says {entry['message']}"
                for scheme in schemes:
                    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {
                        "features": [{"name": "prefers-color-scheme", "value": scheme}]})
                    look = browser.execute_script(LOOK)
                    if (look["brightness"] > 128) != (scheme == "light"):
                        yield page, f"{width} px: is not {scheme}"
                if look["width"] > width:
                    yield page, f"takes {look['width']} px of {width}"
                for key, what in (("missing", "is not shown"), ("letters", "has letters below 9 px")):
                    for source in look[key]:
                        yield page, f"{width} px: {source} {what}"
                if look["formulas"] != look["set"]:
                    yield page, f"{look['formulas'] - look['set']} formulas are not set"
                if look["cut"] and width > 500:  # on a phone they scroll
                    yield page, f"{look['cut']} formulas are wider than the text"
                if look["buttons"] > 0:
                    yield page, f"{look['buttons']} blocks of code have no button that copies them"
                formulas += look["formulas"]
        if not formulas:
            yield "all pages", "have no formula, so none was tried"
        browser.get((site / "search.html").as_uri() + "?q=swizzle")
        for _ in range(50):
            if browser.execute_script("return document.querySelectorAll('ul.search li').length"):
                break
            time.sleep(0.1)
        else:
            yield "search.html", "finds nothing about swizzle"
    finally:
        browser.quit()


def check(site, order):
    """The pages in reading order, and of the sources, which are made alike, one."""
    pages = [re.sub(r"\.md$", ".html", staged(page)) for part in order.values() for page in part]
    return [*dead_ends(site), *in_browser(site, [*pages, "01_vector_add/step1_thread_per_element.cu.html"])]


def main(arguments, root=ROOT):
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    if arguments not in ([], ["--check"]):
        print(f"tools/site takes --check or nothing, not '{' '.join(arguments)}'")
        return 2
    began = time.monotonic()
    site = root / "build/site"
    order, failed = build(site, root / "build/site_pages")
    print(f"site: {site.relative_to(root)}/index.html, {sum(map(len, order.values()))} pages, "
          f"{time.monotonic() - began:.0f} s")
    if not arguments:
        return failed
    wrong = check(site, order)
    for page, what in wrong:
        print(f"{page}: {what}")
    print(f"site: {len(wrong)} errors, {time.monotonic() - began:.0f} s")
    return 1 if wrong or failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
