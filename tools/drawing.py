"""Draws the figures of the project's pages as SVG, from the constants of the code they show.

    tools/figures            writes every figure
    tools/figures --check    changes nothing, and fails if a figure is not what it would be drawn as

A figure is a function that takes the repository's root and returns a Canvas. What it shows of a
kernel (tile sizes, which thread has which element) it reads from the source by `constants`, so a
figure becomes stale when the code changes.
"""
import ast
import operator
import pathlib
import re
import xml.sax.saxutils

# A figure has a ground of its own, and so can be read wherever it stands. Where the reader's browser
# is dark, DARK has what stands for each colour.
GROUND, EDGE = "#ffffff", "#d0d7de"
INK, GREY, LIGHT = "#1f2328", "#59636e", "#eef1f4"
A, A_PALE = "#0a5fc2", "#b9dcff"
B, B_PALE = "#b04a00", "#ffd9b8"
C, C_PALE = "#1a7f37", "#b4ecc0"
RED, RED_PALE = "#c4202b", "#ffd0cc"
VIOLET, OCHRE = "#7a3fb5", "#b8860b"
DARK = {GROUND: "#161b22", EDGE: "#4a525c", INK: "#e6edf3", GREY: "#a3adb8", LIGHT: "#2a313b",
        A: "#74b5ff", A_PALE: "#12406f", B: "#ffa25e", B_PALE: "#65300a", C: "#56cf74",
        C_PALE: "#124a26", RED: "#ff8a8e", RED_PALE: "#6e2023", VIOLET: "#c69cf4", OCHRE: "#e3b341"}
SMALLEST_TEXT = 12
FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"


class Canvas:
    """An SVG of a fixed size in pixels. y points down."""

    def __init__(self, width, height, title, font=FONT):
        self.width, self.height, self.title, self.font = width, height, title, font
        self.parts = []
        self.alike = False  # looks the same on a dark screen
        self.texts = []  # (x0, y0, x1, y1, text), for the tests

    def rect(self, x, y, width, height, fill="none", stroke="none", line=1.0, radius=0.0,
             opacity=1.0):
        self.inside(x, y, x + width, y + height, "a rectangle")
        shade = f' fill-opacity="{opacity:.3f}"' if opacity < 1 else ""
        outline = f' stroke="{stroke}" stroke-width="{short(line)}"' if stroke != "none" else ""
        rounded = f' rx="{short(radius)}"' if radius else ""
        self.parts.append(f'<rect x="{short(x)}" y="{short(y)}" width="{short(width)}" '
                          f'height="{short(height)}" fill="{fill}"{shade}{outline}{rounded}/>')

    def line(self, x0, y0, x1, y1, stroke=INK, line=1.5, dashes="", arrow=False):
        self.inside(min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1), "a line")
        more = f' stroke-dasharray="{dashes}"' if dashes else ""
        more += ' marker-end="url(#head)"' if arrow else ""
        self.parts.append(f'<line x1="{short(x0)}" y1="{short(y0)}" x2="{short(x1)}" '
                          f'y2="{short(y1)}" stroke="{stroke}" stroke-width="{short(line)}"'
                          f"{more}/>")

    def arrow(self, x0, y0, x1, y1, line=1.5):
        self.line(x0, y0, x1, y1, INK, line, arrow=True)

    def dot(self, x, y, radius, fill=INK):
        self.inside(x - radius, y - radius, x + radius, y + radius, "a dot")
        self.parts.append(f'<circle cx="{short(x)}" cy="{short(y)}" r="{short(radius)}" '
                          f'fill="{fill}"/>')

    def text(self, x, y, text, size=13.0, fill=INK, anchor="start", bold=False):
        """`y` is the base line. Lines of a text are divided by \\n."""
        if size < SMALLEST_TEXT:
            raise ValueError(f"'{text}' is too small to read: {size} px")
        for number, line in enumerate(text.split("\n")):
            width = text_width(line, size, bold)
            left = x - {"start": 0, "middle": width / 2, "end": width}[anchor]
            base = y + number * size * 1.35
            box = (left, base - size * 0.8, left + width, base + size * 0.25)
            self.inside(*box, f"'{line}'")
            self.texts.append((*box, line))
            weight = ' font-weight="bold"' if bold else ""
            place = f' text-anchor="{anchor}"' if anchor != "start" else ""
            self.parts.append(f'<text x="{short(x)}" y="{short(base)}" font-size="{short(size)}" '
                              f'fill="{fill}"{place}{weight}>'
                              f'{xml.sax.saxutils.escape(line)}</text>')

    def inside(self, x0, y0, x1, y1, what):
        if x0 < 0 or y0 < 0 or x1 > self.width or y1 > self.height:
            raise ValueError(f"{what} leaves the figure '{self.title}': {x0:.0f} {y0:.0f} "
                             f"{x1:.0f} {y1:.0f} in {self.width} x {self.height}")

    def svg(self):
        lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
                 f'height="{self.height}" viewBox="0 0 {self.width} {self.height}" '
                 f'font-family="{self.font}" role="img">',
                 f"<title>{xml.sax.saxutils.escape(self.title)}</title>",
                 '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" '
                 'markerUnits="userSpaceOnUse" markerWidth="13" markerHeight="13" orient="auto">'
                 f'<path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>',
                 f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" '
                 f'rx="8" fill="{GROUND}" stroke="{EDGE}"/>',
                 *self.parts, "</svg>", ""]
        style = [] if self.alike else [for_dark_screens("".join(lines))]
        return "\n".join([lines[0], *style, *lines[1:]])


def for_dark_screens(drawn):
    """A style: what the colours of this drawing are on a dark screen."""
    rules = "".join(f'[fill="{light}"]{{fill:{dark}}}[stroke="{light}"]{{stroke:{dark}}}'
                    for light, dark in DARK.items() if f'"{light}"' in drawn)
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"


def short(number):
    return f"{number:.2f}".rstrip("0").rstrip(".")


def text_width(text, size, bold=False):
    """At least the width in any of the fonts: DejaVu Sans, the widest, is 0.6 em on average."""
    return len(text) * size * (0.66 if bold else 0.6)


# ---- Constants of the sources ----
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
             ast.Div: operator.floordiv}


def value_of(expression, known):
    """An integer expression of C++: numbers, known names, + - * / and brackets."""
    def walk(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and node.id in known:
            return known[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        raise ValueError(f"cannot compute '{expression}'")
    return walk(ast.parse(expression.strip(), mode="eval").body)


def constants(source):
    """The integers that a source defines at the left margin: `constexpr int kA = 1, kB = kA * 2;`
    gives {"kA": 1, "kB": 2}."""
    known = {}
    for found in re.finditer(r"^constexpr (?:int|std::int64_t) (k[A-Z][^;]*);", source, re.MULTILINE):
        for definition in found[1].split(","):
            name, _, expression = definition.partition("=")
            known[name.strip()] = value_of(expression, known)
    return known


# ---- Files ----
def main(arguments, figures, root=pathlib.Path(__file__).parents[1]):
    """`figures` maps paths under the root to the functions that draw them."""
    if arguments in (["--help"], ["-h"]):
        print(__doc__.strip())
        return 0
    if arguments not in ([], ["--check"]):
        print(f"tools/figures takes --check or nothing, not '{' '.join(arguments)}'")
        return 2
    stale = []
    for path, draw in figures.items():
        drawn = draw(root).svg()
        file = root / path
        if file.is_file() and file.read_text(encoding="utf-8") == drawn:
            continue
        stale.append(path)
        if not arguments:
            file.parent.mkdir(exist_ok=True)
            file.write_text(drawn, encoding="utf-8")
    folders = {(root / path).parent for path in figures}
    left_over = sorted(str(file.relative_to(root)) for folder in folders
                       for file in folder.glob("*.svg")
                       if str(file.relative_to(root)) not in figures)
    for path in stale:
        print(f"{path}: {'stale; tools/figures draws it anew' if arguments else 'drawn'}")
    for path in left_over:
        print(f"{path}: nothing draws it")
    print(f"figures: {len(figures)}, {len(stale)} stale")
    return 1 if left_over or (arguments and stale) else 0
