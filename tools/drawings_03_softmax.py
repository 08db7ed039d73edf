"""The figures of chapter 03."""
import math
import re

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, EDGE, GREY, INK, LIGHT, RED, RED_PALE, Canvas,
                     constants)

CHAPTER = "03_softmax"
WARP = 32
# Numbers to add, one for each lane: the page's eight, and some that keep apart the sums that are
# drawn in different colours.
NUMBERS = (3, 1, 4, 1, 5, 9, 2, 6, *map(int, "271828182845904523536028"))


def source(root, file):
    return (root / CHAPTER / file).read_text(encoding="utf-8")


# ---- Forward, step 2: a tree in shared memory ----
def tree(places):
    """What the places hold that `reduce` of step 2 has merged by `+`, before and after each
    round."""
    rounds = [list(places)]
    while len(rounds[-1]) > 1:
        half = len(rounds[-1]) // 2
        rounds.append([rounds[-1][i] + rounds[-1][i + half] for i in range(half)])
    return rounds


def block_tree(root):
    threads = constants(source(root, "forward2_block_per_row.cu"))["kThreads"]
    rounds, zoomed = int(math.log2(threads)), 8
    canvas = Canvas(800, 648, "Forward, step 2: a block's reduction as a tree")
    left, scale, top, line = 132, 2, 74, 28
    right = left + threads * scale
    canvas.text(20, 30, f"{threads} values, {rounds} rounds: thread t merges places t and t + half",
                14, bold=True)
    canvas.text(20, 50, "Dark: places that a thread reads and writes. Pale: places that it reads "
                "beside its own. Red: a barrier.", 12, GREY)

    def barrier(y, to=right + 8):
        canvas.line(left - 8, y, to, y, RED, 2.5)

    canvas.text(left - 16, top + 14, "store", 13, INK, "end")
    canvas.rect(left, top, threads * scale, 18, A)
    canvas.text(right + 16, top + 14, f"{threads} threads", 13)
    barrier(top + 23)
    for number in range(rounds):
        half, y = threads >> (number + 1), top + (number + 1) * line
        canvas.text(left - 16, y + 14, f"half = {half}", 13, INK, "end")
        canvas.rect(left, y, threads * scale, 18, LIGHT)
        canvas.rect(left, y, half * scale, 18, A)
        canvas.rect(left + half * scale, y, half * scale, 18, A_PALE)
        if half * scale > 30:
            canvas.arrow(left + 1.5 * half * scale, y + 9, left + 0.75 * half * scale, y + 9, 2)
        canvas.text(right + 16, y + 14, f"{half} thread{'s' if half > 1 else ''}", 13)
        barrier(y + 23)
    y = top + (rounds + 1) * line
    canvas.text(left - 16, y + 14, "result", 13, INK, "end")
    canvas.rect(left, y, threads * scale, 18, LIGHT)
    canvas.rect(left, y, scale, 18, A_PALE)
    canvas.text(left + 10, y + 14, "all read place 0", 12, GREY)
    canvas.text(right + 16, y + 14, f"{threads} threads", 13)
    barrier(y + 23)
    below = y + line

    box, gap, y = 44, 62, below + 62
    canvas.text(20, below + 32, "The same with 8 places and +", 14, bold=True)
    for number, values in enumerate(tree(NUMBERS[:zoomed])):
        half = len(values)
        canvas.text(left - 16, y + 17, "stored" if half == zoomed else f"half = {half}", 13, INK,
                    "end")
        if number > 0:
            for place in range(half):
                for reads in (place, place + half):
                    canvas.line(left + reads * gap + box / 2, y - 34,
                                left + place * gap + box / 2, y - 2,
                                A if reads == place else INK, 2 if reads == place else 1.2)
            barrier(y - 18, left + (zoomed - 1) * gap + box + 8)
        for place, value in enumerate(values):
            pale = half > 1 and place >= half // 2
            canvas.rect(left + place * gap, y, box, 24, A_PALE if pale else A, A)
            canvas.text(left + place * gap + box / 2, y + 17, f"{value}", 13,
                        INK if pale else "#ffffff", "middle", bold=True)
        y += 58
    barrier(y - 28, left + (zoomed - 1) * gap + box + 8)
    x = left + zoomed * gap + 12
    canvas.text(x, below + 78, f"1 + {rounds} + 1 barriers", 13, RED, bold=True)
    canvas.text(x, below + 100, "after the store,\nafter each round,\n"
                "and once all have\nread the result", 12)
    return canvas


# ---- Forward, step 3: a butterfly ----
def butterfly(values):
    """What the lanes hold before and after each round of reduce_lanes with `+`."""
    rounds, distance = [list(values)], len(values) // 2
    while distance > 0:
        have = rounds[-1]
        rounds.append([have[lane] + have[lane ^ distance] for lane in range(len(have))])
        distance //= 2
    return rounds


def warp_butterfly(_root):
    shown, rounds = 8, butterfly(NUMBERS)
    canvas = Canvas(800, 520, "Forward, step 3: a warp's reduction by shuffles")
    left, gap, box, top, line = 166, 58, 42, 92, 70
    classes = ((A_PALE, A), (B_PALE, B), (C_PALE, C), (RED_PALE, RED))
    canvas.text(20, 30, f"Lanes 0 to {shown - 1} of {WARP}: each has a number, and gets the sum of "
                "all", 14, bold=True)
    canvas.text(20, 50, "A line is a value that a lane gives or keeps. In a row, boxes of the same "
                "colour (not grey) are equal.", 12, GREY)

    def x_of(lane):
        return left + lane * gap + box / 2

    for lane in range(shown):
        canvas.text(x_of(lane), top - 14, f"{lane}", 12, GREY, "middle")
    canvas.text(left - 16, top - 14, "lane", 12, GREY, "end")
    for number, values in enumerate(rounds):
        y = top + number * line
        distance = WARP >> number
        label = "own number" if number == 0 else f"distance {distance}"
        canvas.text(left - 16, y + 18, label, 13, INK, "end")
        for lane in range(shown if number > 0 else 0):
            canvas.line(x_of(lane), y - line + 26, x_of(lane), y - 1, GREY, 1.2)
            if distance < shown:
                canvas.line(x_of(lane ^ distance), y - line + 26, x_of(lane), y - 1, INK, 1.5)
            else:  # the other lane stands further right
                canvas.line(x_of(lane) + 15, y - 18, x_of(lane) + 3, y - 1, INK, 1.5)
                canvas.text(x_of(lane) + 12, y - 24, f"{lane ^ distance}", 12, GREY, "middle")
        for lane in range(shown):
            alike = distance if distance < shown else shown
            pale, colour = (LIGHT, GREY) if alike == shown else classes[lane % alike]
            canvas.rect(x_of(lane) - box / 2, y, box, 25, pale, colour)
            canvas.text(x_of(lane), y + 18, f"{values[lane]}", 13, INK, "middle", bold=True)
        if number > 0:
            same = f"{2 ** number} lanes agree" if number < len(rounds) - 1 else f"all {WARP} agree"
            canvas.text(left + shown * gap + 8, y + 18, same, 13)
    y = top + 1 * line
    canvas.text(left + shown * gap + 8, y - 24, "from that lane", 12, GREY)
    canvas.text(20, 498, f"{len(rounds) - 1} shuffles, no memory, no barrier. Each lane gets the "
                "other's value and gives its own at once.", 12, GREY)
    return canvas


# ---- Forward, step 4: maximum and sum in one pass ----
def online(row):
    """Number by number: the maximum, the factor that brings the sum so far to it, the new term, and
    the sum."""
    seen, greatest, total = [], -math.inf, 0.0
    for z in row:
        new = max(greatest, z)
        factor, term = math.exp(greatest - new), math.exp(z - new)
        total = total * factor + term
        greatest = new
        seen.append((greatest, factor, term, total))
    return seen


def online_softmax(_root):
    row = (1, 3, 2, 2.5, 4, 3.5, 5, 4.5)
    seen = online(row)
    canvas = Canvas(800, 576, "Forward, step 4: maximum and sum, number by number")
    left, gap = 150, 78
    canvas.text(20, 30, "m is the maximum of what was seen so far, s the sum of its exp(z - m)", 14,
                bold=True)
    canvas.text(20, 50, "Where a greater number comes, what was summed is brought to the new "
                "maximum (red).", 12, GREY)

    def x_of(i):
        return left + i * gap + gap / 2

    zero, unit = 204, 24  # of the numbers
    canvas.line(left, zero, left + len(row) * gap, zero, EDGE, 1)
    canvas.text(left - 12, zero - 62, "z", 14, A, "end", bold=True)
    canvas.text(left - 12, zero - 42, "and m", 13, INK, "end")
    floor, scale = 400, 64  # of the sums
    canvas.line(left, floor, left + len(row) * gap, floor, EDGE, 1)
    canvas.text(left - 12, floor - 62, "s", 14, C, "end", bold=True)
    canvas.rect(20, floor - 42, 12, 12, C)
    canvas.text(38, floor - 31, "new term", 12)
    canvas.rect(20, floor - 22, 12, 12, C_PALE, C)
    canvas.text(38, floor - 11, "carried on", 12)
    before = None
    for i, (z, (m, factor, term, total)) in enumerate(zip(row, seen)):
        x = x_of(i)
        grown = i > 0 and factor < 1
        canvas.line(x - gap / 2, zero - m * unit, x + gap / 2, zero - m * unit, INK, 2)
        if before is not None and before[0] != m:
            canvas.line(x - gap / 2, zero - before[0] * unit, x - gap / 2, zero - m * unit, INK, 2)
        canvas.line(x, zero, x, zero - z * unit, A_PALE, 5)
        canvas.dot(x, zero - z * unit, 5, A)

        carried = total - term
        if carried > 0:
            canvas.rect(x - 22, floor - carried * scale, 44, carried * scale, C_PALE, C)
        canvas.rect(x - 22, floor - total * scale, 44, term * scale, C, C)
        if grown:
            height = before[1] * scale
            for x0, y0, x1, y1 in ((-27, 0, -27, height), (27, 0, 27, height),
                                   (-27, height, 27, height)):
                canvas.line(x + x0, floor - y0, x + x1, floor - y1, RED, 1.5, "4 3")
        before = (m, total)

    table = (("z", lambda i: f"{row[i]:g}", A), ("m", lambda i: f"{seen[i][0]:g}", INK),
             ("s before", lambda i: "0" if i == 0 else f"{seen[i - 1][3]:.3f}", INK),
             ("× exp(m - m')", lambda i: f"{seen[i][1]:.3f}" if i > 0 else "", RED),
             ("+ exp(z - m')", lambda i: f"{seen[i][2]:.3f}", C),
             ("s after", lambda i: f"{seen[i][3]:.3f}", INK))
    for number, (name, cell, colour) in enumerate(table):
        y = floor + 26 + number * 21
        canvas.text(left - 12, y, name, 12, colour, "end", bold=number in (0, 5))
        for i in range(len(row)):
            plain = number == 3 and seen[i][1] == 1
            canvas.text(x_of(i), y, cell(i), 12, GREY if plain else colour, "middle",
                        bold=number in (0, 5))
    canvas.text(20, floor + 160, "Red outline: the sum before it was multiplied. m' is the new "
                "maximum.", 12, GREY)
    return canvas


# ---- What is read and written ----
def passes(root, file):
    """How often the kernel of a step reads rows of x, or of y and dy, and how often it writes rows
    of y, or of dx: with the number of the tensor's reads and writes."""
    kernel = source(root, file).split("__global__")[1]

    def rows(*tensors):
        return sum(len(re.findall(rf"\b{of}\[row\]", kernel)) for of in tensors)

    return (rows("x"), rows("y")) if file.startswith("forward") else (rows("y", "dy"), rows("dx"))


def traffic(root):
    element = 4
    canvas = Canvas(800, 436, "What each step reads and writes")
    left, unit = 150, 28  # pixels for a byte
    kinds = {"max": ("for the max", A_PALE, A), "sum": ("for the sum", C_PALE, C),
             "both": ("for max, sum", A_PALE, A), "result": ("for y", LIGHT, GREY),
             "all": ("for all", A_PALE, A), "write": ("y", B_PALE, B),
             "back": ("for the sum", C_PALE, C), "again": ("for dx", LIGHT, GREY),
             "once": ("for both", C_PALE, C), "copy": ("read", LIGHT, GREY),
             "dx": ("dx", B_PALE, B)}
    canvas.text(20, 30, f"Bytes for each element of fp32, {element} for a read or a write", 14,
                bold=True)
    canvas.text(20, 50, "Of two-byte types half as much. Orange is written, the rest is read. "
                "Caches not counted.", 12, GREY)

    def bar(y, label, parts):
        canvas.text(left - 12, y + 19, label, 13, INK, "end")
        x = left
        for kind, times in parts:
            name, pale, colour = kinds[kind]
            width = times * element * unit
            canvas.rect(x, y, width - 2, 28, pale, colour)
            canvas.text(x + width / 2 - 1, y + 19, name, 12, INK, "middle")
            x += width
        canvas.text(x + 8, y + 19, f"{sum(times for _, times in parts) * element}", 13, bold=True)

    def copy(y, times):
        bar(y, "a copy", (("copy", times), ("write" if times == 1 else "dx", 1)))

    forward = {(3, 1): (("max", 1), ("sum", 1), ("result", 1), ("write", 1)),
               (2, 1): (("both", 1), ("result", 1), ("write", 1)),
               (1, 1): (("all", 1), ("write", 1))}
    backward = {(4, 1): (("back", 2), ("again", 2), ("dx", 1)), (2, 1): (("once", 2), ("dx", 1))}

    def steps(numbers, direction):
        ladder = ("forward", "backward")[direction]
        found = {passes(root, next((root / CHAPTER).glob(f"{ladder}{n}_*.cu")).name)
                 for n in numbers}
        if len(found) != 1:
            raise ValueError(f"steps {numbers} share a bar, and move {sorted(found)}")
        return found.pop()

    y = 76
    for title, direction, parts, groups in (
            ("Forward: x is read, y is written", 0, forward,
             (("steps 1 to 3", (1, 2, 3)), ("step 4", (4,)), ("steps 5 to 8", (5, 6, 7, 8)))),
            ("Backward: y and dy are read, dx is written", 1, backward,
             (("steps 1 to 3", (1, 2, 3)), ("steps 4 to 6", (4, 5, 6))))):
        canvas.text(20, y + 12, title, 14, bold=True)
        y += 28
        for label, numbers in groups:
            bar(y, label, parts[steps(numbers, direction)])
            y += 40
        copy(y, direction + 1)
        y += 56
    return canvas


# ---- Forward, step 7: a cluster ----
def shares(cols, blocks, threads_limit=512, chunks=8, width=4):
    """plan_of of step 7, of fp32: the threads of a block; and the columns of each one's pieces, of a chunk for every thread, which the blocks take in turn."""
    most = -(-(cols // width) // blocks)
    threads = -(-most // (chunks * WARP)) * WARP
    assert threads <= threads_limit
    piece = threads * width
    pieces = [min(piece, cols - first) for first in range(0, cols, piece)]
    assert len(pieces) <= chunks * blocks
    return threads, [pieces[block::blocks] for block in range(blocks)]


def cluster(_root):
    cols, blocks = 40000, 4
    threads, pieces = shares(cols, blocks)
    canvas = Canvas(800, 574, "Forward, step 7: a row over the blocks of a cluster")
    left, gap, width = 34, 186, 174
    colours = ((A_PALE, A), (B_PALE, B), (C_PALE, C), (RED_PALE, RED))
    canvas.text(20, 30, f"A row of {cols:,} elements of fp32, {blocks} blocks of {threads} threads",
                14, bold=True)

    def x_of(block):
        return left + block * gap

    unit = (x_of(blocks - 1) + width - left) / cols
    for block, columns in enumerate(pieces):
        for turn, count in enumerate(columns):
            first = (turn * blocks + block) * columns[0]
            canvas.rect(left + first * unit, 48, count * unit, 30, *colours[block])
    for block in range(blocks):
        pale, colour = colours[block]
        x, middle = x_of(block), x_of(block) + width / 2
        # From the piece of this block that is nearest.
        piece = pieces[block][0]
        turn = round(((middle - left) / unit / piece - block - 0.5) / blocks)
        start = left + ((turn * blocks + block) + 0.5) * piece * unit
        canvas.rect(x, 104, width, 372, LIGHT, EDGE, 1, 8)
        canvas.arrow(start, 80, middle, 136)
        canvas.text(x + 10, 124, f"block {block}", 13, INK, bold=True)
        canvas.rect(x + 12, 138, width - 24, 44, pale, colour)
        canvas.text(middle, 157, f"{len(pieces[block])} pieces, in its\nown shared memory", 12, INK,
                    "middle")
        canvas.arrow(middle, 184, middle, 230)
        canvas.rect(middle - 22, 232, 44, 26, colour)
        canvas.text(middle, 250, f"p{block}", 13, "#ffffff", "middle", bold=True)
        for slot in range(blocks):
            slot_pale, slot_colour = colours[slot]
            at = x + 12 + slot * 38
            canvas.rect(at, 362, 36, 28, slot_pale, slot_colour)
            canvas.text(at + 18, 381, f"p{slot}", 13, INK, "middle", bold=True)
        canvas.text(middle, 405, "its seen_smem", 12, GREY, "middle")
        canvas.arrow(middle, 424, middle, 444)
        canvas.text(middle, 462, "merged; its pieces of y", 12, INK, "middle")
    for block in range(blocks):
        for to in range(blocks):
            canvas.line(x_of(block) + width / 2, 259, x_of(to) + 12 + block * 38 + 18, 361,
                        colours[block][1], 2 if block == to else 1.2)
    for y in (208, 415):
        canvas.line(left - 12, y, x_of(blocks - 1) + width + 12, y, RED, 2.5)
    canvas.text(20, 500, "p is a pair (maximum, sum). One is drawn for a block; in the kernel each "
                f"of its {threads // WARP} warps has its own.", 12)
    canvas.line(20, 510, 20, 526, RED, 2.5)
    canvas.text(30, 522, "a barrier of the cluster. The first: all blocks have begun, and may be "
                "written to. The second:", 12)
    canvas.text(30, 540, "all have written. After it each block reads only its own memory.", 12)
    canvas.text(20, 562, f"A piece is {threads * 4:,} elements, 16 bytes for each of {threads} threads. "
                "The blocks take them in turn.", 12)
    return canvas


# ---- Forward, step 8: the next row comes while this one goes ----
def timeline(_root):
    canvas = Canvas(800, 330, "Forward, step 8: a cluster that stays")
    left, slow = 120, 44
    kinds = {"start": ("start", LIGHT, GREY), "load": ("load", A_PALE, A),
             "reduce": ("reduce", C_PALE, C), "mail": ("exchange", LIGHT, GREY),
             "store": ("store", B_PALE, B)}

    def lane(y, label, parts):
        canvas.text(left - 12, y + 19, label, 13, INK, "end")
        for start, length, kind, row in parts:
            name, pale, colour = kinds[kind]
            canvas.rect(left + start * slow, y, length * slow - 2, 28, pale, colour)
            if row is not None:
                name = f"{name} {row}" if length > 1 else str(row)
            if length > 1 or row is not None:
                canvas.text(left + (start + length / 2) * slow - 1, y + 19, name, 12, INK, "middle")

    canvas.text(20, 30, "Step 7: for every row a cluster of its own", 14, bold=True)
    one = ((0, 0.6, "start"), (0.6, 2.6, "load"), (3.2, 1.4, "reduce"), (4.6, 0.9, "mail"),
           (5.5, 2, "store"))
    lane(48, "memory, in", [(0.6 + 7.5 * row, 2.6, "load", row) for row in range(2)])
    lane(84, "threads", [(start + 7.5 * row, length, kind, None if kind in ("start", "mail") else row)
                         for row in range(2) for start, length, kind in one if kind != "load"])
    canvas.text(20, 158, "Step 8: the places of a chunk that is stored take one of the next row", 14,
                bold=True)
    lane(176, "memory, in", [(0.6, 2.6, "load", 0)] + [(5.5 + 4.9 * row, 2.6, "load", row + 1)
                                                       for row in range(2)])
    lane(212, "threads", [(0, 0.6, "start", None)] +
         [(start + 4.9 * row, length, kind, None if kind == "mail" else row)
          for row in range(3) for start, length, kind in one[2:] if start + 4.9 * row < 14])
    canvas.text(20, 272, "Grey: a cluster starts; its blocks exchange their pairs. While a cluster "
                "exchanges or reduces,", 12)
    canvas.text(20, 290, "memory waits for it. But others on the same multiprocessors are then at "
                "another place of their rows.", 12)
    canvas.text(20, 316, "Lengths are for show.", 12, GREY)
    return canvas


# ---- Forward, step 5: the chunks and ends of rows that begin anywhere ----
def ends_of(first, cols, lanes, width):
    """As RowEnds cuts the `cols` elements from `first` on: (column, how many elements, thread)."""
    head, chunks = -first % width, cols // width - 1
    tail = head + chunks * width
    ends = [*range(head), *range(tail, cols)]
    return sorted([(head + width * chunk, width, chunk % lanes) for chunk in range(chunks)]
                  + [(column, 1, n % lanes) for n, column in enumerate(ends)])


def row_ends(_root):
    rows, cols, lanes, width = 2, 27, 8, 8
    canvas = Canvas(800, 244, "Forward, step 5: the chunks and the ends of rows that begin anywhere")
    left, cell, top = 30, 13.6, 112
    canvas.text(20, 30, f"{rows} rows of {cols} elements of 2 bytes, one after the other in memory",
                14, bold=True)
    canvas.text(20, 50, f"A box is a load or a store: a chunk of 16 bytes, or a single element. In it "
                f"the lane, 0 to {lanes - 1}, that has it.", 12, GREY)
    for at in range(0, rows * cols + 1, width):
        x = left + at * cell
        canvas.line(x, top - 26, x, top - 6, INK, 2)
        if at + width <= rows * cols:
            canvas.text(x + 5, top - 14, "16 bytes", 12, GREY)
    for row in range(rows):
        first = row * cols
        for column, count, lane in ends_of(first, cols, lanes, width):
            x = left + (first + column) * cell
            fill, stroke = (A_PALE, A) if count > 1 else (C_PALE, C)
            canvas.rect(x + 1, top, count * cell - 2, 34, fill, stroke, 1)
            canvas.text(x + count * cell / 2, top + 22, f"{lane}", 13, INK, "middle")
        x0, x1 = left + first * cell + 2, left + (first + cols) * cell - 2
        canvas.line(x0, top + 44, x1, top + 44, INK, 1.5)
        canvas.text((x0 + x1) / 2, top + 62, f"row {row}: {-first % width} elements before its first "
                    f"chunk", 12, INK, "middle")
    canvas.text(20, top + 96, f"Both rows have two chunks and {cols - 2 * width} elements of ends. A "
                f"lane has at most two of these,", 12)
    canvas.text(20, top + 114, "and one where 16 lanes or more share a row.", 12)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("traffic", traffic), ("forward2_tree", block_tree), ("forward3_butterfly", warp_butterfly),
    ("forward4_online", online_softmax), ("forward7_cluster", cluster),
    ("forward8_timeline", timeline), ("forward5_ends", row_ends))}
