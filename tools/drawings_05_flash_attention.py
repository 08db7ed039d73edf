"""The figures of chapter 05. What a mask shows is printed by print_masks.cpp, from the Mask that the
kernels ask; which lane holds what by print_fragments.cpp, as for chapter 02."""
import fractions
import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

import drawings_02_tensor_cores
from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, LIGHT, RED, RED_PALE, Canvas,
                     constants)

CHAPTER = "05_flash_attention"
WARP = 32


def source(root, file):
    return (root / CHAPTER / file).read_text(encoding="utf-8")


def of(root, file):
    """The constants of one of the chapter's files. Those of templates are left out."""
    text = re.sub(r"^template <[^>]*>\nconstexpr [^;]*;", "", source(root, file), flags=re.MULTILINE)
    return constants(text.replace("tile::kWarp", str(WARP)))


def number(root, file, pattern):
    """The number that a pattern finds in one of the chapter's files."""
    return int(re.search(pattern, source(root, file))[1])


# ---- Forward, step 2: four queries and four keys ----
# Scores of base 2: with scale = log(2), exp(scale q k) is 2^(q k).
QUERIES = ((1, 0), (0, 1), (-1, 0), (2, 1))
KEYS = ((1, 0), (0, 2), (1, 1), (2, 0))
VALUES = ((9, 0), (0, 9), (9, 9), (9, 18))
TILE = 2


def score(query, key):
    return sum(a * b for a, b in zip(query, key))


def power(exponent):
    return fractions.Fraction(2) ** exponent


def online(query):
    """What step 2 does with a query: for each tile of keys the scores, reference, correction of
    what there was, weights, sum and output after it."""
    reference, total, out = None, fractions.Fraction(0), [fractions.Fraction(0)] * 2
    states = []
    for first in range(0, len(KEYS), TILE):
        scores = [score(query, key) for key in KEYS[first:first + TILE]]
        greatest = max(scores) if reference is None else max(reference, *scores)
        correction = fractions.Fraction(0) if reference is None else power(reference - greatest)
        weights = [power(s - greatest) for s in scores]
        total = total * correction + sum(weights)
        out = [o * correction + sum(w * v[d] for w, v in zip(weights, VALUES[first:first + TILE]))
               for d, o in enumerate(out)]
        reference = greatest
        states.append((scores, reference, correction, weights, total, tuple(out)))
    return states


def plain(number):
    """A fraction as it is read: 2.25, but 1/2 for a power of two below 1."""
    if 0 < number < 1 and number.numerator == 1:
        return f"1/{number.denominator}"
    return f"{float(number):g}"


def pair(numbers):
    return "(" + ", ".join(plain(fractions.Fraction(x)) for x in numbers) + ")"


def tiles(_root):
    canvas = Canvas(800, 450, "Forward, step 2: a tile of queries stays, and the keys go by")
    cell, left, top = 54, 104, 100
    canvas.text(20, 30, "Scores, in tiles of two by two", 14, bold=True)
    for j, (key, value) in enumerate(zip(KEYS, VALUES)):
        x = left + j * cell + cell / 2
        canvas.text(x, top - 32, f"k{j}", 13, INK, "middle", bold=True)
        canvas.text(x, top - 12, pair(key), 12, GREY, "middle")
        canvas.text(x, top + 4 * cell + 24, f"v{j}", 13, INK, "middle", bold=True)
        canvas.text(x, top + 4 * cell + 44, pair(value), 12, GREY, "middle")
    for i, query in enumerate(QUERIES):
        y = top + i * cell
        canvas.text(20, y + 20, f"q{i}", 13, INK, bold=True)
        canvas.text(20, y + 37, pair(query), 12, GREY)
        for j, key in enumerate(KEYS):
            fill = LIGHT if i >= TILE else A_PALE if j < TILE else B_PALE
            canvas.rect(left + j * cell + 1, y + 1, cell - 2, cell - 2, fill)
            canvas.text(left + (j + 0.5) * cell, y + 28, f"{score(query, key)}", 14, INK, "middle")
    for k in (0, TILE, 2 * TILE):
        canvas.line(left + k * cell, top, left + k * cell, top + 4 * cell, INK, 1.5)
        canvas.line(left, top + k * cell, left + 4 * cell, top + k * cell, INK, 1.5)
    canvas.text(20, top + 4 * cell + 84, "A block keeps q0 and q1.\nThe blue keys and values come, "
                "then\nthe orange ones.", 12, GREY)

    columns = (350, 462, 500, 594, 650)
    canvas.text(columns[0], 30, "What the block knows of each query", 14, bold=True)
    y = 60
    for x, head in zip(columns[1:], ("m", "weights", "sum", "output")):
        canvas.text(x, y, head, 12, GREY)
    for i in range(TILE):
        y += 28
        canvas.text(columns[0], y, f"q{i}", 14, INK, bold=True)
        first, second = online(QUERIES[i])
        for state, colour, name in ((first, A, "blue"), (second, B, "orange")):
            scores, reference, correction, weights, total, out = state
            if state is second:
                y += 24
                canvas.text(columns[0], y, f"times 2^({first[1]} − {reference}) = "
                            f"{plain(correction)}", 12, GREY)
                canvas.text(columns[3], y, plain(first[4] * correction), 13, GREY)
                canvas.text(columns[4], y, pair(o * correction for o in first[5]), 13, GREY)
            y += 24
            texts = (f"{name}: {scores[0]}, {scores[1]}", f"{reference}",
                     ", ".join(map(plain, weights)), plain(total), pair(out))
            for x, text in zip(columns, texts):
                canvas.text(x, y, text, 13, colour if x == columns[0] else INK)
        y += 26
        total, out = second[4], second[5]
        canvas.text(columns[0], y, f"output / sum = {pair(o / total for o in out)}", 13, C,
                    bold=True)
        canvas.text(columns[3], y, f"lse = ln({plain(power(second[1]) * total)})", 13, C, bold=True)
        y += 8
    return canvas


# ---- Forward, step 3: who does what ----
def who(root):
    k = of(root, "forward3_mma.cu")
    queries, warps = k["kQueries"], k["kWarps"]
    keys = number(root, "forward3_mma.cu", r"kDim == 256 \? \d+ : (\d+);")
    dim, rows, shown_warp, lane = 64, 16, 1, drawings_02_tensor_cores.SHOWN
    assert queries == warps * rows
    canvas = Canvas(800, 640, "Forward, step 3: what a block, a warp and a lane have")
    top, size = 96, 160
    heads = ("the grid", "a block", "a warp", "a lane")
    xs = (20, 222, 432, 642)

    canvas.text(xs[0], 30, heads[0], 14, bold=True)
    canvas.text(xs[0], 50, "a block for each head\nand tile of queries", 12, GREY)
    shown = (2, 3)
    for head in range(4):
        for tile in range(8):
            here = (head, tile) == shown
            canvas.rect(xs[0] + head * 38, top + tile * 20, 34, 17, A if here else A_PALE)
    canvas.text(xs[0] + 156, top + 90, "…", 14)
    canvas.text(xs[0], top + size + 18, "heads to the right,\nqueries downwards", 12, GREY)

    canvas.text(xs[1], 30, heads[1], 14, bold=True)
    canvas.text(xs[1], 50, f"{queries} queries, and {keys} keys\nat a time", 12, GREY)
    stripe = size / warps
    for warp in range(warps):
        y = top + warp * stripe
        canvas.rect(xs[1], y, size, stripe - 3, A if warp == shown_warp else A_PALE)
        canvas.text(xs[1] + size / 2, y + 24, f"warp {warp}: rows {rows * warp} to "
                    f"{rows * warp + rows - 1}", 12, "#ffffff" if warp == shown_warp else INK,
                    "middle")
    canvas.text(xs[1], top + size + 18, f"scores {queries} × {keys}", 12, GREY)

    canvas.text(xs[2], 30, heads[2], 14, bold=True)
    canvas.text(xs[2], 50, f"{rows} × {keys} scores:\n{keys // 8} mma's side by side", 12,
                GREY)
    width = size / (keys // 8)
    for j in range(keys // 8):
        canvas.rect(xs[2] + j * width, top, width - 3, size - 3, A if j == 2 else A_PALE)
    canvas.text(xs[2], top + size + 18, f"each of them is a sum of\n{dim // 16} mma's along d = "
                f"{dim}", 12, GREY)

    canvas.text(xs[3], 30, heads[3], 14, bold=True)
    canvas.text(xs[3], 50, "four scores of each\n16 × 8, in two rows", 12, GREY)
    held = drawings_02_tensor_cores.owners(drawings_02_tensor_cores.maps(root)["d"])
    cell, high = 17.5, 10
    for (row, col), (owner, _) in held.items():
        canvas.rect(xs[3] + col * cell, top + row * high, cell - 2, high - 2,
                    A if owner == lane else A_PALE)
    canvas.text(xs[3], top + size + 18, f"dark: lane {lane}'s. Four\nlanes share a row", 12, GREY)
    for i in range(3):
        canvas.arrow(xs[i + 1] - 30, top + size / 2, xs[i + 1] - 10, top + size / 2)

    # The memories.
    y = 338
    canvas.line(20, y - 34, 780, y - 34, LIGHT, 2)
    canvas.text(20, y - 6, "Where the numbers are while a block works (d = "
                f"{dim}, elements of 2 bytes)", 14, bold=True)
    kib = 1024
    boxes = (("device memory", A_PALE, A,
              ("Q, K, V of all heads", "O, once, at the end", "never a score")),
             ("shared memory of the block", B_PALE, B,
              (f"Q tile {queries} × {dim}: {queries * dim * 2 // kib} KiB",
               f"K tile {keys} × {dim}: {keys * dim * 2 // kib} KiB",
               f"V tile {keys} × {dim}: {keys * dim * 2 // kib} KiB")),
             ("registers of a lane", C_PALE, C,
              (f"scores, then weights: {rows * keys // WARP}", f"O: {rows * dim // WARP}",
               "m and sum of 2 rows: 4", f"weights as a factor: {rows * keys // WARP // 2}")))
    for i, (name, pale, colour, lines) in enumerate(boxes):
        x = 20 + i * 268
        canvas.rect(x, y + 12, 222, 120, pale, colour, radius=4)
        canvas.text(x + 10, y + 34, name, 13, colour, bold=True)
        canvas.text(x + 10, y + 58, "\n".join(lines), 13)
        if i < 2:
            canvas.arrow(x + 226, y + 62, x + 264, y + 62)
    canvas.text(20, y + 158, "S = Q Kᵀ reads Q and K from shared memory into registers (ldmatrix), "
                "and multiplies there (mma).", 13)
    canvas.text(20, y + 180, "Softmax is arithmetic on a lane's registers, and two shuffles among "
                "the four lanes of a row.", 13)
    canvas.text(20, y + 202, "O += P V takes P from the registers where it is, and V from shared "
                "memory.", 13)
    y += 238
    canvas.text(20, y, "The same in Triton's words:", 13, GREY, bold=True)
    canvas.text(20, y + 22, f"a program is this block; num_warps = {warps}; BLOCK_M = {queries}, "
                f"BLOCK_N = {keys}; tl.dot is all mma's of a block together;\nwhat Triton places "
                "in shared memory and registers by itself is written out here.", 12, GREY)
    return canvas


# ---- Forward, step 4: masks ----
MASK_TILE, NO_LIMIT = 4, 1 << 29
MASKS = (("causal", (16, 16, NO_LIMIT, 0)),
         ("causal, fewer queries", (8, 16, NO_LIMIT, 0)),
         ("causal, fewer keys", (16, 8, NO_LIMIT, 0)),
         ("window: 6 left, 0 right", (16, 16, 6, 0)),
         ("window: 3 left, 3 right", (16, 16, 3, 3)),
         ("full, 13 keys", (16, 13, NO_LIMIT, NO_LIMIT)))


@functools.cache
def masks(root):
    """What print_masks.cpp prints of MASKS."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "print_masks"
        subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", f"-I{root}",
                        f"-I{root / 'cpu_device/include'}", root / "tools/print_masks.cpp",
                        "-o", program], check=True)
        words = [MASK_TILE] + [word for _, mask in MASKS for word in mask]
        return json.loads(subprocess.run([program, *map(str, words)], check=True,
                                         stdout=subprocess.PIPE).stdout)


def tile_counts(printed, keys):
    """Tiles that are visited, those of them that are whole, and all."""
    visited = sum(last - first for first, _, _, last in printed["tiles"])
    whole = sum(last - first for _, first, last, _ in printed["tiles"])
    return visited, whole, len(printed["tiles"]) * -(-keys // MASK_TILE)


def mask_tiles(root):
    canvas = Canvas(800, 700, "Which tiles a block visits")
    cell = 14
    canvas.text(20, 30, f"Queries downwards, keys to the right, in tiles of {MASK_TILE} × "
                f"{MASK_TILE}", 14, bold=True)
    x = 20
    for fill, text in ((LIGHT, "not visited"), (C, "whole: all see all, no mask"),
                       (B, "border: seen"), (B_PALE, "border: hidden by the mask")):
        canvas.rect(x, 44, 13, 13, fill)
        canvas.text(x + 19, 55, text, 12)
        x += 30 + len(text) * 7.4
    for n, ((name, (queries, keys, _, _)), printed) in enumerate(zip(MASKS, masks(root))):
        left, top = 20 + n % 3 * 264, 112 + n // 3 * 310
        canvas.text(left, top - 14, name, 13, bold=True)
        for query, (first_key, end_key) in enumerate(printed["seen"]):
            first, whole_first, whole_last, last = printed["tiles"][query // MASK_TILE]
            for key in range(keys):
                tile = key // MASK_TILE
                seen = first_key <= key < end_key
                visited, whole = first <= tile < last, whole_first <= tile < whole_last
                fill = C if whole else B if seen else B_PALE if visited else LIGHT
                canvas.rect(left + key * cell + tile * 2, top + query * cell
                            + query // MASK_TILE * 2, cell - 1, cell - 1, fill)
        visited, whole, everything = tile_counts(printed, keys)
        bottom = top + queries * cell + queries // MASK_TILE * 2
        canvas.text(left, bottom + 18, f"{visited} of {everything} tiles, {whole} of them whole", 12,
                    GREY)
    return canvas


# ---- Forward, steps 5 and 7: taking turns, and not ----
QUARTERS = 4                # of a multiprocessor, each with a tensor core
MMA_CYCLES = 1.67           # of a multiprocessor, at 640 TFLOP/s: chapter 02
EXPONENTIALS_A_CYCLE = 16   # of a multiprocessor


def group_cycles(root):
    """Cycles of a quarter for 32 keys and a warp's 32 queries at d = 64: of each product, and of
    the exponentials."""
    keys = number(root, "forward7_interleaved.cu", r"kGroup = (\d+);")
    queries, dim = number(root, "forward7_interleaved.cu", r"kDim <= 128 \? (\d+) : 16;"), 64
    product = queries // 16 * (keys // 8) * (dim // 16) * MMA_CYCLES * QUARTERS
    return product, queries * keys / EXPONENTIALS_A_CYCLE * QUARTERS


def two_units(canvas, left, scale, first):
    """What draws a stretch of cycles, and what names the lanes of the two units."""
    def bar(y, begin, cycles, text, fill, edge):
        canvas.rect(left + begin * scale, y, cycles * scale - 2, 34, fill, edge)
        canvas.text(left + (begin + cycles / 2) * scale, y + 22, text, 12, INK, "middle")

    def lanes(y, title):
        canvas.text(20, y - 12, title, 13, bold=True)
        canvas.text(20, y + 22, first, 13)
        canvas.text(20, y + 66, "exponentials", 13)
    return bar, lanes


def turns(root):
    canvas = Canvas(800, 400, "Forward, step 7: exponentials among products")
    product, exponentials = group_cycles(root)
    left, groups = 150, 3
    scale = 610 / (groups * (2 * product + exponentials))
    canvas.text(20, 30, "A warp alone on its quarter of a multiprocessor, 32 keys at a time, d = 64",
                14, bold=True)
    canvas.text(20, 50, f"A product of 32 × 32 × 64: {product:.0f} cycles. 1,024 exponentials: "
                f"{exponentials:.0f} cycles.", 12, GREY)

    bar, lanes = two_units(canvas, left, scale, "tensor core")

    y = 100
    lanes(y, "taking turns")
    at = 0.0
    for g in range(groups):
        bar(y, at, product, f"S{g}", A_PALE, A)
        bar(y + 44, at + product, exponentials, f"P{g}", B_PALE, B)
        bar(y, at + product + exponentials, product, f"PV{g}", C_PALE, C)
        at += 2 * product + exponentials
    took = at
    y = 240
    lanes(y, "interleaved")
    bar(y, 0, product, "S0", A_PALE, A)
    at = product
    for g in range(groups):
        both = max(product, exponentials) if g + 1 < groups else exponentials
        if g + 1 < groups:
            bar(y, at, both, f"S{g + 1}", A_PALE, A)
        bar(y + 44, at, exponentials, f"P{g}", B_PALE, B)
        bar(y, at + both, product, f"PV{g}", C_PALE, C)
        at += both + product
    canvas.line(left + at * scale, y - 10, left + at * scale, y + 84, RED, 1.5, "4 3")
    canvas.text(left + at * scale + 8, y + 60, f"{at / took:.2f} of it", 12, RED)
    canvas.text(20, 356, "S: scores of 32 keys. P: their weights. PV: weights times values. The "
                "other warp of the\nquarter fills the gaps in part, as far as it happens to be "
                "somewhere else.", 12, GREY)
    return canvas


# ---- Forward, step 8: keys split over blocks ----
def part(query, first, last):
    """Output and sum of 2^score of some keys."""
    weights = [power(score(query, key)) for key in KEYS[first:last]]
    total = sum(weights)
    return tuple(sum(w * v[d] for w, v in zip(weights, VALUES[first:last])) / total
                 for d in range(2)), total


def merged(parts):
    total = sum(weight for _, weight in parts)
    return tuple(sum(out[d] * weight for out, weight in parts) / total for d in range(2)), total


def split(_root):
    canvas = Canvas(800, 330, "Forward, step 8: the keys of a query, split over blocks")
    parts = [part(QUERIES[0], first, first + TILE) for first in range(0, len(KEYS), TILE)]
    out, total = merged(parts)
    canvas.text(20, 30, "q0 of the example, its keys split over two blocks", 14, bold=True)
    for i, ((part_out, weight), (pale, colour)) in enumerate(zip(parts, ((A_PALE, A), (B_PALE, B)))):
        y = 60 + i * 116
        canvas.rect(20, y, 150, 84, pale, colour, radius=4)
        canvas.text(32, y + 24, f"keys {i * TILE} and {i * TILE + 1}", 13, colour, bold=True)
        scores = [score(QUERIES[0], key) for key in KEYS[i * TILE:(i + 1) * TILE]]
        canvas.text(32, y + 46, f"scores {scores[0]}, {scores[1]}", 13)
        canvas.text(32, y + 68, f"2^{scores[0]} + 2^{scores[1]} = {plain(weight)}", 13)
        canvas.arrow(174, y + 42, 216, y + 42)
        canvas.rect(220, y, 180, 84, LIGHT, GREY, radius=4)
        canvas.text(232, y + 24, "in the workspace", 13, GREY, bold=True)
        canvas.text(232, y + 46, f"O = {pair(part_out)}", 13)
        canvas.text(232, y + 68, f"lse = ln({plain(weight)})", 13)
        canvas.arrow(404, y + 42, 446, 118 + 42 + (i * 2 - 1) * 20)
    canvas.rect(450, 80, 330, 160, C_PALE, C, radius=4)
    canvas.text(462, 104, "merged", 13, C, bold=True)
    share = [f"{plain(weight)}/{plain(total)}" for _, weight in parts]
    canvas.text(462, 128, f"lse = ln({' + '.join(plain(w) for _, w in parts)}) = "
                f"ln({plain(total)})", 13)
    canvas.text(462, 152, "shares e^(lse of the part − lse)", 13)
    canvas.text(462, 172, f"= {share[0]} and {share[1]}", 13)
    canvas.text(462, 198, f"O = {share[0]} {pair(parts[0][0])} + {share[1]} {pair(parts[1][0])}",
                13)
    canvas.text(462, 224, f"= {pair(out)}", 14, C, bold=True)
    canvas.text(20, 306, "A block of a part without a visible key hands in lse = −∞, and gets the "
                "share 0.", 12, GREY)
    return canvas


# ---- Forward, step 9: two products at one time ----
def wgmma_turns(root):
    keys = number(root, "forward9_wgmma.cu", r"kKeys = (\d+);")
    rows, dim, wgmma_rate, exponentials_rate = 64, 64, 2048, 16  # rates a cycle and multiprocessor
    product, weights = rows * keys * dim / wgmma_rate, rows * keys / exponentials_rate
    canvas = Canvas(800, 420, "Forward, step 9: the next scores beside the last output")
    left, tiles = 150, 4
    taking_turns = tiles * (2 * product + weights)
    scale = 610 / taking_turns
    canvas.text(20, 30, f"A consumer alone, {rows} queries, {keys} keys at a time, d = {dim}", 14,
                bold=True)
    canvas.text(20, 50, f"A product of {rows} × {keys} × {dim}: {product:.0f} cycles. "
                f"{rows * keys:,} exponentials: {weights:.0f} cycles.", 12, GREY)

    bar, lanes = two_units(canvas, left, scale, "tensor cores")

    y, at = 100, 0.0
    lanes(y, "taking turns")
    for t in range(tiles):
        bar(y, at, product, f"S{t}", A_PALE, A)
        bar(y + 44, at + product, weights, f"P{t}", B_PALE, B)
        bar(y, at + product + weights, product, f"PV{t}", C_PALE, C)
        at += 2 * product + weights
    y, at, order = 240, 0.0, []
    lanes(y, "two products at one time")
    for t in range(tiles):
        bar(y, at, product, f"S{t}", A_PALE, A)
        order.append(f"K{t}")
        if t > 0:
            bar(y, at + product, product, f"PV{t - 1}", C_PALE, C)
            order.append(f"V{t - 1}")
        bar(y + 44, at + product, weights, f"P{t}", B_PALE, B)
        at += product + max(weights, product)
    bar(y, at, product, f"PV{tiles - 1}", C_PALE, C)
    order.append(f"V{tiles - 1}")
    end = at + product
    canvas.line(left + end * scale, y - 10, left + end * scale, y + 84, RED, 1.5, "4 3")
    canvas.text(left + end * scale + 8, y + 22, f"{end / taking_turns:.2f} of it", 12, RED)
    canvas.text(20, 356, f"The ring brings the tiles in the order in which they are read: "
                f"{', '.join(order)}.", 13)
    canvas.text(20, 382, "S: scores of a tile of keys. P: their weights. PV: weights times values. "
                "The block's other\nconsumers do the same, and fill the gaps.", 12, GREY)
    return canvas


# ---- Backward: who keeps what ----
def passes(_root):
    canvas = Canvas(800, 490, "Backward: which block has which tiles")
    cell, count, top = 30, 6, 112
    panels = (("dK and dV", "a block keeps keys,", "queries go by", ("S", "dP", "dV", "dK")),
              ("dQ", "a block keeps queries,", "keys go by", ("S", "dP", "dQ")),
              ("one pass", "a block keeps keys,", "queries go by", ("S", "dP", "dV", "dK", "dQ")))
    canvas.text(20, 30, "The scores in tiles: queries downwards, keys to the right", 14, bold=True)
    for n, (name, kept, passing, products) in enumerate(panels):
        left = 58 + n * 258
        canvas.text(left, 60, name, 14, bold=True)
        canvas.text(left, 80, f"{kept}\n{passing}", 12, GREY)
        for i in range(count):
            for j in range(count):
                mine = i == 2 if name == "dQ" else j == 3
                now = mine and (j == 3 if name == "dQ" else i == 2)
                canvas.rect(left + j * cell, top + i * cell, cell - 2, cell - 2,
                            A if now else A_PALE if mine else LIGHT)
        if name == "dQ":
            y = top + 2.5 * cell - 1
            canvas.arrow(left, y - cell + 12, left + count * cell, y - cell + 12)
            canvas.rect(left - 30, top + 2 * cell, 24, cell - 2, C, C)
            canvas.text(left - 18, top + 2 * cell - 6, "dQ", 12, C, "middle", bold=True)
        else:
            x = left + 3.5 * cell - 1
            canvas.arrow(x + cell - 2, top, x + cell - 2, top + count * cell)
            canvas.rect(left + 3 * cell, top + count * cell + 6, cell - 2, 22, C, C)
            canvas.text(x, top + count * cell + 44, "dK, dV", 12, C, "middle", bold=True)
        if name == "one pass":
            for i in range(count):
                canvas.rect(left - 30, top + i * cell, 24, cell - 2, B if i == 2 else B_PALE)
            y = top + 2.5 * cell - 1
            canvas.arrow(left + 3 * cell - 4, y, left - 4, y)
            canvas.text(left - 30, top + count * cell + 22, "sums of", 12, B, bold=True)
            canvas.text(left - 30, top + count * cell + 38, "dQ, fp32", 12, B, bold=True)
        canvas.text(left, 378, f"{len(products)} products a tile:", 13)
        canvas.text(left, 398, ", ".join(products), 13, A, bold=True)
    canvas.text(20, 436, "Left and middle: two kernels with seven products, and no two blocks write "
                "the same element.\nRight: one kernel with five; the blocks of all keys add to the "
                "same sums of dQ, in an order\nthat differs from run to run.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("forward2_tiles", tiles), ("forward3_who", who), ("forward4_masks", mask_tiles),
    ("forward7_turns", turns), ("forward8_split", split),
    ("forward9_turns", wgmma_turns), ("backward_passes", passes))}
