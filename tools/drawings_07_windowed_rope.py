"""The figures of chapter 07. Which keys and tiles are near and far, which tiles a part of a mask
visits, and the distances of the methods are printed by print_windows.cpp, from the functions that
the kernels and their tables ask."""
import atexit
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, EDGE, GREY, GROUND, INK, LIGHT, RED, RED_PALE,
                     Canvas, constants, for_dark_screens)

CHAPTER = "07_windowed_rope"
WARP, NO_LIMIT = 32, 1 << 29
NEAR, FAR = 1, 2  # of a tile's kinds; a mixed tile has both


@functools.cache
def program(root, name="print_windows", *sources):
    """One of the programs here, compiled. Of the chapter's files the linker leaves out what calls
    kernels."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = pathlib.Path(folder.name) / name
    includes = (root, root / CHAPTER, root / "06_rope", root / "02_matmul",
                root / "cpu_device/include", "/usr/include/eigen3", "/usr/local/include/eigen3")
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-ffunction-sections",
                    "-fdata-sections", "-Wl,--gc-sections", *(f"-I{folder}" for folder in includes),
                    root / f"tools/{name}.cpp", root / CHAPTER / "method/tables.cpp",
                    *(root / source for source in sources), "-o", path], check=True)
    return path


@functools.cache
def printed(root, *words):
    """What print_windows prints of these words."""
    return json.loads(subprocess.run([program(root), *map(str, words)], check=True,
                                     stdout=subprocess.PIPE).stdout)


def tile_shape(root):
    """Queries and keys of a tile in step two_visits at head dimension 64."""
    source = (root / CHAPTER / "windowed/forward4_two_visits.cu").read_text(encoding="utf-8")
    keys = int(re.search(r"constexpr int kKeys = kDim == 64 \? (\d+) :", source)[1])
    text = re.sub(r"^template <[^>]*>\nconstexpr [^;]*;", "", source, flags=re.MULTILINE)
    return constants(text.replace("tile::kWarp", str(WARP)))["kQueries"], keys


# ---- Which tiles are near, far, mixed ----
LENGTH = 1024
MAPS = (("causal", 0, 256), ("causal", 0, 200), ("full", NO_LIMIT, 256), ("full", NO_LIMIT, 200))
LETTERS = {NEAR: "N", FAR: "F", NEAR + FAR: "M"}


def tile_kinds(root, right, window):
    return printed(root, "tiles", *tile_shape(root), LENGTH, LENGTH, NO_LIMIT, right, window)


def tile_counts(data):
    """Tiles that are near, mixed, far, and not visited; and the turns of all parts."""
    kinds = [kind for row in data["kinds"] for kind in row]
    turns = sum(last - first for part in data["parts"] for first, _, _, last in part["tiles"])
    return tuple(kinds.count(kind) for kind in (NEAR, NEAR + FAR, FAR, 0)), turns


def draw_tile(canvas, x, y, cell, kind):
    """The frame and the letter."""
    if kind == 0:
        return
    if kind == NEAR + FAR:
        canvas.rect(x + 1, y + 1, cell - 2, cell - 2, "none", INK, 2)
    canvas.text(x + cell / 2, y + cell / 2 + 5, LETTERS[kind], 14, INK, "middle", bold=True)


def shade(canvas, x, y, width, height, parts, query_tile, key_tile, shape):
    """What parts of a mask show of a tile, in strips of some queries each."""
    queries, keys = shape
    strips = 8
    canvas.rect(x, y, width, height, LIGHT)
    for part in parts:
        seen = [part["seen"][int(query_tile * queries + (strip + 0.5) * queries / strips)]
                for strip in range(strips)]
        pieces = [[min(max(key - key_tile * keys, 0), keys) / keys * width for key in each]
                  for each in seen]
        first = 0
        for strip in range(1, strips + 1):  # strips that are alike become one rectangle
            if strip == strips or pieces[strip] != pieces[first]:
                begin, end = pieces[first]
                if begin < end:
                    canvas.rect(x + begin, y + first * height / strips, end - begin,
                                (strip - first) * height / strips,
                                A_PALE if part["near"] else B_PALE)
                first = strip


def tile_map(root):
    canvas = Canvas(800, 768, "Which tiles are near, far, both, or not visited")
    shape, cell, pitch = tile_shape(root), 32, 33
    canvas.text(20, 30, f"Queries down, keys across: {LENGTH:,} of each, in tiles of {shape[0]} × "
                f"{shape[1]}", 14, bold=True)
    for x, kind, text in ((20, NEAR, "near: Q1, K1"), (170, FAR, "far: Q2, K2"),
                          (314, NEAR + FAR, "mixed: one turn with each"),
                          (556, 0, "no letter: not visited")):
        fill = {NEAR: A_PALE, FAR: B_PALE, 0: LIGHT}.get(kind, A_PALE)
        canvas.rect(x, 46, 24, 24, fill)
        if kind == NEAR + FAR:
            canvas.rect(x, 58, 24, 12, B_PALE)
        draw_tile(canvas, x, 46, 24, kind)
        canvas.text(x + 32, 63, text, 12)
    for n, (name, right, window) in enumerate(MAPS):
        data = tile_kinds(root, right, window)
        left, top = 64 + n % 2 * 384, 116 + n // 2 * 340
        canvas.text(left, top - 12, f"{name}, W = {window}", 13, bold=True)
        for i, row in enumerate(data["kinds"]):
            for j, kind in enumerate(row):
                x, y = left + j * pitch, top + i * pitch
                shade(canvas, x, y, cell, cell, data["parts"], i, j, shape)
                draw_tile(canvas, x, y, cell, kind)
        (near, mixed, far, hidden), turns = tile_counts(data)
        bottom = top + len(data["kinds"]) * pitch
        canvas.text(left, bottom + 18, f"near {near}, mixed {mixed}, far {far}, not visited "
                    f"{hidden}", 13)
        canvas.text(left, bottom + 36, f"{near + mixed + far} tiles are visited, in {turns} turns",
                    12, GREY)
    return canvas


# ---- The parts of a mask, and the order of the tiles ----
SHOWN_QUERY, SHOWN_TILE, SHOWN_WINDOW = 576, 4, 256
PART_NAMES = ("far before", "far after", "near")


def limit(number, window):
    """A mask's left or right in terms of W."""
    return {-window: "−W", window - 1: "W − 1"}[number]


def turns_of(data, query_tile):
    """Of each part the tiles of keys, in the order in which a block visits them."""
    return [list(range(part["tiles"][query_tile][0], part["tiles"][query_tile][3]))
            for part in data["parts"]]


def parts(root):
    canvas = Canvas(800, 584, "The three parts of a mask, and the turns of a block")
    data, shape = tile_kinds(root, NO_LIMIT, SHOWN_WINDOW), tile_shape(root)
    left, width = 128, 648

    def x(key):
        return left + key / LENGTH * width

    def colours(part):
        return (A, A_PALE) if part["near"] else (B, B_PALE)

    canvas.text(20, 30, "One query's keys, without a causal mask", 14, bold=True)
    centre = x(SHOWN_QUERY + 0.5)
    canvas.text(centre, 62, "query i stands here", 12, INK, "middle")
    canvas.arrow(centre, 68, centre, 88)
    canvas.text(20, 116, "keys", 13, bold=True)
    for part, text in zip(data["parts"], PART_NAMES):
        begin, end = part["seen"][SHOWN_QUERY]
        colour, pale = colours(part)
        canvas.rect(x(begin), 90, x(end) - x(begin), 44, pale, colour)
        canvas.text((x(begin) + x(end)) / 2, 108, text + ("\nq1 k1" if part["near"] else "\nq2 k2"),
                    13, INK, "middle")
    # How far the near ones go
    for edge in (SHOWN_QUERY - SHOWN_WINDOW, SHOWN_QUERY + SHOWN_WINDOW):
        canvas.line(x(edge + 0.5), 134, x(edge + 0.5), 160, GREY, 1, "3 3")
        canvas.text((x(edge) + centre) / 2, 152, "W", 13, INK, "middle", bold=True)
        canvas.line((x(edge) + centre) / 2 + (14 if edge < SHOWN_QUERY else -14), 148, centre, 148)
        canvas.arrow((x(edge) + centre) / 2 + (-14 if edge < SHOWN_QUERY else 14), 148,
                     x(edge + 0.5), 148)
    canvas.line(centre, 134, centre, 160, GREY, 1, "3 3")

    for n, part in enumerate(data["parts"]):
        begin, end = part["seen"][SHOWN_QUERY]
        colour, pale = colours(part)
        y = 174 + n * 32
        canvas.text(20, y + 17, f"part {n}", 13, colour, bold=True)
        canvas.line(left, y + 12, left + width, y + 12, LIGHT, 2)
        canvas.rect(x(begin), y, x(end) - x(begin), 24, pale, colour)
        sides = [f"{name} = {limit(part[name], SHOWN_WINDOW)}" for name in ("left", "right")
                 if part[name] != NO_LIMIT]
        canvas.text((x(begin) + x(end)) / 2, y + 17, ", ".join(sides), 13, INK, "middle")
    canvas.text(20, 292, "Each part is a mask of its own; a side that is not named has no limit. "
                "Of a causal mask\npart 1 is empty, and part 2 has right = 0.", 12, GREY)

    first, top = SHOWN_TILE * shape[0], 390
    canvas.line(20, 328, 780, 328, LIGHT, 2)
    canvas.text(20, 354, f"The turns of a block: queries {first} to {first + shape[0] - 1}, W = "
                f"{SHOWN_WINDOW}, tiles of {shape[1]} keys", 14, bold=True)
    kinds, number = data["kinds"][SHOWN_TILE], 0
    for j, kind in enumerate(kinds):
        canvas.text((x(j * shape[1]) + x((j + 1) * shape[1])) / 2, top - 10,
                    f"tile {j}: {LETTERS[kind]}", 12, INK, "middle", bold=kind == NEAR + FAR)
    for n, (part, tiles) in enumerate(zip(data["parts"], turns_of(data, SHOWN_TILE))):
        y = top + n * 46
        colour, _ = colours(part)
        canvas.text(20, y + 17, PART_NAMES[n], 13, colour, bold=True)
        canvas.text(20, y + 34, "Q1, K1" if part["near"] else "Q2, K2", 12, GREY)
        for j in range(len(kinds)):
            at, wide = x(j * shape[1]) + 1, x(shape[1]) - left - 2
            if j not in tiles:
                canvas.rect(at, y, wide, 40, LIGHT)
                continue
            number += 1
            shade(canvas, at, y, wide, 40, [part], SHOWN_TILE, j, shape)
            if kinds[j] == NEAR + FAR:
                canvas.rect(at + 1, y + 1, wide - 2, 38, "none", INK, 2)
            canvas.text(at + wide / 2, y + 25, f"turn {number}", 13, INK, "middle", bold=True)
    mixed = [str(j) for j, kind in enumerate(kinds) if kind == NEAR + FAR]
    canvas.text(20, top + 162, "Far parts first, then the near one; softmax and output go on "
                f"through all three.\nTiles {' and '.join(mixed)} are mixed: each has two turns, "
                "and each turn hides the other's keys (grey).", 12, GREY)
    return canvas


# ---- Distances ----
TRAINED, WINDOW, FARTHEST, LONG = 2048, 512, 4096, 32768
METHODS = (("self_extend", 8, "Self-Extend", C, "3 3"),
           ("leaky_rerope", 16, "Leaky ReRoPE", B, "8 4"), ("rerope", 1, "ReRoPE", A, ""))


def distances_of(root, method, factor, window=WINDOW, farthest=FARTHEST):
    return printed(root, "distances", window, farthest + 1, method, factor)


def crossing(root, method, factor):
    """The first distance that the rotation sees as one that training did not have, if any."""
    seen = distances_of(root, method, factor, farthest=LONG)
    return next((i for i, value in enumerate(seen) if value >= TRAINED), None)


def distances(root):
    canvas = Canvas(800, 470, "The distance that the rotation sees")
    canvas.text(20, 30, "The distance that the rotation sees, over i − j", 14, bold=True)
    factors = {method: factor for method, factor, *_ in METHODS}
    canvas.text(20, 50, f"W = {WINDOW}, trained with up to {TRAINED:,} positions; Leaky ReRoPE "
                f"with factor {factors['leaky_rerope']}, Self-Extend with groups of "
                f"{factors['self_extend']}", 12, GREY)
    x0, x1, top, bottom = 70, 620, 76, 396

    def place(i, value):
        return x0 + i / FARTHEST * (x1 - x0), bottom - value / FARTHEST * (bottom - top)

    def line(values, first, colour, wide=2.5, dashes=""):
        """From the distance `first` on: straight, as far as a figure shows it."""
        canvas.line(*place(first, values[first]), *place(FARTHEST, values[-1]), colour, wide,
                    dashes)

    edge = place(0, TRAINED)[1]
    canvas.rect(x0, top, x1 - x0, edge - top, RED_PALE)
    for tick in range(0, FARTHEST + 1, 1024):
        x, y = place(tick, tick)
        canvas.line(x0, y, x1, y, EDGE, 1)
        canvas.text(x0 - 8, y + 4, f"{tick:,}", 12, GREY, "end")
        canvas.text(x, bottom + 20, f"{tick:,}", 12, GREY, "middle")
    canvas.text((x0 + x1) / 2, bottom + 40, "i − j", 12, GREY, "middle")
    canvas.text(x0 + 10, top + 22, "distances that training never had", 13, RED, bold=True)
    canvas.line(x0, edge, x1, edge, INK, 1.5, "6 4")
    canvas.text(x1 + 10, edge + 4, f"trained: {TRAINED:,}", 12, INK)

    plain = distances_of(root, "rerope", 1, NO_LIMIT)  # to RoPE every key is near
    canvas.line(*place(0, plain[0]), *place(TRAINED, plain[TRAINED]), INK, 2.5)
    line(plain, TRAINED, RED)
    canvas.dot(*place(TRAINED, plain[TRAINED]), 5, RED)
    canvas.text(x1 + 10, place(0, plain[-1])[1] + 4, f"RoPE: {plain[-1]:,.0f}", 12, RED, bold=True)
    for method, factor, name, colour, dashes in METHODS:
        seen = distances_of(root, method, factor)
        line(seen, WINDOW, colour, dashes=dashes)
        canvas.text(x1 + 10, place(0, seen[-1])[1] + 4, f"{name}: {seen[-1]:,.0f}", 12, colour,
                    bold=True)
    x, y = place(WINDOW, plain[WINDOW])
    canvas.dot(x, y, 4)
    canvas.line(x, y, x, bottom, GREY, 1, "3 3")
    canvas.text(x + 6, bottom - 8, f"i − j < W = {WINDOW}: all are RoPE", 12, INK)
    far = [f"{name} near {round(at, -2):,}" for method, factor, name, _, _ in reversed(METHODS)
           if (at := crossing(root, method, factor)) is not None]
    canvas.text(20, 458, f"The dashed line is reached by {' and by '.join(far)}; by ReRoPE never.",
                12, GREY)
    return canvas


# ---- Gradients ----
SMALL, SMALL_WINDOW, ROW, COLUMN = 8, 3, 5, 2


def small_kinds(root):
    """Near or far for each query and key of a small causal mask; 0 where it sees nothing."""
    return printed(root, "tiles", 1, 1, SMALL, SMALL, NO_LIMIT, 0, SMALL_WINDOW)["kinds"]


def gradients(root):
    canvas = Canvas(800, 500, "Backward: which gradient a score goes to")
    kinds, cell, left, top = small_kinds(root), 24, 56, 104
    end, bottom, gap = left + SMALL * cell, top + SMALL * cell, 14
    fills = {NEAR: (A_PALE, A), FAR: (B_PALE, B)}

    def matrix(x0, shown):
        for i, row in enumerate(kinds):
            for j, kind in enumerate(row):
                dark = kind and shown(i, j)
                fill = fills[kind][dark] if kind else LIGHT
                canvas.rect(x0 + j * cell, top + i * cell, cell - 2, cell - 2, fill)
                if kind:
                    canvas.text(x0 + (j + 0.5) * cell - 1, top + i * cell + 16, f"{kind}", 12,
                                GROUND if dark else INK, "middle")

    def column(x, pale, colour, name):
        canvas.text(x + cell / 2 - 1, top - 8, name, 13, colour, "middle", bold=True)
        for i in range(SMALL):
            canvas.rect(x, top + i * cell, cell - 2, cell - 2, colour if i == ROW else pale)

    def row(y, x0, pale, colour, name):
        canvas.text(x0 - 8, y + 16, name, 13, colour, "end", bold=True)
        for j in range(SMALL):
            canvas.rect(x0 + j * cell, y, cell - 2, cell - 2, colour if j == COLUMN else pale)

    canvas.text(20, 30, "dS goes to two pairs: 1 is near, 2 is far", 14, bold=True)
    canvas.text(20, 50, f"queries down, keys across, causal, W = {SMALL_WINDOW}", 12, GREY)
    canvas.text(left - 8, top - 8, "dS", 13, INK, "end", bold=True)
    matrix(left, lambda i, j: ROW == i or COLUMN == j)

    # Along a row: dQ
    x = end + 34
    y = top + (ROW + 0.5) * cell - 1
    canvas.arrow(end + 4, y, x - 4, y)
    column(x, A_PALE, A, "dq1")
    column(x + cell + gap, B_PALE, B, "dq2")
    from_x, to_x = x + 2 * cell + gap + 4, 508
    canvas.arrow(from_x, y, to_x - 4, y)
    column(to_x, C_PALE, C, "dq")
    middle = (from_x + to_x) / 2
    canvas.text(middle, y - 50, "each rotated back,\nthen added", 12, INK, "middle")
    canvas.text(middle, y - 12, "R(i)ᵀ dq1 + R(i′)ᵀ dq2", 12, C, "middle", bold=True)
    canvas.text(middle, y + 22, "dq1 += ds k1", 12, A, "middle")
    canvas.text(middle, y + 40, "dq2 += ds k2", 12, B, "middle")

    # Down a column: dK
    x, y = left + (COLUMN + 0.5) * cell - 1, bottom + 24
    canvas.arrow(x, bottom + 2, x, y - 2)
    row(y, left, A_PALE, A, "dk1")
    row(y + cell + 4, left, B_PALE, B, "dk2")
    low = y + 2 * cell + 60
    canvas.arrow(x, y + 2 * cell + 6, x, low - 4)
    row(low, left, C_PALE, C, "dk")
    canvas.text(x + 14, y + 2 * cell + 36, "R(j)ᵀ dk1 + R(j′)ᵀ dk2", 12, C, bold=True)
    canvas.text(end + 12, y + 16, "dk1 += ds q1", 12, A)
    canvas.text(end + 12, y + cell + 20, "dk2 += ds q2", 12, B)

    # Both kinds: dV
    right = 584
    canvas.text(right - 8, top - 8, "P", 13, INK, "end", bold=True)
    matrix(right, lambda i, j: COLUMN == j)
    x = right + (COLUMN + 0.5) * cell - 1
    canvas.arrow(x, bottom + 2, x, y - 2)
    row(y, right, C_PALE, C, "dv")
    canvas.text(right, 30, "P goes to one dv", 14, bold=True)
    canvas.text(right, y + cell + 20, "dv += p do, of near\nand far: no rotation", 12, INK)
    canvas.text(20, 486, "R(i): the rotation of the token's own position; R(i′): of its far place. "
                "The scale is left out.", 12, GREY)
    return canvas


class Drawn:
    """An SVG that the code draws itself."""
    width, texts = 800, ()  # it checks nothing of its own

    def __init__(self, text):
        self.text = text

    def svg(self):
        first, _, rest = self.text.partition("\n")
        return "\n".join([first, for_dark_screens(rest), rest])


def backward_block(root):
    """Backward step 5 at head dimension 128: a block's memory, and its tiles one after the other."""
    text = (root / "tile/key_block.cuh").read_text(encoding="utf-8")
    assert "KeyBlockTiles<T, kDim, 128, kDim == 64 ? 128 : 64, kKeyTensors>" in text
    keys, queries, dim = 128, 64, 128
    canvas = Canvas(800, 400, "Backward, step 5: what a block holds")
    canvas.text(20, 30, "d = 128: a block keeps 128 keys, and tiles of 64 queries go by", 14,
                bold=True)
    places = [(name, keys * dim * 2, colours) for name, colours in
              (("K2", (B_PALE, B)), ("K1", (A_PALE, A)), ("V", (C_PALE, C)))]
    places += [(name, 2 * queries * size, (LIGHT, EDGE)) for name, size in
               (("2 tiles of Q", dim * 2), ("their dO", dim * 2), ("2 of dS", keys * 2))]
    places.append(("dQ out", queries * dim * 4, (LIGHT, EDGE)))
    canvas.text(20, 62, f"shared memory, {sum(size for _, size, _ in places) // 1024} KiB", 13)
    for n, (name, size, colours) in enumerate(places):
        x = 20 + n * 109
        canvas.rect(x, 72, 103, 40, *colours)
        canvas.text(x + 51, 90, name, 12, INK, "middle")
        canvas.text(x + 51, 106, f"{size // 1024} KiB", 12, GREY, "middle")
    canvas.text(20, 146, "a consumer's products with keys, and its sums, over six tiles of queries",
                13)
    far, tiles, left, width = 3, 6, 150, 86
    for row, (name, late) in enumerate((("S = Q Kᵀ", 0), ("dQ = dS K", 1))):
        y = 160 + row * 44
        canvas.text(20, y + 22, name, 13)
        for i in range(tiles):
            x, is_far = left + (i + late) * width, i < far
            canvas.rect(x, y, width - 4, 34, *((B_PALE, B) if is_far else (A_PALE, A)))
            canvas.text(x + width / 2 - 2, y + 22, f"tile {i}: K{2 if is_far else 1}", 12, INK,
                        "middle")
    for row, (name, parts) in enumerate((("sums of dK", ((far, "dK2", (B_PALE, B)),
                                                         (tiles - far, "dK1", (A_PALE, A)))),
                                         ("sums of dV", ((tiles, "dV", (C_PALE, C)),)))):
        y, x = 256 + row * 44, left
        canvas.text(20, y + 22, name, 13)
        for count, part, colours in parts:
            canvas.rect(x, y, count * width - 4, 34, *colours)
            canvas.text(x + width, y + 22, part, 12, INK, "middle")
            x += count * width
    x = left + far * width - 2
    canvas.line(x, 154, x, 340, RED, dashes="4 3")
    canvas.text(x, 356, "dK2 is stored, and the registers are set to 0", 12, RED, "middle")
    canvas.text(20, 384, "dQ comes a tile late: when tile 3 is the first near one, dQ2 of tile 2 "
                "still needs K2.", 12, GREY)
    return canvas


def scores(root):
    """As ./tour run 07 --compare draws them."""
    path = program(root, "print_curves", f"{CHAPTER}/test/bench_curves.cpp", 
                   f"{CHAPTER}/hidden/tables.cpp",
                   "06_rope/rotary/frequencies.cpp", "06_rope/embedding/reference.cpp")
    return Drawn(subprocess.run([path], check=True, text=True, stdout=subprocess.PIPE).stdout)


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("tile_map", tile_map), ("parts", parts), ("distances", distances), ("gradients", gradients),
    ("backward5_block", backward_block), ("scores", scores))}
