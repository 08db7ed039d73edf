"""The figures of chapter 04."""
import fractions
import math
import random
import re
import statistics
import struct

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, EDGE, GREY, INK, LIGHT, RED, RED_PALE, Canvas,
                     constants)

CHAPTER = "04_layernorm"
WARP = 32


def of(root, file):
    """The constants of one of the chapter's files."""
    return constants((root / CHAPTER / file).read_text(encoding="utf-8"))


# ---- Forward, step 2: the merge of two parts ----
def moments(numbers):
    """Count, mean and squares, by the definition."""
    mean = fractions.Fraction(sum(numbers), len(numbers))
    return len(numbers), mean, sum((x - mean) ** 2 for x in numbers)


def merged(a, b):
    """MergeMoments: the moments of both, and what the distance adds to the squares of each part."""
    count = a[0] + b[0]
    mean = (a[0] * a[1] + b[0] * b[1]) / count
    added = [part[0] * (part[1] - mean) ** 2 for part in (a, b)]
    return (count, mean, a[2] + b[2] + (b[1] - a[1]) ** 2 * a[0] * b[0] / count), added


def merge(_root):
    parts = ((1, 2, 2, 3), (7, 9))
    a, b = (moments(part) for part in parts)
    both, added = merged(a, b)
    canvas = Canvas(800, 440, "Forward, step 2: the merge of two parts")
    left, unit, axis = 90, 66, 188
    colours = ((A, A_PALE, "a"), (B, B_PALE, "b"))

    def x_of(value):
        return left + float(value) * unit

    canvas.text(20, 30, "Two parts of a row, and what is known of both together", 14, bold=True)
    canvas.line(x_of(0), axis, x_of(10), axis, GREY, 1.5)
    for value in range(11):
        canvas.line(x_of(value), axis, x_of(value), axis + 5, GREY, 1.5)
        canvas.text(x_of(value), axis + 22, f"{value}", 12, GREY, "middle")
    for part, (count, mean, squares), (colour, _, name) in zip(parts, (a, b), colours):
        for i, value in enumerate(part):
            canvas.dot(x_of(value), axis - 10 - 16 * part[:i].count(value), 7, colour)
        canvas.line(x_of(mean), axis - 60, x_of(mean), axis - 38, colour, 2.5)
        canvas.text(x_of(mean), 66, f"{name}: {count} numbers", 13, colour, "middle", bold=True)
        canvas.text(x_of(mean), 86, f"mean {mean}, squares {squares}", 13, colour, "middle")
    y = axis - 49
    canvas.line(x_of(both[1]), axis - 60, x_of(both[1]), axis + 2, C, 2.5)
    canvas.text(x_of(both[1]), axis - 90, "both", 13, C, "middle", bold=True)
    canvas.text(x_of(both[1]), axis - 70, f"mean {both[1]}", 13, C, "middle")
    for part, (colour, _, _) in zip((a, b), colours):
        way = 1 if part[1] < both[1] else -1
        canvas.arrow(x_of(both[1]) - 3 * way, y, x_of(part[1]) + 3 * way, y)
        canvas.text((x_of(both[1]) + x_of(part[1])) / 2, y + 18, f"{abs(part[1] - both[1])}", 13,
                    colour, "middle", bold=True)
    canvas.text(20, axis + 52, f"The mean divides the distance of {b[1] - a[1]} as {b[0]} : "
                f"{a[0]}, nearer to the part with more numbers.", 13)

    top, scale = axis + 104, (x_of(10) - x_of(0)) / float(both[2])
    canvas.text(20, top - 20, f"squares of both: {both[2]}", 14, C, bold=True)
    x = x_of(0)
    for value, fill, colour in ((a[2], A, A), (b[2], B, B), (added[0], A_PALE, A),
                                (added[1], B_PALE, B)):
        width = float(value) * scale
        canvas.rect(x, top, width - 1, 34, fill, colour)
        canvas.text(x + width / 2, top + 22, f"{value}", 13,
                    "#ffffff" if fill == colour else INK, "middle", bold=True)
        x += width
    y = top + 58

    def farther(part, name):
        way = abs(part[1] - both[1])
        return f"{part[0]} numbers of {name}, their mean {way} away: {part[0]} × {way}²"

    for fill, colour, text in ((A, A, "squares of a"), (B, B, "squares of b"),
                               (A_PALE, A, farther(a, "a")), (B_PALE, B, farther(b, "b"))):
        canvas.rect(x_of(0), y - 11, 13, 13, fill, colour)
        canvas.text(x_of(0) + 22, y, text, 13)
        y += 22
    canvas.text(x_of(6.1), top + 80, "the last two together:", 13)
    canvas.text(x_of(6.1), top + 101, f"distance² {a[0]} · {b[0]} / {both[0]} = {sum(added)}", 13,
                bold=True)
    return canvas


# ---- Forward, step 2: which variance is how good ----
# fp32: what a double is rounded to. Of two fp32 numbers, + - * / are exact enough in double for
# this second rounding to give what fp32 itself gives. No multiply-add is fused.
FLOAT = struct.Struct("f")
THREADS, COLS, UNIT_ROUNDOFF = 256, 4096, 2.0 ** -24


def fp32(value):
    return FLOAT.unpack(FLOAT.pack(value))[0]


def add(a, b):
    return fp32(a + b)


def reduce_block(values, combine, identity):
    """As tile::reduce_block merges the values of a block's threads: a butterfly in each warp, and
    one over the warps. All lanes get the same bits, so lane 0 is enough."""
    def lanes(have):
        while len(have) > 1:
            half = len(have) // 2
            have = [combine(have[i], have[i + half]) for i in range(half)]
        return have[0]

    warps = [lanes(values[i:i + WARP]) for i in range(0, len(values), WARP)]
    return lanes(warps + [identity] * (WARP - len(warps)))


def row_sum(values):
    """Each thread adds up every 256th number, then the block."""
    own = []
    for thread in range(THREADS):
        total = 0.0
        for value in values[thread::THREADS]:
            total = fp32(total + value)
        own.append(total)
    return reduce_block(own, add, 0.0)


def one_pass(x):
    """Sums of x and of its square."""
    mean = fp32(row_sum(x) / len(x))
    return fp32(fp32(row_sum([fp32(value * value) for value in x]) / len(x)) - fp32(mean * mean))


def two_pass(x):
    """Forward, step 1."""
    mean = fp32(row_sum(x) / len(x))
    centred = [fp32(value - mean) for value in x]
    return fp32(row_sum([fp32(value * value) for value in centred]) / len(x))


def merge_moments(a, b):
    count = a[0] + b[0]
    if count == 0:
        return 0.0, 0.0, 0.0
    distance = fp32(b[1] - a[1])
    mean = fp32(fp32(fp32(a[0] * a[1]) + fp32(b[0] * b[1])) / count)
    added = fp32(fp32(distance * distance) * fp32(fp32(a[0] * b[0]) / count))
    return count, mean, fp32(fp32(a[2] + b[2]) + added)


def welford(x):
    """Forward, step 2."""
    own = []
    for thread in range(THREADS):
        mean = squares = 0.0
        for before, value in enumerate(x[thread::THREADS]):
            distance = fp32(value - mean)
            mean = fp32(mean + fp32(distance / (before + 1)))
            squares = fp32(squares + fp32(distance * fp32(value - mean)))
        own.append((float(len(x[thread::THREADS])), mean, squares))
    return fp32(reduce_block(own, merge_moments, (0.0, 0.0, 0.0))[2] / len(x))


def exact_variance(x):
    """Of fp32 numbers, without any rounding."""
    numbers = [fractions.Fraction(value) for value in x]
    scale = max(number.denominator for number in numbers)
    whole = [int(number * scale) for number in numbers]
    total, squares = sum(whole), sum(number * number for number in whole)
    return fractions.Fraction(len(x) * squares - total * total, (len(x) * scale) ** 2)


def row_at(kappa):
    """Normal numbers with standard deviation 1 around kappa; always the same ones, shifted."""
    numbers, normal = random.Random(4), statistics.NormalDist()
    return [fp32(kappa + normal.inv_cdf(numbers.random())) for _ in range(COLS)]


def relative_error(variance, x):
    exact = exact_variance(x)
    return abs(float((fractions.Fraction(variance(x)) - exact) / exact))


def cancellation(_root):
    canvas = Canvas(800, 500, "Forward, step 2: the error of the variance, by three ways to compute it")
    left, right, top, bottom = 70, 610, 84, 440
    y_from, y_to, decades, steps = -9, 1, 4, 10

    def x_of(kappa):
        return left + (right - left) * math.log10(kappa) / decades

    def y_of(error):
        return bottom - (bottom - top) * (math.log10(error) - y_from) / (y_to - y_from)

    canvas.text(20, 30, f"A row of {COLS:,} normal numbers around κ, with standard deviation 1, in "
                "fp32", 14, bold=True)
    canvas.text(20, 52, "Relative error of the variance. Dashed: κ² u and κ u, with u = 2⁻²⁴.", 12,
                GREY)
    for power in range(y_from, y_to + 1):
        canvas.line(left, y_of(10 ** power), right, y_of(10 ** power), EDGE, 1)
        exponent = str(power).translate(str.maketrans("-123456789", "⁻¹²³⁴⁵⁶⁷⁸⁹"))
        label = f"{10 ** power}" if power >= 0 else f"10{exponent}"
        canvas.text(left - 10, y_of(10 ** power) + 4, label, 12, GREY, "end")
    canvas.text(right + 14, y_of(1) + 4, "1: as large as\nthe variance itself", 12, GREY)
    for kappa in (1, 10, 100, 1000, 10000):
        marked = kappa in (100, 1000)
        canvas.line(x_of(kappa), top, x_of(kappa), bottom, INK if marked else EDGE, 1,
                    "2 3" if marked else "")
        canvas.text(x_of(kappa), bottom + 20, f"{kappa:,}", 12, INK if marked else GREY, "middle",
                    bold=marked)
    canvas.text((left + right) / 2, bottom + 42, "κ = |mean| / standard deviation", 13, GREY,
                "middle")
    for power, colour in ((2, RED), (1, A)):
        last = min(10 ** decades, (10 ** y_to / UNIT_ROUNDOFF) ** (1 / power))
        canvas.line(x_of(1), y_of(UNIT_ROUNDOFF), x_of(last),
                    y_of(UNIT_ROUNDOFF * last ** power), colour, 1.5, "6 4")
    rows = [(kappa, row_at(kappa)) for kappa in (10 ** (i / steps)
                                                 for i in range(decades * steps + 1))]
    # Drawn later, and so on top where they meet: the better ones.
    ways = ((one_pass, RED, "sums of x and x²", 7), (welford, A, "Welford, step 2", 4e-5),
            (two_pass, C, "two passes, step 1", 4e-8))
    for way, colour, name, at in ways:
        canvas.dot(right + 20, y_of(at) - 4, 4, colour)
        canvas.text(right + 32, y_of(at), name, 13, colour, bold=True)
        for kappa, x in rows:
            canvas.dot(x_of(kappa), y_of(relative_error(way, x)), 3.5, colour)
    canvas.text(x_of(5), y_of(6e-5), "κ² u", 13, RED)
    canvas.text(x_of(1900), y_of(2.4e-4), "κ u", 13, A)
    return canvas


# ---- Backward, steps 1 and 2: sums down the columns ----
def group_of(row, k, groups):
    """The group of rows that a row belongs to in backward step 2."""
    return row // k["kRowsAtOnce"] % groups


def column_sums(root):
    k = of(root, "backward2_two_stage.cu")
    rows, groups, cols = 24, 3, 8
    canvas = Canvas(800, 486, "Backward, steps 1 and 2: sums down the columns")
    height, width, top = 12, 11, 86
    group_colours = ((A_PALE, A), (B_PALE, B), (C_PALE, C))

    def strip(x, y, pale, colour):
        """A row of a matrix; its last column is the one whose sum is followed."""
        for col in range(cols):
            canvas.rect(x + col * width, y, width - 1, height - 2,
                        colour if col == cols - 1 else pale)

    def middle(row):
        return top + row * height + height / 2 - 1

    def join(x0, y0, x1, y1, colour):
        canvas.line(x0 + cols * width, y0, x1 - 3, y1, colour, 1.2)

    centre = top + rows * height / 2
    left, sums = 52, 250
    canvas.text(20, 30, "Step 1: every row adds, with atomics", 14, bold=True)
    canvas.text(20, 52, "a block for each row; dark: one column", 12, GREY)
    canvas.text(sums, centre - 14, "sums, in fp32", 12, RED)
    for row in range(rows):
        if row % 4 == 0:
            canvas.text(left - 8, middle(row) + 4, f"{row}", 12, GREY, "end")
        strip(left, top + row * height, LIGHT, GREY)
        join(left, middle(row), sums, centre, RED)
    strip(sums, centre - height / 2, RED_PALE, RED)

    left, partial, last = 408, 548, 690
    canvas.text(380, 30, "Step 2: two stages", 14, bold=True)
    canvas.text(380, 52, f"a colour is a group of rows; {k['kRowsAtOnce']} at a time", 12, GREY)
    places = [centre + (group - 1) * 96 for group in range(groups)]
    for row in range(rows):
        if row % 4 == 0:
            canvas.text(left - 8, middle(row) + 4, f"{row}", 12, GREY, "end")
        group = group_of(row, k, groups)
        pale, colour = group_colours[group]
        strip(left, top + row * height, pale, colour)
        join(left, middle(row), partial, places[group], colour)
    for group, (pale, colour) in enumerate(group_colours):
        strip(partial, places[group] - height / 2, pale, colour)
        canvas.text(partial, places[group] - 14, "partial sums", 12, colour)
        join(partial, places[group], last, centre, colour)
    strip(last, centre - height / 2, LIGHT, INK)
    canvas.text(last, centre - 14, "dgamma", 12)

    y = top + rows * height + 30
    for x, lines in ((20, (f"All {rows} rows meet at each column's sum,", "and take turns.",
                           "Which comes first, and with it the",
                           "rounding, may be another in each run.")),
                     (380, (f"First kernel: a block adds up {k['kBlockCols']} columns over",
                            "one group, and writes a partial sum for each.",
                            "Second kernel: the partial sums, in one order.",
                            f"The kernel makes up to {k['kMaxGroups']} groups, not {groups}."))):
        for i, line in enumerate(lines):
            canvas.text(x, y + i * 20, line, 13)
    return canvas


# ---- Forward, step 3: a row in registers ----
def plan(cols, elements=32):
    """plan_row of rows that are longer than a warp's: the threads of a row."""
    return -(-cols // (elements * WARP)) * WARP


def columns_of(thread, threads, chunks, width):
    """The first column of each chunk of a thread: tile::ChunkColumns."""
    return [(i * threads + thread) * width for i in range(chunks)]


def registers(root):
    cols, width, thread = 4096, 4, 37
    elements = of(root, "layernorm.cuh")["kFloats"]
    threads, chunks = plan(cols, elements), elements // width
    canvas = Canvas(800, 466, "Forward, step 3: a row in the registers of its threads")
    left, scale, top, line = 118, 4, 92, 24
    canvas.text(20, 30, f"A row of {cols:,} elements of fp32: {threads} threads, {chunks} chunks "
                "of 16 bytes each", 14, bold=True)
    canvas.text(20, 52, f"A line is one load by all threads. Dark: thread {thread}. A warp reads "
                f"{WARP} × 16 = {WARP * 16} bytes in a row.", 12, GREY)
    for warp in range(threads // WARP):
        canvas.text(left + (warp + 0.5) * WARP * scale, top - 10, f"warp {warp}", 12, GREY,
                    "middle")
    canvas.text(left + threads * scale + 12, top - 10, "columns", 12, GREY)
    for i in range(chunks):
        y = top + i * line
        canvas.text(left - 12, y + 14, f"chunk {i}", 13, INK, "end")
        for warp in range(threads // WARP):
            canvas.rect(left + warp * WARP * scale, y, WARP * scale - 2, 18, A_PALE)
        canvas.rect(left + thread * scale - 1, y, scale + 2, 18, A)
        first = i * threads * width
        canvas.text(left + threads * scale + 12, y + 14,
                    f"{first:,} to {first + threads * width - 1:,}", 12, GREY)
    y = top + chunks * line
    x = left + thread * scale + scale / 2
    canvas.arrow(x, y, x, y + 24)
    y += 28
    canvas.text(20, y + 10, f"thread {thread}'s", 13, A, bold=True)
    canvas.text(20, y + 28, "registers", 13, A, bold=True)
    for i, col in enumerate(columns_of(thread, threads, chunks, width)):
        at = left + i * 83
        for e in range(width):
            canvas.rect(at + e * 19, y, 18, 20, A)
        canvas.text(at + 38, y + 36, f"{col}–{col + width - 1}", 12, GREY, "middle")

    y += 66
    canvas.text(20, y + 10, "in time", 13, bold=True)
    at = left
    for label, wide, pale, colour in ((f"{chunks} loads", 74, A_PALE, A), ("sum", 58, C_PALE, C),
                                      ("reduce", 74, LIGHT, GREY), ("squares", 80, C_PALE, C),
                                      ("reduce", 74, LIGHT, GREY),
                                      (f"{chunks} stores", 84, B_PALE, B)):
        canvas.rect(at, y - 8, wide, 28, pale, colour)
        canvas.text(at + wide / 2, y + 11, label, 13, INK, "middle")
        if at > left:
            canvas.arrow(at - 34, y + 6, at - 2, y + 6)
        at += wide + 36
    canvas.text(left, y + 46, "Green: over the thread's own registers. Only the first box reads "
                "the row, only the last", 12, GREY)
    canvas.text(left, y + 63, f"writes. A reduction has a barrier, as a row has {threads // WARP} "
                "warps here.", 12, GREY)
    return canvas


# ---- Forward, step 4: the sums of four rows at once ----
def exchange_and_add(lanes, rows):
    """Of each lane, before the first round and after each: which numbers it holds, as {row: the
    lanes whose numbers are added up in it}."""
    states = [[{row: {lane} for row in range(rows)} for lane in range(lanes)]]
    distance = lanes // 2
    while distance > 0:
        before, after = states[-1], []
        for lane in range(lanes):
            kept = sorted(before[lane])
            if len(kept) > 1:
                half = len(kept) // 2
                kept = kept[half:] if lane & distance else kept[:half]
            after.append({row: before[lane][row] | before[lane ^ distance][row] for row in kept})
        states.append(after)
        distance //= 2
    return states


def four_rows(_root):
    rows, lanes = 4, 8
    states = exchange_and_add(lanes, rows)
    colours = ((A_PALE, A), (B_PALE, B), (C_PALE, C), (RED_PALE, RED))
    canvas = Canvas(800, 420, "Forward, step 4: the sums of four rows at once")
    left, top, high, wide, box = 84, 92, 34, 178, 26
    canvas.text(20, 30, f"{rows} rows, {lanes} lanes: each lane begins with a number of each row",
                14, bold=True)
    canvas.text(20, 52, "A colour is a row. In a box: how many lanes' numbers are added up in it.",
                12, GREY)
    for round_, state in enumerate(states):
        x = left + round_ * wide
        distance = lanes >> round_
        title = f"distance {distance}" if round_ else "at first"
        canvas.text(x, top - 14, title, 13, INK, bold=True)
        for lane, held in enumerate(state):
            y = top + lane * high
            if round_ == 0:
                canvas.text(x - 12, y + 18, f"lane {lane}", 12, GREY, "end")
            for i, (row, added) in enumerate(sorted(held.items())):
                pale, colour = colours[row]
                canvas.rect(x + i * (box + 2), y, box, box, pale, colour)
                canvas.text(x + i * (box + 2) + box / 2, y + 18, f"{len(added)}", 13, INK, "middle",
                            bold=True)
    y = top + lanes * high + 22
    given = [max(map(len, before)) - max(map(len, after)) or 1
             for before, after in zip(states, states[1:])]
    for line in (f"Shuffles: {' + '.join(map(str, given))} = {sum(given)}. For each row alone: "
                 f"{rows} × {len(given)} = {rows * len(given)}.",
                 "In the first two rounds a lane gives away the half that it does not keep."):
        canvas.text(20, y, line, 13)
        y += 22
    return canvas


# ---- Forward, step 8: the ring of a persistent block ----
def ring(root):
    """The state of each row of the matrix in a block, while the block writes one row after the
    other."""
    text = "".join((root / CHAPTER / file).read_text(encoding="utf-8")
                   for file in ("row_parts.cuh", "forward8_persistent.cu"))
    ahead, couriers = (int(re.search(rf"\b{name} = (\d+)", text)[1])
                       for name in ("kAhead", "kCouriers"))
    rows, turns = 10, 5
    canvas = Canvas(800, 498, "Forward, step 8: the ring of a block's parts of rows")
    left, top, wide, high = 96, 98, 138, 30
    canvas.text(20, 30, f"A block's parts of rows: {ahead + 1 + couriers} stages of shared memory",
                14, bold=True)
    canvas.text(20, 52, "Time goes to the right. Each row passes through four states.", 12, GREY)
    for row in range(rows + 1):
        canvas.text(left - 12, top + row * high + 17, f"row {row}", 12, GREY, "end")
        for turn in range(turns):
            states = ([("write y", B_PALE, B)] + [("exchange", RED_PALE, RED)] * (ahead - 1) +
                      [("add up", C_PALE, C)] + [("on its way", A_PALE, A)] * couriers)
            if not 0 <= row - turn < len(states):
                continue
            name, pale, colour = states[row - turn]
            x = left + turn * wide
            canvas.rect(x + 3, top + row * high, wide - 6, high - 5, pale, colour)
            canvas.text(x + wide / 2, top + row * high + 17, name, 12, INK, "middle")
    for turn in range(turns):
        canvas.text(left + (turn + 0.5) * wide, top - 12, f"row {turn} is written", 12, GREY,
                    "middle")
    y = top + (rows + 1) * high + 22
    for i, line in enumerate((f"Most warps add up a row, and then write the one {ahead} rows before "
                              "it. They keep gamma and beta.",
                              f"{couriers} warps load parts, send what this block has added up, and "
                              "receive the same of other blocks.")):
        canvas.text(20, y + i * 20, line, 13)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("forward2_merge", merge), ("forward2_cancellation", cancellation),
    ("forward3_registers", registers), ("forward4_four_rows", four_rows),
    ("forward8_ring", ring),
    ("backward2_two_stage", column_sums))}
