"""The figures of chapter 01."""
from drawing import A, A_PALE, C, C_PALE, EDGE, GREY, INK, LIGHT, RED, RED_PALE, Canvas, constants

CHAPTER = "01_vector_add"
WARP, SECTOR = 32, 8  # threads; floats in 32 bytes
ELEMENTS = 1000       # n of the page's example
SHOWN = 2, 70         # the block and thread whose element is worked out


def of(root, file):
    return constants((root / CHAPTER / file).read_text(encoding="utf-8"))


# ---- Threads, blocks, the grid ----
def grid(root):
    threads = of(root, "step1_thread_per_element.cu")["kThreads"]
    blocks = (ELEMENTS + threads - 1) // threads
    canvas = Canvas(800, 240, f"{ELEMENTS} elements, a thread for each, in {blocks} blocks")
    cell, left, top, pitch = 5.4, 24, 92, 190
    canvas.text(left, 30, f"the grid: {blocks} blocks of {threads} threads for {ELEMENTS:,} "
                "elements", 14, bold=True)
    for block in range(blocks):
        x = left + block * pitch
        canvas.text(x, top - 28, f"blockIdx.x = {block}", 13, INK, bold=True)
        last = min((block + 1) * threads, ELEMENTS) - 1
        canvas.text(x, top - 10, f"i = {block * threads} to {last}", 12, GREY)
        for thread in range(threads):
            at = x + thread % WARP * cell, top + thread // WARP * cell
            fill = A_PALE if block * threads + thread < ELEMENTS else RED
            canvas.rect(*at, cell - 0.8, cell - 0.8, A if (block, thread) == SHOWN else fill)
    bottom = top + threads // WARP * cell
    block, thread = SHOWN
    x, y = left + block * pitch + (thread % WARP + 0.5) * cell, top + (thread // WARP + 0.5) * cell
    canvas.arrow(x, bottom + 42, x, y + cell)
    canvas.text(x, bottom + 60, f"threadIdx.x = {thread}\ni = {block} · {threads} + {thread} = "
                f"{block * threads + thread}", 13, A, "middle", bold=True)
    x = left + (blocks - 1) * pitch + WARP * cell
    spare = blocks * threads - ELEMENTS
    canvas.arrow(x - 12, bottom + 42, x - 12, bottom + 2)
    canvas.text(x, bottom + 60, f"{spare} spare threads", 13, RED, "end", bold=True)
    canvas.text(x, bottom + 78, f"i = {ELEMENTS} to {blocks * threads - 1}", 13, RED, "end")
    canvas.text(left, bottom + 60, "a square is a thread,\n32 of them to a row", 12, GREY)
    return canvas


# ---- Coalescing ----
def sectors(elements):
    """The sectors that elements of a vector lie in."""
    return sorted({element // SECTOR for element in elements})


def coalescing(_root):
    canvas = Canvas(800, 310, "The addresses of a warp, in neighbouring and in distant sectors")
    left, width, height, gap = 24, 23.5, 22, 30

    def load(y, title, elements, colour, pale, verdict):
        """A warp that loads `elements`, a thread each; drawn are the sectors that they lie in."""
        canvas.text(left, y - 12, title, 14, INK, bold=True)
        touched = sectors(elements)
        word = width * WARP / (len(touched) * SECTOR)
        below = y + height + gap
        for place, sector in enumerate(touched):
            for i in range(SECTOR):
                wanted = sector * SECTOR + i in elements
                canvas.rect(left + (place * SECTOR + i) * word, below, word, height,
                            colour if wanted else pale)
            canvas.rect(left + place * SECTOR * word, below, SECTOR * word, height, "none",
                        "#ffffff", 2.5)
        for thread, element in enumerate(elements):
            x = left + thread * width
            canvas.rect(x, y, width - 2, height, LIGHT, EDGE)
            canvas.text(x + width / 2 - 1, y + 15, f"{thread}", 12, INK, "middle")
            to = touched.index(element // SECTOR) * SECTOR + element % SECTOR
            canvas.line(x + width / 2 - 1, y + height, left + (to + 0.5) * word, below, GREY, 1)
        canvas.text(left, below + height + 20, f"{len(touched)} sectors of 32 bytes: "
                    f"{len(touched) * 32:,} bytes are fetched for {WARP * 4}: {verdict}", 13,
                    colour, bold=True)

    load(44, "thread t loads element t", list(range(WARP)), C, C_PALE, "coalesced")
    load(198, "thread t loads the first element of a stretch of its own",
         [thread * 100 // SECTOR * SECTOR for thread in range(WARP)], RED, RED_PALE,
         "seven eighths for nothing")
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw
           for name, draw in (("grid", grid), ("coalescing", coalescing))}
