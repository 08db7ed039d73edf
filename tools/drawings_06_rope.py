"""The figures of chapter 06. Frequencies and errors are printed by print_frequencies.cpp, from the
code that makes the tables."""
import functools
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, EDGE, GREY, INK, LIGHT, RED, RED_PALE, Canvas)

CHAPTER = "06_rope"
ROTARY_DIM, FACTOR, TRAINED_LENGTH, POSITIONS = 128, 8, 8192, 131072

@functools.cache
def printed(root):
    """What print_frequencies.cpp prints of the constants above."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "print_frequencies"
        subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-O1", f"-I{root}", f"-I{root / CHAPTER}",
                        root / "tools/print_frequencies.cpp", root / CHAPTER / "rotary/frequencies.cpp",
                        "-o", program], check=True)
        words = (ROTARY_DIM, FACTOR, TRAINED_LENGTH, POSITIONS)
        return json.loads(subprocess.run([program, *map(str, words)], check=True,
                                         stdout=subprocess.PIPE).stdout)

# ---- A rotation, and what is none ----
Q, K = (3, 2, 1, 0), (1, 2, -1, 2)  # two pairs each: elements 0 and 2, 1 and 3
FREQUENCIES = (1.0, 0.1)
SHOWN = 6

def rotated(row, position):
    """Half-split pairs of a row, each by its angle."""
    pairs = len(row) // 2
    out = list(row)
    for i, f in enumerate(FREQUENCIES):
        x, y, c, s = row[i], row[i + pairs], math.cos(position * f), math.sin(position * f)
        out[i], out[i + pairs] = x * c - y * s, y * c + x * s
    return out

def wrong(row, position):
    """The formula that meets no partner."""
    pairs = len(row) // 2
    out = list(row)
    for i, f in enumerate(FREQUENCIES):
        x, y, c, s = row[i], row[i + pairs], math.cos(position * f), math.sin(position * f)
        out[i], out[i + pairs] = x * c + x * s, y * c - y * s
    return out

def score(q, k):
    return sum(a * b for a, b in zip(q, k))

def length(row):
    return math.sqrt(score(row, row))

def curve(canvas, points, colour, line=2.0, dashes=""):
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        canvas.line(x0, y0, x1, y1, colour, line, dashes)

def distance(_root):
    canvas = Canvas(800, 420, "Scores depend on the distance, and lengths on nothing")
    cell, left, top = 50, 64, 112
    canvas.text(20, 30, "The same q and k, rotated: their scores", 14, bold=True)
    canvas.text(left, 58, "k stands at", 12, GREY)
    canvas.text(20, 92, "q at", 12, GREY)
    fills = (A_PALE, B_PALE, C_PALE, RED_PALE)
    for m in range(SHOWN):
        canvas.text(left + (m + 0.5) * cell, 92, f"{m}", 13, INK, "middle", bold=True)
        canvas.text(38, top + m * cell + 26, f"{m}", 13, INK, "middle", bold=True)
        for n in range(SHOWN):
            fill = fills[m - n] if 0 <= m - n < len(fills) else LIGHT
            canvas.rect(left + n * cell, top + m * cell - 4, cell - 2, cell - 2, fill)
            value = f"{score(rotated(Q, m), rotated(K, n)):.2f}".replace("-", "−")
            canvas.text(left + (n + 0.5) * cell - 1, top + m * cell + 25, value, 12, INK, "middle")

    x0, y0, width, height, positions, most = 450, 352, 326, 240, 24, 6.0
    canvas.text(420, 30, "The length of q over its position", 14, bold=True)
    # The corner of the axes, and their ticks
    for tick in range(0, int(most) + 1, 2):
        y = y0 - tick / most * height
        canvas.line(x0, y, x0 + width, y, EDGE, 1)
        canvas.text(x0 - 8, y + 4, f"{tick}", 12, GREY, "end")
    for tick in range(0, positions + 1, 4):
        canvas.text(x0 + tick / positions * width, y0 + 20, f"{tick}", 12, GREY, "middle")
    canvas.text(x0 + width / 2, y0 + 42, "position", 12, GREY, "middle")

    def place(position, value):
        return x0 + position / positions * width, y0 - value / most * height

    for rotate, colour in ((rotated, A), (wrong, RED)):
        curve(canvas, [place(p / 8, length(rotate(Q, p / 8))) for p in range(8 * positions + 1)],
              colour)
        for p in range(positions + 1):
            canvas.dot(*place(p, length(rotate(Q, p))), 2.6, colour)
    canvas.text(420, 58, "x c − y s,  y c + x s: rotated", 13, A, bold=True)
    canvas.text(420, 78, "x c + x s,  y c − y s: no partner", 13, RED, bold=True)
    return canvas

# ---- Layouts and lanes ----
ROW = 32  # elements of the row that turns

def units(root, interleaved):
    """What each lane of step `vectors` loads of a row in bf16: the chunks' first elements; and the
    pairs that it turns."""
    source = (root / CHAPTER / "rotary/rotary_unit.cuh").read_text(encoding="utf-8")
    chunks = int(re.search(r"kChunks = kLayout == Layout::half_split \? (\d) : (\d);",
                           source)[2 if interleaved else 1])
    width = 8  # bf16 in 16 bytes
    pairs = chunks * width // 2
    lanes = []
    for lane in range(ROW // 2 // pairs):
        first = [lane * width + j * (ROW // 2) for j in range(chunks)]
        turns = [(2 * p, 2 * p + 1) if interleaved else (p, p + ROW // 2)
                 for p in range(lane * pairs, (lane + 1) * pairs)]
        lanes.append((first, turns))
    return lanes, width

def layouts(root):
    canvas = Canvas(800, 470, "Which elements are a pair, and who loads them")
    cell, left = 23, 32
    colours = ((A, A_PALE), (B, B_PALE), (C, C_PALE), (RED, RED_PALE))
    canvas.text(20, 30, f"A row of {ROW} elements in bf16, as step vectors turns it", 14, bold=True)
    canvas.text(20, 50, "A colour is a lane. A frame is a chunk: 16 bytes, 8 elements. The arcs join "
                "the pairs of one lane.", 12, GREY)
    for title, interleaved, top in (
            ("half-split: elements i and i + rotary_dim / 2", False, 76),
            ("interleaved: elements 2i and 2i + 1", True, 290)):
        lanes, width = units(root, interleaved)
        canvas.text(20, top + 18, title, 13, bold=True)
        y = top + (100 if not interleaved else 64)
        for (chunks, turns), (colour, pale) in zip(lanes, colours):
            for first in chunks:
                for e in range(first, first + width):
                    canvas.rect(left + e * cell, y, cell, 28, pale)
                    canvas.text(left + (e + 0.5) * cell, y + 18, f"{e}", 12, INK, "middle")
                canvas.rect(left + first * cell + 1, y + 1, width * cell - 2, 26, "none", colour, 2)
        # Pairs of the first lane, above its chunks
        for i, (x, y_of) in enumerate(lanes[0][1]):
            height = 14 if interleaved else 12 + 7 * (len(lanes[0][1]) - 1 - i)
            a, b = left + (x + 0.5) * cell, left + (y_of + 0.5) * cell
            curve(canvas, [(a, y - 3), (a, y - height), (b, y - height), (b, y - 3)], colours[0][0],
                  1.2)
        for lane, ((chunks, turns), (colour, _)) in enumerate(zip(lanes, colours)):
            at = left + (chunks[0] + width / 2) * cell
            canvas.text(at, y + 48, f"lane {lane}", 13, colour, "middle", bold=True)
            loads = " and ".join(str(first // width) for first in chunks)
            numbers = f"chunk{'s' if len(chunks) > 1 else ''} {loads}"
            canvas.text(at, y + 66, numbers, 12, GREY, "middle")
            canvas.text(at, y + 84, f"{len(turns)} pairs", 12, GREY, "middle")
    return canvas

# ---- Wavelengths ----
def log_axis(canvas, values, low, high, x0, x1, y):
    """`y` gives the place of a value; a line and a text for each power of ten."""
    for exponent in range(low, high + 1):
        at = y(10.0 ** exponent)
        canvas.line(x0, at, x1, at, EDGE, 1)
        canvas.text(x0 - 8, at + 4, values(exponent), 12, GREY, "end")

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

def power_of_ten(exponent):
    return "1" if exponent == 0 else "10" + str(exponent).translate(SUPERSCRIPT)

def wavelengths(root):
    canvas = Canvas(800, 470, "The wavelength of each pair, without scaling and with it")
    data = printed(root)
    canvas.text(20, 30, f"Positions until a pair has made a whole turn, d = {ROTARY_DIM}", 14,
                bold=True)
    canvas.text(20, 50, f"s = {FACTOR}, trained with L = {TRAINED_LENGTH:,}. Where a line lies "
                "higher, the pair turns more slowly.", 12, GREY)
    x0, x1, top, bottom, low, high = 62, 600, 76, 418, 0, 7
    pairs = len(data["none"])

    def y(value):
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - top)

    def x(pair):
        return x0 + pair / (pairs - 1) * (x1 - x0)

    log_axis(canvas, power_of_ten, low, high, x0, x1, y)
    for pair in range(0, pairs, 8):
        canvas.text(x(pair), bottom + 20, f"{pair}", 12, GREY, "middle")
    canvas.text((x0 + x1) / 2, bottom + 40, "pair", 12, GREY, "middle")
    canvas.line(x0, y(TRAINED_LENGTH), x1, y(TRAINED_LENGTH), INK, 1.5, "6 4")
    canvas.text(x0 + 8, y(TRAINED_LENGTH) - 7, f"L = {TRAINED_LENGTH:,}", 12, INK)
    shown = (("dynamic_ntk", f"dynamic ntk, n = {FACTOR} L", "#7a3fb5", "7 4"),
             ("linear", "linear", B, ""), ("yarn", "yarn", C, ""),
             ("llama3", "llama3", "#b8860b", ""), ("ntk", "ntk", A, "7 4"),
             ("none", "no scaling", INK, ""))
    for i, (name, text, colour, dashes) in enumerate(shown):
        points = [(x(pair), y(2 * math.pi / f)) for pair, f in enumerate(data[name])]
        curve(canvas, points, colour, 2, dashes)
        canvas.line(616, 106 + 24 * i, 644, 106 + 24 * i, colour, 2.5, dashes)
        canvas.text(652, 110 + 24 * i, text, 12, INK)
    return canvas

# ---- Angles ----
def angles(root):
    canvas = Canvas(800, 380, "How exact a cosine is, far out in a text")
    data = printed(root)
    canvas.text(20, 30, f"The largest error of a cosine, of all {ROTARY_DIM // 2} pairs", 14,
                bold=True)
    x0, x1, top, bottom, low, high = 72, 590, 56, 318, -8, -2
    steps = len(data["of_table"])

    def y(value):
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - top)

    def x(step):
        return x0 + step / (steps - 1) * (x1 - x0)

    log_axis(canvas, power_of_ten, low, high, x0, x1, y)
    for step in range(0, steps, 4):
        canvas.text(x(step), bottom + 20, f"{2 ** step:,}", 12, GREY, "middle")
    canvas.text((x0 + x1) / 2, bottom + 42, "position, and those up to twice as far", 12, GREY,
                "middle")
    for name, text, colour in (("of_angle", "angle in fp32", RED),
                               ("of_table", "table, made in double", A)):
        points = [(x(step), y(value)) for step, value in enumerate(data[name])]
        curve(canvas, points, colour)
        for point in points:
            canvas.dot(*point, 3, colour)
        last = data[name][-1]
        exponent = math.floor(math.log10(last))
        canvas.text(604, points[-1][1] - 6, text, 13, colour, bold=True)
        canvas.text(604, points[-1][1] + 12,
                    f"{last / 10.0 ** exponent:.1f} · {power_of_ten(exponent)}", 13, colour)
    return canvas

# ---- The hands of a clock ----
def hands(_root):
    """A row's pairs as arrows at the positions 0 to 7: pair i turns by position * f_i."""
    dim, shown, radius, step = 64, (0, 6, 12), 28, 84
    canvas = Canvas(800, 350, "Pairs of a row at eight positions")
    canvas.text(20, 30, f"Three of the {dim // 2} pairs of a row, d = {dim}, at the positions 0 to 7",
                14, bold=True)
    for position in range(8):
        canvas.text(156 + position * step, 62, str(position), 13, GREY, "middle")
    for n, pair in enumerate(shown):
        y = 112 + n * 84
        frequency = 10000.0 ** (-2 * pair / dim)
        canvas.text(20, y - 4, f"pair {pair}", 13, INK, bold=True)
        canvas.text(20, y + 14, f"f = {frequency:.3g}", 12, GREY)
        for position in range(8):
            x = 156 + position * step
            canvas.dot(x, y, radius + 2, LIGHT)
            angle = position * frequency
            canvas.arrow(x, y, x + radius * math.cos(angle), y - radius * math.sin(angle))
    canvas.text(20, 334, "A pair (x, y) is an arrow: x to the right, y upwards. Its length stays; "
                "its angle grows by f a position.", 12, GREY)
    return canvas

# ---- The sinusoidal table ----
def sinusoids(_root):
    positions, dim, cell_x, cell_y, left, top = 32, 32, 22, 8, 64, 66
    canvas = Canvas(800, 380, "The sinusoidal table")
    canvas.text(20, 30, f"The first {positions} rows of the sinusoidal table, dim = {dim}", 14,
                bold=True)
    canvas.text(left, 56, "column 0", 12, GREY)
    canvas.text(left + dim * cell_x, 56, f"column {dim - 1}", 12, GREY, "end")
    for p in range(positions):
        for column in range(dim):
            angle = p * 10000.0 ** (-2 * (column // 2) / dim)
            value = math.sin(angle) if column % 2 == 0 else math.cos(angle)
            canvas.rect(left + column * cell_x, top + p * cell_y, cell_x - 1, cell_y - 1,
                        A if value > 0 else B, opacity=abs(value))
        if p % 8 == 0:
            canvas.text(left - 8, top + p * cell_y + 9, f"p = {p}", 12, GREY, "end")
    canvas.text(20, 350, "Blue is +1, orange −1, none 0. Columns 0 and 1 are sine and cosine of p; "
                "to the right the pairs turn more\nslowly, up to columns that hardly change.", 12, GREY)
    return canvas

FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("rotary1_hands", hands), ("rotary1_distance", distance), ("rotary3_layouts", layouts), ("wavelengths", wavelengths),
    ("angles", angles), ("absolute_table", sinusoids))}
