"""The figures of chapter 02's steps on tensor cores. Which lane holds what is not written here: it
is printed by print_fragments.cpp, from the maps that the kernels use."""
import functools
import json
import os
import pathlib
import subprocess
import tempfile

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, EDGE, GREY, INK, LIGHT, RED, RED_PALE, Canvas,
                     constants)

CHAPTER = "02_matmul"
LANES, PHASE = 32, 8  # lanes of a warp, and those that shared memory serves with 16 bytes at once
GROUPS = 8            # of four banks, as wide as a chunk of 16 bytes
SHOWN = 5             # the lane whose registers are shown


@functools.cache
def maps(root):
    """What print_fragments.cpp prints."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "print_fragments"
        subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", f"-I{root}",
                        f"-I{root / 'cpu_device/include'}", root / "tools/print_fragments.cpp",
                        "-o", program], check=True)
        return json.loads(subprocess.run([program], check=True, stdout=subprocess.PIPE).stdout)


def of(root, *files):
    """The constants of some of the chapter's files."""
    known = {}
    for file in files:
        known |= constants((root / CHAPTER / file).read_text(encoding="utf-8"))
    return known


# ---- Step 7: who holds what ----
def owners(lanes):
    """(row, column) -> (lane, number of the element) of a fragment's map."""
    return {tuple(at): (lane, i) for lane, elements in enumerate(lanes)
            for i, at in enumerate(elements)}


def fragments(root):
    canvas = Canvas(800, 700, "Which lane holds which element: mma.m16n8k16")
    width, height = 25, 18
    a_x, a_y = 58, 374
    d_x, b_y = a_x + 16 * width + 62, 46

    def matrix(name, key, x, y, per_register, colour, pale):
        held = owners(maps(root)[key])
        rows, cols = (1 + max(at[axis] for at in held) for axis in (0, 1))
        for (row, col), (lane, i) in held.items():
            mine = lane == SHOWN
            canvas.rect(x + col * width, y + row * height, width - 1, height - 1,
                        colour if mine else pale if (row // 8 + col // 8) % 2 == 0 else LIGHT)
            canvas.text(x + col * width + width / 2, y + row * height + 13, f"{lane}", 12,
                        "#ffffff" if mine else INK, "middle", bold=mine)
        canvas.text(x, y - 10, f"{name}, {rows} × {cols}", 14, colour, bold=True)
        registers = {}
        for at, (lane, i) in held.items():
            if lane == SHOWN:
                registers.setdefault(i // per_register, []).append(at)
        return registers

    registers = {"a": matrix("A", "a", a_x, a_y, 2, A, A_PALE),
                 "b": matrix("B", "b", d_x, b_y, 2, B, B_PALE),
                 "d": matrix("C and D", "d", d_x, a_y, 1, C, C_PALE)}
    canvas.text(24, 32, "In each box: the lane that holds the element", 14, bold=True)
    canvas.text(24, 62, f"Lane {SHOWN}'s registers", 13, bold=True)
    y = 86
    for name, colour in (("a", A), ("b", B), ("d", C)):
        for number, places in sorted(registers[name].items()):
            elements = " and ".join(f"({row}, {col})" for row, col in sorted(places))
            canvas.text(36, y, f"{name}[{number}]", 13, colour, bold=True)
            canvas.text(84, y, elements, 13)
            y += 21
        y += 8
    canvas.text(36, y + 4, "(row, column). Two elements of 16 bits share a register,\n"
                "the first in its lower half; a sum in fp32 has its own.", 12, GREY)
    canvas.text(24, 688, "Each 8 × 8 is shared out alike: four neighbouring lanes have a row of A "
                "or D, or a column of B.", 12, GREY)
    return canvas


# ---- Step 8: ldmatrix ----
def ldmatrix(root):
    canvas = Canvas(800, 486, "ldmatrix.x4: addresses in, fragments out")
    held = maps(root)
    x, y, width, height = 28, 84, 132, 19
    canvas.text(x, 30, "1. Each lane names a row of 16 bytes", 14, bold=True)
    canvas.text(x, 50, "in shared memory; the four 8 × 8 as they lie in A", 12, GREY)
    for matrix in range(4):
        row, col = held["a"][0][2 * matrix]  # where register `matrix` of A begins
        left, top = x + col // 8 * (width + 16), y + row // 8 * (8 * height + 34)
        canvas.text(left, top - 6, f"number {matrix}, for r[{matrix}]", 12, A, bold=True)
        for i in range(8):
            lane = 8 * matrix + i
            canvas.rect(left, top + i * height, width, height - 2,
                        A if lane == SHOWN else A_PALE)
            canvas.text(left + width / 2, top + i * height + 13, f"address of lane {lane}", 12,
                        "#ffffff" if lane == SHOWN else INK, "middle")
    canvas.text(x, 446, "The rows may lie anywhere. What a lane\n"
                "names is not what it gets.", 12,
                GREY)

    left, cell, line = 392, 44, 19
    canvas.text(left, 30, "2. Of each 8 × 8 each lane gets two elements", 14, bold=True)
    canvas.text(left, 50, "in each box: the lane that gets the element", 12, GREY)
    for top, key, title in ((84, "ldmatrix", "ldmatrix: neighbours in a row"),
                            (84 + 8 * line + 34, "ldmatrix_trans",
                             "ldmatrix.trans: neighbours in a column")):
        canvas.text(left, top - 6, title, 12, C, bold=True)
        for (row, col), (lane, i) in owners(held[key]).items():
            mine = lane == SHOWN
            canvas.rect(left + col * cell, top + row * line, cell - 2, line - 2,
                        C if mine else C_PALE)
            canvas.text(left + col * cell + cell / 2 - 1, top + row * line + 13, f"{lane}", 12,
                        "#ffffff" if mine else INK, "middle", bold=mine)
    canvas.text(left, 446, f"Lane {SHOWN} gets the dark ones of each of the four,\n"
                "as one register r[number], the first in its lower half.", 12, GREY)
    return canvas


# ---- Steps 8 and 9: where chunks lie ----
def places(root, layout, rows):
    """The place of each (row, chunk) of a tile whose rows have four chunks, in a layout."""
    chunks = 4
    swizzle = maps(root)["swizzle_64B"]
    place = {"plain": lambda row, chunk: row * chunks + chunk,
             "padded": lambda row, chunk: row * (chunks + 1) + chunk,
             "swizzled": lambda row, chunk: row * chunks + swizzle[row % 8][chunk]}[layout]
    return {(row, chunk): place(row, chunk) for row in range(rows) for chunk in range(chunks)}


def wavefronts(some_places):
    """What a phase of eight lanes costs: one for each that wants the same group of banks."""
    groups = [place % GROUPS for place in some_places]
    return max(groups.count(group) for group in groups)


def tile_banks(root):
    canvas = Canvas(800, 430, "A tile with rows of 64 bytes: plain, padded, swizzled")
    rows, chunk = 16, 1
    width, height, top = 30, 20, 104
    canvas.text(24, 30, "Rows 0 to 15 of a tile in shared memory, a line for every 128 bytes", 14,
                bold=True)
    canvas.text(24, 50, f"3.{chunk} is chunk {chunk} of row 3, 16 bytes. Dark: the eight chunks that "
                "ldmatrix reads for one 8 × 8.", 12, GREY)
    for number, layout in enumerate(("plain", "padded", "swizzled")):
        left = 24 + number * 258
        lies = places(root, layout, rows)
        read = [lies[row, chunk] for row in range(PHASE)]
        bad = wavefronts(read) > 1
        canvas.text(left, top - 28, layout, 14, RED if bad else C, bold=True)
        lines = max(lies.values()) // GROUPS + 1
        for group in range(GROUPS):
            canvas.text(left + group * width + width / 2 - 1, top - 8, f"{4 * group}", 12, GREY,
                        "middle")
            canvas.rect(left + group * width, top, width - 2, lines * height - 2, LIGHT)
        for (row, number_in_row), place in lies.items():
            x, y = left + place % GROUPS * width, top + place // GROUPS * height
            dark = number_in_row == chunk and row < PHASE
            canvas.rect(x, y, width - 2, height - 2,
                        (RED if bad else C) if dark else RED_PALE if bad else C_PALE)
            canvas.text(x + width / 2 - 1, y + 14, f"{row}.{number_in_row}" if row < 10 else "…",
                        12, "#ffffff" if dark else INK, "middle")
        y = top + 10 * height + 24
        canvas.text(left, y, f"in {len({place % GROUPS for place in read})} of {GROUPS} groups of "
                    "banks:", 13)
        count = wavefronts(read)
        canvas.text(left, y + 21, f"{count} wavefront{'s' if count > 1 else ''} for one 8 × 8,\n"
                    f"{4 * count} for ldmatrix.x4", 13, RED if bad else C, bold=True)
    canvas.text(24, 398, "Above each column the first of its four banks. Grey boxes are padding: "
                "memory that holds nothing.\nIn the swizzled tile the order of a row's chunks "
                "changes from each pair of rows to the next.", 12, GREY)
    return canvas


# ---- Step 10: the ring ----
def pipeline(root):
    stages = of(root, "step10_pipeline.cu")["kStages"]
    canvas = Canvas(800, 424, "Step 10: the ring of stages in time")
    left, turn_width, turns, line, top = 104, 104, 6, 46, 96
    first = left + 62  # the copies before the first turn
    canvas.text(20, 30, f"{stages} stages: one is multiplied, {stages - 1} are on their way or "
                "wait", 14, bold=True)
    canvas.text(20, 50, "How long a copy takes is not shown to scale. It has until the wait that "
                "names it.", 12, GREY)

    def x_of(turn):
        return first + turn * turn_width

    end = x_of(turns)
    for slot in range(stages):
        y = top + slot * line
        canvas.text(20, y + 21, f"stage {slot}", 13)
        canvas.rect(left, y, end - left, 32, LIGHT)
    for tile in range(turns + stages - 1):
        y = top + tile % stages * line
        begun = left + 3 + 6 * tile if tile < stages - 1 else x_of(tile - stages + 1) + 10
        waited = x_of(tile) + 4 if tile < turns else end
        if begun < end:
            width = min(waited, end) - begun
            canvas.rect(begun, y + 2, width, 28, A_PALE, A)
            if width > 48:
                label_at = max(begun, x_of(0) + 6) + 6 if width > turn_width else begun + 4
                canvas.text(label_at, y + 21, f"copy {tile}", 12)
        if tile < turns:
            canvas.rect(x_of(tile) + 10, y + 2, turn_width - 12, 28, C_PALE, C)
            canvas.text(x_of(tile) + 4 + turn_width / 2, y + 21, f"multiply {tile}", 12, INK,
                        "middle")
    bottom = top + stages * line
    for turn in range(turns):
        canvas.line(x_of(turn) + 6, top - 8, x_of(turn) + 6, bottom + 4, RED, 2.5)
        canvas.text(x_of(turn) + 10, top - 14, f"turn {turn}", 12, GREY)
        landed, last = turn, turn + stages - 2
        canvas.text(x_of(turn) + 10, bottom + 22, f"wait<{stages - 2}>: {turn} is", 12)
        canvas.text(x_of(turn) + 10, bottom + 39, f"here, {landed + 1} and {last}", 12)
        canvas.text(x_of(turn) + 10, bottom + 56, "may not be", 12)
    y = bottom + 92
    canvas.line(20, y - 14, 20, y + 4, RED, 2.5)
    canvas.text(32, y, "the wait, and a barrier for the whole block. Right after it the next copy "
                "begins:", 13)
    canvas.text(32, y + 20, f"in turn 1 that of tile {stages}, into stage 0, where tile 0 was "
                "multiplied in turn 0.", 13)
    canvas.text(32, y + 40, "The barrier says that all have finished reading it.", 13)
    return canvas


# ---- Step 13: the exchange of four lanes ----
def exchange(values, distance):
    """A turn of the loop in transpose_quad: values[lane][i]."""
    after = [list(lane) for lane in values]
    for lane in range(4):
        for i in range(4):
            if i & distance:
                continue
            upper = bool(lane & distance)
            other = lane ^ distance
            sent = i + distance if other & distance == 0 else i
            after[lane][i if upper else i + distance] = values[other][sent]
    return after


def quad(_root):
    canvas = Canvas(800, 330, "Step 13: four lanes exchange their elements")
    width, height, top = 52, 38, 104
    colours = ((A_PALE, A), (B_PALE, B), (C_PALE, C), (RED_PALE, RED))
    values = [[(i, lane) for i in range(4)] for lane in range(4)]  # (columns of eight, pair)
    canvas.text(24, 30, "Lanes 0 to 3 have row 0 of C: two neighbours of every eight columns", 14,
                bold=True)
    canvas.text(24, 50, "A box is a register with two elements, 4 bytes. It shows their columns.",
                12, GREY)
    for number, title in enumerate(("as mma leaves them", "after the exchange\nwith lane ± 1",
                                    "after the exchange\nwith lane ± 2")):
        left = 76 + number * 250
        if number > 0:
            values = exchange(values, number)
        canvas.text(left, top - 26, title, 12, INK, bold=True)
        for lane in range(4):
            canvas.text(left - 8, top + lane * height + 28, f"lane {lane}", 12, GREY, "end")
            for i in range(4):
                group, pair = values[lane][i]
                pale, colour = colours[group]
                x, y = left + i * (width - 8), top + lane * height + 8
                canvas.rect(x, y, width - 11, height - 6, pale, colour)
                column = 8 * group + 2 * pair
                canvas.text(x + (width - 11) / 2, y + 21, f"{column}", 12, INK, "middle")
    canvas.text(24, 286, "In the end lane 0 has the columns 0 to 7, lane 1 those from 8 to 15, and "
                "so on: 16 bytes each,\nand the four lanes together 64 bytes in a row. A box with "
                "6 holds the columns 6 and 7.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("step7_fragments", fragments), ("step8_ldmatrix", ldmatrix), ("step9_tile_banks", tile_banks),
    ("step10_pipeline", pipeline), ("step13_exchange", quad))}
