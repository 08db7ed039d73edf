"""The figures of chapter 02's second pass, Hopper's own instructions."""
import re

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, LIGHT, RED, RED_PALE, Canvas)
from drawings_02_tensor_cores import maps

CHAPTER = "02_matmul"
ELEMENT, CHUNK, ROW = 2, 16, 128  # bytes: of an element, of a chunk, of a row of the swizzle
WARPGROUP_FILE = "../tile/ptx/warpgroup.cuh"
DESCRIPTOR_FILE = "../tile/ptx/wgmma_descriptor.cuh"


def number(root, file, name):
    """The number that a source gives a constant."""
    return int(re.search(rf"\b{name} = (\d+)\b", (root / CHAPTER / file).read_text("utf-8"))[1])


def shape(root, file):
    """What a step's block computes, and in how many stages. Of its TileOf, for two consumers."""
    consumers, columns = map(int, re.search(r"\busing Tile = TileOf<(\d+), (\d+)>;",
                                            (root / CHAPTER / file).read_text("utf-8")).groups())
    known = {"kConsumers": consumers, "kTileN": columns, "kStages": number(root, file, "kStages")}
    tiles = (root / CHAPTER / "hopper_tiles.cuh").read_text("utf-8")
    known["kRows"] = int(re.search(r"kRows = (\d+);\s*// of each", tiles)[1])
    known["kTileM"] = consumers * known["kRows"]
    known["kWarpgroup"] = number(root, WARPGROUP_FILE, "kWarpgroup")
    known["kBlockK"] = number(root, "hopper_tiles.cuh", "kBlockK")
    known["kProducerRegisters"] = number(root, "hopper_tiles.cuh", "kProducerRegisters")
    known["kConsumerRegisters"] = int(re.search(
        r"kConsumerRegisters = kConsumers == 2 \? (\d+) : \d+;", tiles)[1])
    # What ptxas gives each thread of the block, in steps of 8.
    known["at_start"] = 65536 // ((1 + consumers) * known["kWarpgroup"]) // 8 * 8
    known["a_bytes"] = known["kTileM"] * known["kBlockK"] * ELEMENT
    known["b_bytes"] = known["kTileN"] * known["kBlockK"] * ELEMENT
    return known


# ---- Step 15: a box in shared memory, and its descriptor ----
def distances(root):
    """What the descriptors of B's tile of step 15 say, in bytes, and how far the next part of k
    lies; for a tile along k and for one along n."""
    block_k, wgmma_k, box = (number(root, "hopper_tiles.cuh", name)
                             for name in ("kBlockK", "kWgmmaK", "kBoxElements"))
    pattern = number(root, DESCRIPTOR_FILE, "kPattern")
    return {"along k": {"leading": None, "stride": pattern, "part": wgmma_k * ELEMENT},
            "along n": {"leading": block_k * box * ELEMENT, "stride": pattern,
                        "part": wgmma_k * box * ELEMENT}}


def layouts(root):
    canvas = Canvas(800, 622, "A box in shared memory, and what the descriptor says of it")
    swizzle = maps(root)["swizzle_128B"]
    far = distances(root)
    parts = number(root, "hopper_tiles.cuh", "kWgmmaK")
    width, height, chunks = 25, 16, ROW // CHUNK
    canvas.text(24, 30, "B's tile in shared memory: on the left B lies along k, on the right along "
                "n", 14, bold=True)
    canvas.text(24, 50, f"A line is {ROW} bytes, {chunks} chunks of {CHUNK}. The number says which "
                "chunk of its row lies there.\nDark: what the first wgmma reads, "
                f"{parts} of k.", 12, GREY)

    def rows(left, top, numbers, name, dark):
        for line, row in enumerate(numbers):
            y = top + line * height
            canvas.text(left - 6, y + 12, f"{name} {row}", 12, GREY, "end")
            for chunk in range(chunks):
                x = left + swizzle[row % 8][chunk] * width
                marked = dark(row, chunk)
                canvas.rect(x, y, width - 1, height - 1, B if marked else B_PALE)
                canvas.text(x + width / 2 - 0.5, y + 12, f"{chunk}", 12,
                            "#ffffff" if marked else INK, "middle", bold=marked)

    def span(x, y0, y1, text):
        canvas.line(x - 5, y0, x + 4, y0)
        canvas.arrow(x, y0, x, y1)
        canvas.text(x + 9, y0 + 44, text, 12, bold=True)

    # Along k: a row is an n, and each wgmma reads a part of every row.
    left, top = 84, 136
    canvas.text(left, top - 34, "along k: a row has 64 of k", 13, B, bold=True)
    of_part = parts * ELEMENT // CHUNK
    rows(left, top, range(17), "n", lambda _, chunk: chunk < of_part)
    canvas.text(24, top - 8, "start →", 12, bold=True)
    canvas.text(left + 70, top + 17 * height + 16, "… to n 255", 12, GREY)
    right = left + chunks * width
    span(right + 10, top + 1, top + 8 * height, f"stride\n{far['along k']['stride']:,}\nbytes")
    x = left + far["along k"]["part"] // CHUNK * width
    canvas.line(left, top - 20, left, top - 2)
    canvas.arrow(left, top - 14, x, top - 14)
    canvas.text(x + 6, top - 10, f"{far['along k']['part']} bytes: the next {parts} of k", 12,
                bold=True)

    # Along n: a row is a k, and each wgmma reads whole rows of all boxes.
    left = 494
    canvas.text(left, top - 34, "along n: a row has 64 of n", 13, B, bold=True)
    canvas.text(left - 62, top - 8, "start →", 12, bold=True)
    canvas.text(left, top - 8, "box 0: n 0 to 63", 12, GREY)
    rows(left, top, range(18), "k", lambda row, _: row < parts)
    canvas.text(left + 70, top + 18 * height + 16, "… to k 63", 12, GREY)
    right = left + chunks * width
    span(right + 10, top + 1, top + 8 * height, f"stride\n{far['along n']['stride']:,}\nbytes")
    canvas.line(right + 5, top + parts * height, right + 16, top + parts * height)
    canvas.text(right + 9, top + parts * height + 16, f"{far['along n']['part']:,}:\nnext\n{parts} "
                "of k", 12, bold=True)
    second = top + 20 * height + 16
    canvas.text(left, second - 8, "box 1: n 64 to 127", 12, GREY)
    rows(left, second, range(3), "k", lambda row, _: row < parts)
    canvas.text(left + 70, second + 3 * height + 16, "… to box 3", 12, GREY)
    canvas.line(430, top + 8, 442, top + 8)
    canvas.line(430, top + 8, 430, second + 8)
    canvas.arrow(430, second + 8, 448, second + 8)
    canvas.text(424, second - 20, f"leading\n{far['along n']['leading']:,} bytes", 12, INK, "end",
                bold=True)

    y = second + 3 * height + 50
    canvas.text(24, y, "The descriptor holds start, leading and stride, each divided by 16, and "
                "the kind of swizzle. Along k\none box has the whole tile, and leading is not used. "
                "The distances are those before the swizzle:\nthe hardware applies it to the "
                "address that comes out.", 12, GREY)
    return canvas


# ---- Steps 15 and 16: the ring over time ----
COPY, COPIES_APART, MULTIPLY = 2.6, 0.28, 1.0  # in turns; what the figure assumes


def alternating(turns):
    """Step 15: when each tile is asked for, has landed and is multiplied."""
    return [(t * (COPY + MULTIPLY), t * (COPY + MULTIPLY) + COPY, (t + 1) * (COPY + MULTIPLY))
            for t in range(turns)]


def ring_of(stages, turns):
    """Step 16: (asked for, landed, begun, read) of each tile. The producer asks as soon as the
    stage is empty, the consumers multiply as soon as it is full."""
    tiles = []
    for t in range(turns):
        asked = tiles[t - stages][3] if t >= stages else 0.08 * t
        landed = max(asked + COPY, tiles[-1][1] + COPIES_APART if tiles else 0)
        begun = max(landed, tiles[-1][3] if tiles else 0)
        tiles.append((asked, landed, begun, begun + MULTIPLY))
    return tiles


def ring(root):
    stages = shape(root, "step16_warp_specialized.cu")["kStages"]
    canvas = Canvas(800, 532, "Step 15 alternates; step 16 turns a ring")
    left, turn, line = 112, 74, 44
    shown = 9.0

    def x_of(time):
        return left + min(time, shown) * turn

    canvas.text(24, 30, "Step 15: one tile, and its block takes turns", 14, bold=True)
    canvas.text(24, 62, "tile", 13)
    canvas.rect(left, 42, shown * turn, 32, LIGHT)
    for t, (asked, landed, read) in enumerate(alternating(4)):
        if asked >= shown:
            continue
        canvas.rect(x_of(asked) + 1, 44, x_of(landed) - x_of(asked) - 2, 28, A_PALE, A)
        canvas.text(x_of(asked) + 8, 62, f"copy {t}", 12)
        if landed < shown:
            canvas.rect(x_of(landed) + 1, 44, x_of(read) - x_of(landed) - 2, 28, C_PALE, C)
            canvas.text(x_of(landed) + 8, 62, f"mult. {t}", 12)

    canvas.text(24, 112, f"Step 16: {stages} stages between a producer and two consumers", 14,
                bold=True)
    canvas.text(24, 132, "How long a copy takes is not shown to scale. In each stage: the copy, then "
                "consumer 1 above consumer 2.", 12, GREY)
    top = 148
    for stage in range(stages):
        canvas.text(24, top + stage * line + 21, f"stage {stage}", 13)
        canvas.rect(left, top + stage * line, shown * turn, 34, LIGHT)
    tiles = ring_of(stages, 12)
    for t, (asked, landed, begun, read) in enumerate(tiles):
        if asked >= shown - 0.1:
            continue
        y = top + t % stages * line
        canvas.rect(x_of(asked) + 1, y + 2, x_of(landed) - x_of(asked) - 2, 30, A_PALE, A)
        if x_of(landed) - x_of(asked) > 60:
            canvas.text(x_of(asked) + 8, y + 21, f"copy {t}", 12)
        if begun >= shown - 0.1:
            continue
        for consumer in range(2):
            canvas.rect(x_of(begun) + 1, y + 2 + 15 * consumer, x_of(read) - x_of(begun) - 2, 15,
                        C_PALE, C)
            if read <= shown:
                canvas.text((x_of(begun) + x_of(read)) / 2, y + 14 + 15 * consumer,
                            f"{consumer + 1}: tile {t}", 12, INK, "middle")

    y = top + stages * line + 18
    canvas.text(24, y, "What waits, and for what", 13, bold=True)
    y += 12
    canvas.text(24, y + 19, "producer", 13)
    canvas.text(24, y + 19 + line, "consumers", 13)
    for row in range(2):
        canvas.rect(left, y + row * line, shown * turn, 30, LIGHT)

    def wait(row, begin, end, text):
        canvas.rect(x_of(begin) + 1, y + row * line + 2, x_of(end) - x_of(begin) - 2, 26, RED_PALE,
                    RED)
        canvas.text((x_of(begin) + x_of(end)) / 2, y + row * line + 19, text, 12, INK, "middle")

    free = tiles[stages - 1][0]
    for t in range(stages, len(tiles)):
        asked = tiles[t][0]
        if asked <= shown and x_of(asked) - x_of(free) > 20:
            wait(0, free, asked, f"empty[{t % stages}]")
        free = asked
    wait(1, 0, tiles[0][2], "full[0]")
    canvas.rect(x_of(tiles[0][2]) + 1, y + line + 2, x_of(shown) - x_of(tiles[0][2]) - 2, 26,
                C_PALE, C)
    canvas.text(x_of(tiles[0][2]) + 12, y + line + 19, "never again: the next stage is full before "
                "this one is read", 12)
    y += 2 * line + 22
    canvas.text(24, y, f"Tile {stages} goes where tile 0 was. The producer asks for it when both "
                "consumers have arrived\nat empty[0]: when both have waited for their wgmma of "
                "tile 0. In the first round all stages are\nempty, and it asks for "
                f"{stages} tiles at once. While a copy takes less than {stages - 1} turns, the "
                "tensor\ncores never wait for it.", 13)
    return canvas


# ---- Step 16: registers ----
def registers(root):
    k = shape(root, "step16_warp_specialized.cu")
    warpgroup, consumers = k["kWarpgroup"], k["kConsumers"]
    whole = 65536  # of a multiprocessor of compute capability 9.0
    sums = k["kRows"] * k["kTileN"] // warpgroup
    canvas = Canvas(800, 330, "The registers of a block of step 16")
    left, width, height = 24, 752, 56
    canvas.text(24, 30, f"How {1 + consumers} warpgroups share the {whole:,} registers of a "
                "multiprocessor", 14, bold=True)

    def bar(y, title, shares):
        canvas.text(left, y - 8, title, 13)
        canvas.rect(left, y, width, height, LIGHT)
        x = left
        for each, name, pale, colour in shares:
            of_all = each * warpgroup / whole * width
            canvas.rect(x + 1, y, of_all - 2, height, pale, colour)
            canvas.text(x + 8, y + 22, name, 13, colour, bold=True)
            canvas.text(x + 8, y + 42, f"{warpgroup} × {each} = {each * warpgroup:,}"
                        if of_all > 150 else f"{warpgroup}×{each}", 12)
            x += of_all
        return x

    bar(76, f"at the start: {k['at_start']} for each of {(1 + consumers) * warpgroup} threads",
        [(k["at_start"], name, pale, colour) for name, pale, colour in
         (("producer", A_PALE, A), ("consumer 1", C_PALE, C), ("consumer 2", C_PALE, C))])
    y = 178
    bar(y, "after setmaxnreg",
        [(k["kProducerRegisters"], "prod.", A_PALE, A)] +
        [(k["kConsumerRegisters"], f"consumer {1 + i}", C_PALE, C) for i in range(consumers)])
    for i in range(consumers):
        x = left + (k["kProducerRegisters"] + i * k["kConsumerRegisters"]) * warpgroup / whole * width
        of_sums = sums * warpgroup / whole * width
        canvas.rect(x + 4, y + height + 4, of_sums, 10, C)
        canvas.text(x + 4, y + height + 30, f"{sums} sums a thread", 12, C, bold=True)
    canvas.text(24, 298, f"A consumer's {k['kRows']} × {k['kTileN']} elements of C are {sums} sums "
                f"in each of its {warpgroup} threads. The producer has one loop\nand a few "
                "addresses. The strip that is left over on the right is not used.", 12, GREY)
    return canvas


# ---- Step 18: a cluster ----
def cluster(root):
    k = shape(root, "step18_cluster_ring.cu")
    blocks = number(root, "step18_cluster_ring.cu", "kCluster")
    half = k["b_bytes"] // blocks
    kib = 1024
    canvas = Canvas(800, 432, "A cluster of two blocks shares B")
    canvas.text(24, 30, "Step 18: a stage of both blocks, and who copies what into it", 14,
                bold=True)
    names = ("upper block, rank 0", "lower block, rank 1")
    top, wide = 64, 300
    for rank in range(blocks):
        x = 24 + rank * 452
        canvas.text(x, top - 8, names[rank], 13, bold=True)
        canvas.rect(x, top, wide, 172, LIGHT)
        canvas.rect(x + 10, top + 10, 96, 152, A_PALE, A)
        canvas.text(x + 18, top + 32, f"A {rank}", 13, A, bold=True)
        canvas.text(x + 18, top + 52, f"{k['kTileM']} × {k['kBlockK']}\n{k['a_bytes'] // kib} KiB",
                    12)
        for part in range(blocks):
            y = top + 10 + part * 78
            canvas.rect(x + 116, y, 174, 74, B_PALE, B, 3 if part == rank else 1)
            canvas.text(x + 126, y + 22, f"B, half {part}", 13, B, bold=True)
            canvas.text(x + 126, y + 42, f"of the rows\n{half // kib} KiB", 12)
    y = top + 206
    canvas.rect(24, y + 62, 752, 44, LIGHT, GREY)
    per_block = k["a_bytes"] + half
    canvas.text(400, y + 89, f"L2 delivers {blocks} × ({k['a_bytes'] // kib} + {half // kib}) = "
                f"{blocks * per_block // kib} KiB for both; without the cluster {blocks} × "
                f"{(k['a_bytes'] + k['b_bytes']) // kib} = "
                f"{blocks * (k['a_bytes'] + k['b_bytes']) // kib}", 12, INK, "middle")
    # Each block asks for its A, and for its half of B into both.
    up, low = y + 62, top + 174
    for x in (82, 534):
        canvas.arrow(x, up, x, low)
    for rank, from_x in ((0, 330), (1, 470)):
        canvas.dot(from_x, up - 26, 4, B)
        canvas.line(from_x, up, from_x, up - 26, B, 2)
        for x in (250 + 20 * rank, 702 + 20 * rank):
            canvas.arrow(from_x, up - 26, x, low)
    canvas.text(400, up - 8, "multicast", 12, B, "middle", bold=True)
    canvas.text(322, up - 8, "half 0", 12, B, "end")
    canvas.text(478, up - 8, "half 1", 12, B)
    canvas.text(90, up - 8, "A 0", 12, A)
    canvas.text(542, up - 8, "A 1", 12, A)
    canvas.text(24, 402, "Thick border: the half that this block asks for. Each full counts "
                f"{(k['a_bytes'] + k['b_bytes']) // kib} KiB, whoever asked for them.\nEach empty "
                f"counts {blocks * k['kConsumers']} arrivals: two consumers of two blocks, "
                "since the next copies go to both.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("step15_layouts", layouts), ("step16_ring", ring), ("step16_registers", registers),
    ("step18_cluster", cluster))}
