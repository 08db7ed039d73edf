"""The figures of chapter 02."""
import json
import math

from drawing import (A, A_PALE, B, B_PALE, C, C_PALE, EDGE, GREY, INK, LIGHT, RED, RED_PALE, Canvas,
                     constants)

CHAPTER = "02_matmul"
MEASURED = "docs/results/measure/memory.json"
WARP, BANKS, SECTOR = 32, 32, 8  # threads; words of shared memory a cycle; floats in 32 bytes

# An H200: NVIDIA's data sheet and Hopper tuning guide. The clock is the highest.
MULTIPROCESSORS, LANES, CLOCK_GHZ, DEVICE_TB_PER_S = 132, 128, 1.98, 4.8
KIB = 256  # of registers, and of shared memory with the L1 cache, a multiprocessor
TFLOPS = MULTIPROCESSORS * LANES * 2 * CLOCK_GHZ / 1000


def of(root, *files):
    """The constants of some of the chapter's files."""
    known = {}
    for file in files:
        known |= constants((root / CHAPTER / file).read_text(encoding="utf-8"))
    return known


# ---- What limits a kernel ----
def roofline(_root):
    canvas = Canvas(800, 400, "The roofline of an H200 in fp32")
    left, right, top, bottom = 84, 770, 50, 340
    x_from, x_to, y_from, y_to = 1 / 16, 4096, 0.2, 128

    def x_of(intensity):
        return left + (right - left) * math.log(intensity / x_from) / math.log(x_to / x_from)

    def y_of(rate):
        return bottom - (bottom - top) * math.log(rate / y_from) / math.log(y_to / y_from)

    for rate in (1, 10, 100):
        canvas.line(left, y_of(rate), right, y_of(rate), EDGE, 1)
        canvas.text(left - 8, y_of(rate) + 4, f"{rate}", anchor="end", fill=GREY)
    for intensity in (0.1, 1, 10, 100, 1000):
        canvas.line(x_of(intensity), top, x_of(intensity), bottom, EDGE, 1)
        canvas.text(x_of(intensity), bottom + 20, f"{intensity:,}", anchor="middle", fill=GREY)
    canvas.text(16, 30, "TFLOP/s", fill=GREY)
    canvas.text(right, bottom + 42, "operations for each byte that device memory moves",
                anchor="end", fill=GREY)

    ridge = TFLOPS / DEVICE_TB_PER_S
    canvas.line(x_of(x_from), y_of(x_from * DEVICE_TB_PER_S), x_of(ridge), y_of(TFLOPS), INK, 3)
    canvas.line(x_of(ridge), y_of(TFLOPS), right, y_of(TFLOPS), INK, 3)
    canvas.text(x_of(30), y_of(TFLOPS) - 12, f"arithmetic: {TFLOPS:.0f} TFLOP/s", bold=True)
    canvas.text(x_of(0.1), y_of(30), "memory:\n4.8 TB/s × operations per byte", bold=True)

    def point(intensity, label, colour, dx, dy, anchor="start"):
        rate = min(TFLOPS, intensity * DEVICE_TB_PER_S)
        canvas.line(x_of(intensity), y_of(rate), x_of(intensity), bottom, colour, 1.5, "4 4")
        canvas.dot(x_of(intensity), y_of(rate), 6, colour)
        canvas.text(x_of(intensity) + dx, y_of(rate) + dy, label, fill=colour, anchor=anchor)

    point(1 / 12, "vector add\n1/12", RED, 16, 8)
    point(64 / 6, "product of\n64³: 11", A, 12, 30)
    point(512 / 6, "512³: 85", A, 12, 48)
    point(4096 / 6, "4096³: 683", A, 12, 48)
    return canvas


def l2_speed(root):
    """What docs/measure/memory.cu measured, and where."""
    row = next(row for row in json.loads((root / MEASURED).read_text(encoding="utf-8"))
               if (row["step"], row["metric"]) == ("L2", "bandwidth"))
    return f"{row['value']:.1f} {row['unit']}", f"measured, on an {row['gpu'].split()[1]}"


def memories(root):
    canvas = Canvas(800, 470, "The memories of an H200")
    clock = CLOCK_GHZ * MULTIPROCESSORS / 1000  # TB/s for each byte a cycle and multiprocessor
    size_x, speed_x = 386, 566
    canvas.text(24, 30, f"NVIDIA H200: {MULTIPROCESSORS} multiprocessors at {CLOCK_GHZ} GHz", 14,
                bold=True)
    canvas.text(size_x, 62, "size", 13, GREY)
    canvas.text(speed_x, 62, "speed, whole card", 13, GREY)

    def level(y, name, note, pale, colour, size, speed):
        canvas.rect(40, y, 310, 68, pale, colour, 1.5, 5)
        canvas.text(54, y + 28, name, 14, INK, bold=True)
        canvas.text(54, y + 50, note, 12, INK)
        for x, (first, second) in ((size_x, size), (speed_x, speed)):
            canvas.text(x, y + 28, first, 14, INK, bold=True)
            canvas.text(x, y + 50, second, 12, GREY)

    canvas.rect(24, 76, 342, 196, LIGHT, EDGE, 1, 8)
    level(100, "registers", "of one thread, 255 at most", C_PALE, C,
          (f"{KIB * MULTIPROCESSORS / 1024:.0f} MiB", f"{KIB} KiB each"),
          (f"{LANES * 3 * 4 * clock:,.0f} TB/s", f"3 words to {LANES} threads a cycle"))
    canvas.text(40, 94, "one multiprocessor", 12, GREY)
    level(192, "shared memory, L1 cache", "of a block; the L1 works by itself", A_PALE, A,
          (f"{KIB * MULTIPROCESSORS / 1024:.0f} MiB", f"{KIB} KiB each, together"),
          (f"{BANKS * 4 * clock:,.1f} TB/s", f"{BANKS} words a cycle"))
    level(288, "L2 cache", "of all blocks; works by itself", B_PALE, B,
          ("60 MB", "for all"), l2_speed(root))
    level(384, "device memory", "where A, B and C lie", RED_PALE, RED,
          ("141 GB", "for all"), (f"{DEVICE_TB_PER_S} TB/s", "a copy reaches nine tenths"))
    for y0, y1, line in ((192, 168, 5), (288, 260, 3), (384, 356, 1.5)):
        canvas.arrow(195, y0, 195, y1, line)
    return canvas


# ---- Steps 1 and 2: what a warp asks for ----
def lanes_of_a_warp(along_rows):
    """The element of C that each thread of the first warp computes."""
    return [(lane, 0) if along_rows else (0, lane) for lane in range(WARP)]


def sectors(elements, cols):
    """The sectors that elements (row, col) of a row-major matrix lie in, as (row, first column)."""
    assert cols % SECTOR == 0
    return sorted({(row, col // SECTOR * SECTOR) for row, col in elements})


def warp_access(along_rows, title):
    cell, k, n = 9, 16, WARP
    rows_shown = WARP if along_rows else 12
    step = 5  # of the walk along k
    lanes = lanes_of_a_warp(along_rows)
    a_x, c_x, b_y, c_y = 24, 24 + k * cell + 40, 82, 82 + k * cell + 44
    canvas = Canvas(760, max(c_y + rows_shown * cell, 356) + 24, title)
    asked = []

    def matrix(name, x, y, cols, rows, elements, colour, pale):
        canvas.rect(x, y, cols * cell, rows * cell, LIGHT, EDGE)
        found = sectors(elements, cols)
        for row, col in found:
            canvas.rect(x + col * cell, y + row * cell, SECTOR * cell, cell, pale)
        for row, col in sorted(set(elements)):
            canvas.rect(x + col * cell + 0.75, y + row * cell + 0.75, cell - 1.5, cell - 1.5,
                        colour)
        asked.append((name, len(set(elements)), len(found), colour))

    matrix("A", a_x, c_y, k, rows_shown, [(row, step) for row, _ in lanes], A, A_PALE)
    matrix("B", c_x, b_y, n, k, [(step, col) for _, col in lanes], B, B_PALE)
    matrix("C", c_x, c_y, n, rows_shown, lanes, C, C_PALE)
    if along_rows:
        for lane in (0, WARP - 1):
            canvas.text(c_x + SECTOR * cell + 6, c_y + lane * cell + 10, f"thread {lane}", 12, C)
    else:
        canvas.text(c_x, c_y + cell + 18, "thread 0", 12, C)
        canvas.text(c_x + n * cell, c_y + cell + 18, f"thread {WARP - 1}", 12, C, "end")
    canvas.text(a_x, c_y - 10, "A", 16, A, bold=True)
    canvas.text(c_x, b_y - 10, "B", 16, B, bold=True)
    canvas.text(c_x, c_y - 10, "C", 16, C, bold=True)
    canvas.text(a_x + 20, c_y - 10, "→ along k", 12, GREY)
    canvas.text(c_x + 20, b_y - 10, "→ columns", 12, GREY)
    canvas.text(c_x + 20, c_y - 10, "→ columns", 12, GREY)
    canvas.text(24, 30, title, 14, bold=True)
    canvas.text(24, 50, "One load of A, one of B, and the store to C.", 12, GREY)

    x, y = c_x + n * cell + 28, b_y + 6
    canvas.text(x, y, f"{WARP} threads ask for", 14, bold=True)
    for name, elements, found, colour in asked:
        y += 54
        canvas.rect(x, y - 12, 14, 14, colour)
        canvas.text(x + 22, y, f"{name}: {elements} element{'s' if elements > 1 else ''} in", 13)
        canvas.text(x + 22, y + 19, f"{found} sector{'s' if found > 1 else ''}, "
                                    f"{found * 32:,} bytes", 13, bold=found == WARP)
    y += 62
    for colours, label in (((A, B, C), "wanted"), ((A_PALE, B_PALE, C_PALE), "fetched with it")):
        for i, colour in enumerate(colours):
            canvas.rect(x + i * 15, y - 12, 13, 13, colour)
        canvas.text(x + 54, y, label, 12, GREY)
        y += 22
    return canvas


def step1(_root):
    return warp_access(True, "Step 1: the 32 threads of a warp are 32 rows of C")


def step2(_root):
    return warp_access(False, "Step 2: the 32 threads of a warp are 32 columns of C")


# ---- Step 3 ----
def step3(root):
    tile = of(root, "step3_shared_tile.cu")["kTile"]
    canvas = Canvas(800, 440, "Step 3: a block's tiles")
    side, tiles = 40, 4
    a_x, c_x, b_y, c_y = 40, 250, 44, 252
    row, col, now = 1, 2, 2

    def grid(name, x, y, colour, pale, band):
        for i in range(tiles):
            for j in range(tiles):
                full = band(i, j)
                fill = colour if full == 2 else pale if full else LIGHT
                canvas.rect(x + j * side, y + i * side, side, side, fill, "#ffffff", 2)
        canvas.text(x, y - 10, name, 16, colour, bold=True)

    grid("A", a_x, c_y, A, A_PALE, lambda i, j: (i == row) + (i == row and j == now))
    grid("B", c_x, b_y, B, B_PALE, lambda i, j: (j == col) + (j == col and i == now))
    grid("C", c_x, c_y, C, C_PALE, lambda i, j: 2 * (i == row and j == col))
    canvas.text(a_x, c_y + tiles * side + 20, f"a square is {tile} × {tile} elements", 12, GREY)

    x, cell = 532, 9
    canvas.text(x - 12, 36, "shared memory of the block", 14, bold=True)
    canvas.rect(x - 12, 48, 260, 184, LIGHT, EDGE, 1, 8)
    for i in range(8):
        for j in range(8):
            canvas.rect(x + j * cell, 60 + i * cell, cell - 1, cell - 1, B if j == 5 else B_PALE)
            canvas.rect(x + j * cell, 148 + i * cell, cell - 1, cell - 1, A if i == 3 else A_PALE)
    canvas.text(x + 86, 76, f"b_smem\na column serves\n{tile} rows of C", 13)
    canvas.text(x + 86, 164, f"a_smem\na row serves\n{tile} columns of C", 13)
    canvas.arrow(a_x + (now + 1) * side, c_y + row * side + 8, x - 4, 186)
    canvas.arrow(c_x + (col + 1) * side, b_y + now * side + 14, x - 4, 98)

    y = 288
    for line in (f"1  load: a thread, an element of each",
                 "2  barrier: the tiles are complete",
                 f"3  multiply: {tile} products a thread",
                 "4  barrier: all threads have read them",
                 "5  one tile on along k, from 1 again"):
        canvas.text(470, y, line, 13)
        y += 27
    return canvas


# ---- Step 4 ----
def step4_elements(thread, k):
    """The (row, col) of the block's tile that a thread computes."""
    threads_m, threads_n = k["kTileM"] // k["kThreadM"], k["kTileN"] // k["kThreadN"]
    row, col = thread // threads_n, thread % threads_n
    return [(row + i * threads_m, col + j * threads_n)
            for i in range(k["kThreadM"]) for j in range(k["kThreadN"])]


def step4(root):
    k = of(root, "step4_register_tile.cu")
    canvas = Canvas(800, 430, "Step 4: a thread's elements of C")
    cell, x, y, thread = 2.6, 34, 66, 37
    canvas.text(x, 30, f"the block's tile of C, {k['kTileM']} × {k['kTileN']}", 14, bold=True)
    canvas.text(x, 50, f"and the elements of thread {thread}", 12, GREY)
    canvas.rect(x, y, k["kTileN"] * cell, k["kTileM"] * cell, LIGHT, EDGE)
    mine = step4_elements(thread, k)
    for row in sorted({row for row, _ in mine}):
        canvas.rect(x, y + row * cell, k["kTileN"] * cell, cell, A_PALE)
    for col in sorted({col for _, col in mine}):
        canvas.rect(x + col * cell, y, cell, k["kTileM"] * cell, B_PALE)
    for row, col in mine:
        canvas.rect(x + col * cell - 1.2, y + row * cell - 1.2, cell + 2.4, cell + 2.4, C)

    x, y, cell = 498, 122, 27
    m, n = k["kThreadM"], k["kThreadN"]
    canvas.text(430, 30, "for one l, in its registers", 14, bold=True)
    for j in range(n):
        canvas.rect(x + j * cell, y - 42, cell - 3, cell - 3, B_PALE, B)
    for i in range(m):
        canvas.rect(x - 42, y + i * cell, cell - 3, cell - 3, A_PALE, A)
        for j in range(n):
            canvas.rect(x + j * cell, y + i * cell, cell - 3, cell - 3, C_PALE, C)
            canvas.text(x + j * cell + 12, y + i * cell + 16, "+=", 12, C, "middle")
    canvas.text(x, y - 52, f"{n} values of b_smem", 13, B)
    for i, line in enumerate((f"{m} values", "of", "a_smem")):
        canvas.text(x - 52, y + 96 + i * 18, line, 13, A, "end")
    canvas.text(430, y + m * cell + 28, f"{m + n} loads, {m * n} multiply-adds:", 14, bold=True)
    canvas.text(430, y + m * cell + 50, f"{(m + n) / (m * n):g} of a load for each; step 3 has 2",
                13)
    return canvas


def step4_stored(lane, k):
    """Which (k, row of A) the threads of a warp store in step 4, if A is contiguous along k."""
    return lane % k["kTileK"], lane // k["kTileK"]


def bank(k_row, x, pitch):
    return (k_row * pitch + x) % BANKS


def banks(root):
    k = of(root, "step4_register_tile.cu")
    canvas = Canvas(800, 420, "Which bank each thread stores to, without and with padding")
    width, left = 22.6, 38

    def strip(y, rows, pitch, label, verdict, colour, pale):
        canvas.text(left, y - 26, label, 14, bold=True)
        height = 19
        stacks = {}
        for lane in range(WARP):
            stacks.setdefault(bank(*step4_stored(lane, k), pitch), []).append(lane)
        for b in range(BANKS):
            canvas.rect(left + b * width, y, width - 2, rows * height, LIGHT)
            for i, lane in enumerate(stacks.get(b, [])):
                at = y + (rows - 1 - i) * height
                canvas.rect(left + b * width, at, width - 2, height - 2, pale, colour)
                canvas.text(left + (b + 0.5) * width - 1, at + 13, f"{lane}", 12, INK, "middle")
            canvas.text(left + (b + 0.5) * width - 1, y + rows * height + 15, f"{b}", 12, GREY,
                        "middle")
        deepest = max(len(lanes) for lanes in stacks.values())
        plural = "s" if deepest > 1 else ""
        canvas.text(left, y + rows * height + 38, f"{deepest} wavefront{plural}: {verdict}", 13,
                    colour, bold=True)

    strip(64, 8, k["kTileM"], f"rows of {k['kTileM']} words: bank = (l · {k['kTileM']} + row) mod "
          "32 = row", "eight threads want the same bank", RED, RED_PALE)
    strip(324, 1, k["kPitch"], f"rows of {k['kPitch']} words: bank = (l · {k['kPitch']} + row) mod "
          "32 = 4 · l + row", "each thread has a bank of its own", C, C_PALE)
    canvas.text(left, 404, "In a box: thread t, which stores l = t mod 8 of row t / 8 of the tile "
                "of A. Below: the bank.", 12, GREY)
    return canvas


# ---- Steps 5 and 6 ----
def position(thread, k):
    """ThreadPosition's row and col."""
    warp, lane = thread // WARP, thread % WARP
    warps_n, vector = k["kTileN"] // k["kWarpN"], k["kVector"]
    return (warp // warps_n * k["kWarpM"] + lane // k["kLanesN"] * vector,
            warp % warps_n * k["kWarpN"] + lane % k["kLanesN"] * vector)


def row_of(i, k):
    return i // k["kVector"] * k["kLanesM"] * k["kVector"] + i % k["kVector"]


def col_of(j, k):
    return j // k["kVector"] * k["kLanesN"] * k["kVector"] + j % k["kVector"]


def step5_elements(thread, k):
    row, col = position(thread, k)
    return [(row + row_of(i, k), col + col_of(j, k))
            for i in range(k["kThreadM"]) for j in range(k["kThreadN"])]


def step5(root):
    k = of(root, "tiles.cuh")
    vector, shown = k["kVector"], 10
    canvas = Canvas(800, 540, "Step 5: which thread computes what")
    cell, x, y = 1.5, 28, 92
    canvas.text(x, 30, f"the block's tile, {k['kTileM']} × {k['kTileN']}", 14, bold=True)
    canvas.text(x, 50, f"{k['kThreads'] // WARP} warps of {k['kWarpM']} × {k['kWarpN']}", 12, GREY)
    for warp in range(k["kThreads"] // WARP):
        row, col = position(warp * WARP, k)
        canvas.rect(x + col * cell, y + row * cell, k["kWarpN"] * cell, k["kWarpM"] * cell,
                    C_PALE if warp == 0 else LIGHT, "#ffffff", 2)
        canvas.text(x + (col + k["kWarpN"] / 2) * cell, y + (row + k["kWarpM"] / 2) * cell + 5,
                    f"warp {warp}", 13, INK, "middle")

    x, y, box = 330, 92, 27
    across, down = k["kWarpN"] // vector, k["kWarpM"] // vector
    owner = {}
    for lane in range(WARP):
        for row, col in step5_elements(lane, k):
            owner[row // vector, col // vector] = lane
    canvas.text(x - 36, 30, f"warp 0: a square is {vector} × {vector} elements of one thread", 14,
                bold=True)
    for i in range(down):
        mine = any(owner[i, j] == shown for j in range(across))
        canvas.rect(x - 34, y + i * box, 24, box - 3, A if mine else A_PALE)
        for j in range(across):
            chosen = owner[i, j] == shown
            canvas.rect(x + j * box, y + i * box, box - 3, box - 3, C if chosen else C_PALE)
            canvas.text(x + j * box + 12, y + i * box + 17, f"{owner[i, j]}", 12,
                        "#ffffff" if chosen else INK, "middle", bold=chosen)
    for j in range(across):
        mine = any(owner[i, j] == shown for i in range(down))
        canvas.rect(x + j * box, y - 34, box - 3, 24, B if mine else B_PALE)
    canvas.text(x - 36, 50, f"b_smem: {across} vectors of one l", 12, B)
    canvas.text(x - 46, y + 14, "a_smem:", 12, A, "end")
    a_vectors, b_vectors = k["kThreadM"] // vector, k["kThreadN"] // vector
    products = k["kThreadM"] * k["kThreadN"]
    y = 330
    for line in (f"thread {shown} reads", f"{a_vectors} vectors of A and {b_vectors} of B",
                 f"for {products} multiply-adds"):
        canvas.text(28, y, line, 14)
        y += 24
    for line in ("Its neighbours in a row", "read the same vectors of A,",
                 "those in a column of B:", "a value read once serves all."):
        canvas.text(28, y + 12, line, 13, GREY)
        y += 20
    return canvas


def step6(root):
    k_of_tile = of(root, "tiles.cuh")["kTileK"]
    canvas = Canvas(800, 470, "Steps 5 and 6 in time")
    left, right, height = 168, 780, 26
    fetch, put, cell = 70, 16, 12
    rows = (("global → registers", A, A_PALE), ("registers → shared", B, B_PALE),
            ("multiply-adds", C, C_PALE))

    class Chart:
        def __init__(self, y, title):
            self.y = y
            canvas.text(20, y - 16, title, 14, bold=True)
            for i, (name, _, _) in enumerate(rows):
                canvas.text(left - 12, y + i * 34 + 18, name, 13, INK, "end")
                canvas.rect(left, y + i * 34, right - left, height, LIGHT)

        def bar(self, row, begin, width, label, ink=INK):
            if begin >= right - left:
                return
            width = min(width, right - left - begin)
            _, colour, pale = rows[row]
            canvas.rect(left + begin, self.y + row * 34, width - 1, height, pale, colour)
            if label and width > 8 * len(label):
                canvas.text(left + begin + width / 2, self.y + row * 34 + 18, label, 12, ink,
                            "middle")

        def barrier(self, at):
            if at < right - left:
                canvas.line(left + at, self.y - 6, left + at, self.y + 3 * 34, RED, 2.5)

        def brace(self, begin, end, label):
            y = self.y + 3 * 34 + 12
            canvas.line(left + begin, y, left + end, y, GREY, 1.5)
            canvas.line(left + begin, y - 4, left + begin, y + 4, GREY, 1.5)
            canvas.line(left + end, y - 4, left + end, y + 4, GREY, 1.5)
            canvas.text(left + (begin + end) / 2, y + 18, label, 12, GREY, "middle")

    chart = Chart(60, "Step 5: in turns, two barriers a tile")
    at = 4
    for tile in range(4):
        begin = at
        chart.bar(0, at, fetch, f"tile {tile}")
        chart.bar(1, at + fetch, put, f"{tile}")
        chart.barrier(at + fetch + put + 2)
        at += fetch + put + 5
        for k in range(k_of_tile):
            chart.bar(2, at + k * cell, cell, f"{k}" if tile == 0 else "")
        at += k_of_tile * cell
        chart.barrier(at + 2)
        at += 6
        if tile == 0:
            chart.brace(begin, at, "one tile; the block multiplies half of the time")

    chart = Chart(260, "Step 6: at the same time, one barrier a tile")
    at = 4
    chart.bar(0, at, fetch, "tile 0")
    chart.bar(1, at + fetch, put, "0")
    chart.barrier(at + fetch + put + 2)
    at += fetch + put + 5
    for tile in range(5):
        begin = at
        chart.bar(0, at, fetch, f"tile {tile + 1}")
        for k in range(k_of_tile - 1):
            chart.bar(2, at + k * cell, cell, f"{k}" if tile == 0 else "")
        at += (k_of_tile - 1) * cell
        chart.bar(1, at, put, f"{tile + 1}")
        chart.barrier(at + put + 2)
        at += put + 5
        chart.bar(2, at, cell, f"{k_of_tile - 1}" if tile == 0 else "")
        at += cell
        if tile == 0:
            chart.brace(begin, at, "one tile")
    canvas.line(20, 424, 20, 440, RED, 2.5)
    canvas.text(30, 437, "a barrier. Numbers are tiles, and under multiply-adds the l in a tile. "
                "Not to scale.", 12, GREY)
    canvas.text(30, 456, "A second block on the multiprocessor multiplies while this one waits.",
                12, GREY)
    return canvas


def tile_of_block(block, down, across, group):
    """corner_in_groups, in tiles."""
    first, inside = block // (group * across) * group, block % (group * across)
    rows = min(group, down - first)
    return first + inside % rows, inside // rows


def blocks_at_a_time(root):
    """__launch_bounds__ asks for two blocks a multiprocessor."""
    source = (root / CHAPTER / "step6_double_buffered.cu").read_text(encoding="utf-8")
    assert "__launch_bounds__(kThreads, 2)" in source
    return 2 * MULTIPROCESSORS


def order(root):
    k = of(root, "tiles.cuh", "step6_double_buffered.cu")
    extent = 8192
    down = across = extent // k["kTileM"]
    running = blocks_at_a_time(root)
    canvas = Canvas(800, 262, "Which tiles the blocks compute that run at one time")
    cell, shown = 5, 20  # rows of tiles; the others are as empty

    def grid(x, title, tiles):
        y = 92
        canvas.text(x, 30, title, 14, bold=True)
        canvas.rect(x, y, across * cell, shown * cell, LIGHT)
        canvas.line(x, y + shown * cell, x + across * cell, y + shown * cell, GREY, 1.5, "6 5")
        rows, cols = sorted({row for row, _ in tiles}), sorted({col for _, col in tiles})
        for row in rows:
            canvas.rect(x - 20, y + row * cell, 14, cell - 1, A)
        for col in cols:
            canvas.rect(x + col * cell, y - 20, cell - 1, 14, B)
        for row, col in tiles:
            canvas.rect(x + col * cell, y + row * cell, cell - 1, cell - 1, C)
        canvas.text(x, y - 28, f"{len(cols)} tiles of B", 13, B)
        canvas.text(x - 20, y + (len(rows) + 4) * cell, f"{len(rows)} tiles of A", 13, A)
        canvas.text(x + across * cell, y + (len(rows) + 8) * cell,
                    f"{len(rows)} + {len(cols)} = {len(rows) + len(cols)} tiles", 14, bold=True,
                    anchor="end")

    grid(52, f"in rows: the first {running} blocks",
         [(block // across, block % across) for block in range(running)])
    grid(450, f"in groups of {k['kGroup']} rows: the same {running}",
         [tile_of_block(block, down, across, k["kGroup"]) for block in range(running)])
    canvas.text(32, 218, f"{extent}³: C (green) has {down} × {across} tiles of {k['kTileM']} × "
                f"{k['kTileN']}, of which the upper {shown} rows are drawn.\n"
                "The blocks need these tiles of A and B at each step along k.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("roofline", roofline), ("memories", memories), ("step1_naive", step1),
    ("step2_coalesced", step2), ("step3_shared_tile", step3), ("step4_register_tile", step4),
    ("banks", banks), ("step5_vectors", step5), ("step6_double_buffered", step6),
    ("block_order", order))}
