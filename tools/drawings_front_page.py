"""The figure of the front page."""
from drawing import INK, LIGHT, Canvas

SCREEN = "docs/results/exercise_watch.txt"  # tools/record_watch writes it
COLUMNS, SIZE, LINE, MARGIN = 80, 13, 18, 20
CHARACTER = 0.6 * SIZE
HARD_SPACE = "\u00a0"  # SVG makes one space of several


def watch(root):
    lines = (root / SCREEN).read_text(encoding="utf-8").splitlines()
    canvas = Canvas(int(COLUMNS * CHARACTER) + 2 * MARGIN + 1, len(lines) * LINE + 2 * MARGIN,
                    "./tour exercise --watch, in a terminal",
                    "DejaVu Sans Mono, Menlo, Consolas, monospace")
    canvas.alike = True
    canvas.rect(0, 0, canvas.width, canvas.height, INK, radius=8)
    for number, line in enumerate(lines, 1):
        text = line.lstrip()
        canvas.text(MARGIN + (len(line) - len(text)) * CHARACTER, MARGIN + number * LINE - 4,
                    text.replace(" ", HARD_SPACE), SIZE, LIGHT)
    return canvas


FIGURES = {"docs/figures/watch.svg": watch}
