"""The figure of CONTRIBUTING.md: the path of one call."""
from drawing import A_PALE, B_PALE, C_PALE, GREY, INK, LIGHT, Canvas

CHAPTER = "05_flash_attention"
# (file, what happens there, what is handed on: a name of the file's)
FROM_C = ("harness/c/tile.h", "a caller in C, or Python by tile_by_tile.py", "tile_attention_args")
FROM_TOUR = (f"{CHAPTER}/test/bench.cpp", "./tour: inputs and reference of a problem", "AttentionForward")
READ = ("harness/c/tensors.hpp", "copies the struct, fills in what was left out", "AttentionForward")
PATH = (
    ("tile/host/step.hpp", "run(): what every caller of a step does", "Ladder"),
    (f"{CHAPTER}/arguments.cpp", "validate(): which argument is refused, and why", "check_tensors"),
    (f"{CHAPTER}/flash_attention.hpp", "the ladder's table: what a step needs, takes, shows", "kForward"),
    (f"{CHAPTER}/forward7_interleaved.cu", "the launcher: grid, shared memory, tile::launch", "masks_of"),
    (f"{CHAPTER}/forward7_interleaved.cu", "the kernel: what the lesson is about", "LazySoftmax"),
)
HANDED = ("AttentionForward", "AttentionForward", "AttentionForward", "Heads<T>, BatchMasks")
LEAVES = ("tile/heads.cuh", "tile/mask.hpp", "tile/shared_tile.cuh", "tile/lazy_softmax.cuh",
          "tile/ptx/")

WIDTH, BOX, HEIGHT, STEP, MARGIN = 760, 470, 46, 74, 20


def path(_root):
    canvas = Canvas(WIDTH, 2 * MARGIN + STEP * (2 + len(PATH)) - (STEP - HEIGHT),
                    "The path of one call of attention, from its caller to the kernel")

    def box(x, y, width, colour, place):
        canvas.rect(x, y, width, HEIGHT, colour, GREY, radius=6)
        canvas.text(x + 10, y + 19, place[0], bold=True)
        canvas.text(x + 10, y + 37, place[1], 12)

    half = (WIDTH - 3 * MARGIN) // 2
    middle = MARGIN + BOX // 2
    box(MARGIN, MARGIN, half, B_PALE, FROM_C)
    box(2 * MARGIN + half, MARGIN, half, C_PALE, FROM_TOUR)
    y = MARGIN + STEP
    canvas.arrow(middle, y - STEP + HEIGHT, middle, y)
    canvas.text(middle + 8, y - 10, FROM_C[2], 12, GREY)
    box(MARGIN, y, BOX, B_PALE, READ)
    right = 2 * MARGIN + half + half // 2 + 60
    canvas.line(right, MARGIN + HEIGHT, right, y + STEP + HEIGHT // 2)
    canvas.arrow(right, y + STEP + HEIGHT // 2, MARGIN + BOX, y + STEP + HEIGHT // 2)
    canvas.text(right - 8, y + 20, FROM_TOUR[2], 12, GREY, "end")
    for number, place in enumerate(PATH):
        above, y = y, y + STEP
        canvas.arrow(middle, above + HEIGHT, middle, y)
        canvas.text(middle + 8, y - 10, (READ[2], *HANDED)[number], 12, GREY)
        box(MARGIN, y, BOX, A_PALE if place[0].endswith(".cu") else LIGHT, place)
    x = MARGIN + BOX + 40
    canvas.line(MARGIN + BOX, y + HEIGHT // 2, x - 8, y + HEIGHT // 2, INK)
    canvas.text(x, y + HEIGHT // 2 - 16 * len(LEAVES) + 10, "built of\n" + "\n".join(LEAVES), 12)
    return canvas


FIGURES = {"docs/figures/path_of_a_call.svg": path}
