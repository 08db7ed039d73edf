"""Figures of chapter 05: attention as products of matrices, and who holds their operands in the
backward pass."""
import re

from drawing import A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, Canvas
from drawings_05_flash_attention import (CHAPTER, KEYS, QUERIES, VALUES, number, pair, power, score,
                                         source)


def attention(_root):
    """The example of step 2, whole: Q K^T, its softmax, and the product with V."""
    canvas = Canvas(800, 300, "What attention computes")
    cell, top, lefts = 42, 96, (96, 376, 646)
    heads = ("scores S = Q Kᵀ", "weights P = softmax(S)", "output O = P V")
    for left, head in zip(lefts, heads):
        canvas.text(left, 30, head, 14, bold=True)
    for j, (key, value) in enumerate(zip(KEYS, VALUES)):
        for left, name, vector in ((lefts[0], "k", key), (lefts[1], "v", value)):
            x = left + (j + 0.5) * cell
            canvas.text(x, top - 30, f"{name}{j}", 13, INK, "middle", bold=True)
            canvas.text(x, top - 10, pair(vector).replace(", ", ","), 12, GREY, "middle")
    for i, query in enumerate(QUERIES):
        y = top + i * cell
        canvas.text(20, y + 18, f"q{i}", 13, INK, bold=True)
        canvas.text(20, y + 36, pair(query), 12, GREY)
        scores = [score(query, key) for key in KEYS]
        total = sum(map(power, scores))
        for j, of_key in enumerate(scores):
            weight = power(of_key) / total
            for left, text, fill in ((lefts[0], f"{of_key}", A_PALE),
                                     (lefts[1], f"{weight}", C_PALE)):
                canvas.rect(left + j * cell + 1, y + 1, cell - 2, cell - 2, fill)
                canvas.text(left + (j + 0.5) * cell, y + 27, text, 13, INK, "middle")
        out = [sum(power(s) * v[d] for s, v in zip(scores, VALUES)) / total for d in range(2)]
        canvas.rect(lefts[2] + 1, y + 1, 130, cell - 2, B_PALE)
        canvas.text(lefts[2] + 66, y + 27, f"({float(out[0]):g}, {float(out[1]):g})", 13, INK,
                    "middle", bold=True)
    for x, text in ((lefts[0] + 4 * cell + 8, "each row:\n2^s over\nits sum"),
                    (lefts[1] + 4 * cell + 8, "weights\ntimes\nvalues")):
        canvas.arrow(x, top + 2 * cell, x + 82, top + 2 * cell)
        canvas.text(x + 4, top + 2 * cell + 20, text, 12, GREY)
    return canvas


# ---- Backward: who holds the operands ----
SHARED, REGISTERS = (B_PALE, B), (C_PALE, C)
WIDTH, HEIGHT, SHOWN = 120, 64, 1  # of a matrix; the warp that is shown


def matrix(canvas, x, y, name, place, across=1, down=1, shown=None):
    """A matrix cut in parts, of which the shown ones are dark: those that the warp has or reads."""
    pale, colour = place
    for i in range(down):
        for j in range(across):
            dark = shown is None or i * across + j == shown
            canvas.rect(x + j * WIDTH / across, y + i * HEIGHT / down, WIDTH / across - 2,
                        HEIGHT / down - 2, colour if dark else pale)
    canvas.text(x + WIDTH / 2 - 1, y - 8, name, 13, INK, "middle", bold=True)


def products(canvas, top, rows, warps):
    """Products, one below the other. A row is (left, its place, right, result, what it is for)."""
    for n, (left, place, right, result, note) in enumerate(rows):
        y, stripe = top + n * 98, {"down": warps, "shown": SHOWN}
        matrix(canvas, 20, y, left, place, **stripe)
        canvas.text(152, y + 38, "·", 20, INK, "middle", bold=True)
        matrix(canvas, 166, y, right, SHARED)
        canvas.arrow(296, y + 32, 330, y + 32)
        matrix(canvas, 340, y, result, REGISTERS, **stripe)
        canvas.text(486, y + 18, note, 12)


def legend(canvas, y, warp):
    for x, (pale, colour), text in ((20, SHARED, "in shared memory"),
                                    (230, REGISTERS, "in registers")):
        canvas.rect(x, y, 14, 14, colour)
        canvas.rect(x + 16, y, 14, 14, pale)
        canvas.text(x + 38, y + 12, text, 12)
    canvas.text(420, y + 12, f"dark: what {warp} reads or holds", 12)


def mma_operands(root):
    """Step 3 at head dimension 64."""
    file = "backward3_mma.cu"
    warps, rows = number(root, file, r"kWarps = (\d+),"), number(root, file, r"kRows = (\d+);")
    passing = number(root, file, r"kPassing = kDim <= 64 \? (\d+) :")
    canvas = Canvas(800, 600, "Backward, step 3: who holds the operands")
    canvas.text(20, 30, f"d = 64: a block keeps {warps * rows} keys, and {passing} queries go by. "
                f"Warp {SHOWN} of {warps} has {rows} keys.", 14, bold=True)
    products(canvas, 92, (
        ("K", SHARED, "Qᵀ", "Sᵀ", "a lane has 2 keys, and of\nevery 8 queries 2: "
         f"{rows * passing // 32} scores"),
        ("V", SHARED, "dOᵀ", "dPᵀ", "the same lane, the same\nelements as of Sᵀ"),
        ("Pᵀ", REGISTERS, "dO", "dV", f"Pᵀ as operand A, where it is;\n{rows * 64 // 32} sums of a lane stay"),
        ("dSᵀ", REGISTERS, "Q", "dK", "dSᵀ = Pᵀ (dPᵀ − delta),\nelement by element in a lane")), warps)
    canvas.text(20, 496, "The other kernel keeps queries. Then the rows of a warp are queries, and "
                "with S = Q Kᵀ and dP = dO Vᵀ\nit has dS in registers where dQ = dS K needs it. So "
                "no weight and no gradient of one is ever in\nshared memory, and S and dP are "
                "computed twice.", 12, GREY)
    legend(canvas, 564, f"warp {SHOWN}")
    return canvas


def one_pass_operands(root):
    """Step 6 at head dimension 64."""
    file, plan = "backward6_one_pass.cu", "key_plan.cuh"
    warps = number(root, plan, r"kWarps = kDim <= 64 \? (\d+) :")
    rows, passing = number(root, plan, r"kRows = (\d+);"), number(root, plan, r"kPassing = (\d+);")
    dq_rows = number(root, file, r"kDqRows = kDim <= 32 \? 16 : (\d+);")
    dq_cols = number(root, file, r"kDqCols = kDim <= 32 \? kDim : kDim <= 128 \? (\d+) : 64;")
    assert passing // dq_rows * (64 // dq_cols) == warps
    assert re.search(r"store_in_tile<T>\(dscores, ds_tile, warp_key, part\);", source(root, file))
    canvas = Canvas(800, 650, "Backward, step 6: who holds the operands")
    canvas.text(20, 30, f"d = 64: a block keeps {warps * rows} keys, and {passing} queries go by. "
                f"Warp {SHOWN} of {warps} has {rows} keys.", 14, bold=True)
    products(canvas, 92, (
        ("K", SHARED, "Qᵀ", "Sᵀ", "as in step 3, but what a warp\nloads of Q serves 32 rows"),
        ("V", SHARED, "dOᵀ", "dPᵀ", "begins at −delta, so that the\nsubtraction costs nothing"),
        ("Pᵀ", REGISTERS, "dO", "dV", "sums stay in registers until\nthe last tile of queries"),
        ("dSᵀ", REGISTERS, "Q", "dK", "the warp also stores dSᵀ\nin shared memory"),), warps)
    y = 92 + 4 * 98
    down, across = passing // dq_rows, 64 // dq_cols
    row, col = SHOWN % down, SHOWN // down  # as dq_row and dq_col in the kernel
    matrix(canvas, 20, y, "dS", SHARED, down=down, shown=row)
    canvas.text(152, y + 38, "·", 20, INK, "middle", bold=True)
    matrix(canvas, 166, y, "K", SHARED, across=across, shown=col)
    canvas.arrow(296, y + 32, 330, y + 32)
    matrix(canvas, 340, y, "dQ", REGISTERS, across=across, down=down, shown=row * across + col)
    canvas.text(486, y + 18, f"after a barrier: {dq_rows} queries of dS from\nall warps, {dq_cols} columns "
                "of K. A red\nadds this part to fp32 sums in\ndevice memory", 12)
    canvas.text(20, y + 92, "dS is read transposed (ldmatrix.trans): its rows are queries now, and "
                "its depth are the keys of the block.", 12, GREY)
    legend(canvas, 616, f"warp {SHOWN}")
    return canvas


def wgmma_operands(root):
    """Step 7 at head dimension 128."""
    text = (root / "tile/key_block.cuh").read_text(encoding="utf-8")
    assert "KeyBlockTiles<T, kDim, 128, kDim == 64 ? 128 : 64, kKeyTensors>" in text
    canvas = Canvas(800, 650, "Backward, step 7: who holds the operands")
    canvas.text(20, 30, "d = 128: a block keeps 128 keys, and 64 queries go by. Consumer 1 of 2 has "
                "64 keys.", 14, bold=True)
    products(canvas, 92, (
        ("K", SHARED, "Qᵀ", "Sᵀ", "rows are keys: 64 × 64, 32 sums\nof each thread"),
        ("V", SHARED, "dOᵀ", "dPᵀ", "the same thread, the same\nelements as of Sᵀ"),
        ("Pᵀ", REGISTERS, "dO", "dV", "Pᵀ as operand A, where it is;\n64 sums of a thread stay"),
        ("dSᵀ", REGISTERS, "Q", "dK", "64 more; the consumer also stores\ndSᵀ in shared memory"),), 2)
    y = 92 + 4 * 98
    matrix(canvas, 20, y, "dS", SHARED)
    canvas.text(152, y + 38, "·", 20, INK, "middle", bold=True)
    matrix(canvas, 166, y, "K", SHARED, across=2, shown=1)
    canvas.arrow(296, y + 32, 330, y + 32)
    matrix(canvas, 340, y, "dQ", REGISTERS, across=2, shown=1)
    canvas.text(486, y + 18, "of all 128 keys: 64 of 128 columns.\nA bulk reduction adds a warp's 4 KiB\n"
                "to fp32 sums in device memory", 12)
    canvas.text(20, y + 92, "wgmma reads dSᵀ along its columns, which makes it dS. At d = 64 a tile has "
                "128 queries, and a consumer\nhas 64 rows of dQ in the place of 64 columns.", 12, GREY)
    legend(canvas, 616, "consumer 1")
    return canvas


def overlap(root):
    """Step 9: which products lie under what a thread computes."""
    file = source(root, "backward9_overlap.cu")
    marks = [file.index(word) for word in ("turn.take()", "wgmma_wait<0>(registers_of(dscores))",
                                           "turn.pass()", "block.start_sums", "start_dq(dq, i - 1)",
                                           "start_scores(next)", "add_dq(dq, i - 1)",
                                           "start_dweights(next)")]
    assert marks == sorted(marks)
    canvas = Canvas(800, 330, "Backward, step 9: an iteration of a consumer")
    canvas.text(20, 30, "One consumer, tile i", 14, bold=True)
    left, y = 130, 80
    canvas.text(20, y + 22, "tensor cores", 13)
    canvas.text(20, y + 86, "threads", 13)

    def bar(at, top, width, text, colours):
        canvas.rect(left + at, top, width - 2, 34, *colours)
        canvas.text(left + at + width / 2, top + 22, text, 12, INK, "middle")

    pale, red, blue = (A_PALE, A), (C_PALE, C), (B_PALE, B)
    for at, width, text, colours in ((0, 90, "dPᵀ i", pale), (230, 130, "dV, dK i", red),
                                     (360, 80, "dQ i − 1", red), (440, 90, "Sᵀ i + 1", pale),
                                     (530, 110, "dPᵀ i + 1", pale)):
        bar(at, y, width, text, colours)
    for at, width, text, colours in ((0, 110, "Pᵀ i: exp2", blue), (110, 60, "dSᵀ i", blue),
                                     (170, 60, "store it", blue), (440, 80, "dQ out", blue),
                                     (530, 110, "Pᵀ i + 1", blue)):
        bar(at, y + 64, width, text, colours)
    canvas.text(20, 216, "The other consumer is in another part of the iteration: one at a time "
                "computes Pᵀ and dSᵀ. So its products\nfill the stretch in which this one has none "
                "under way.", 12, GREY)
    canvas.text(20, 270, "Not to scale. A product is started where its bar begins, in the program's "
                "order, and the next wait is\nfor all but the last one that was started.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (
    ("attention", attention), ("backward3_operands", mma_operands),
    ("backward6_operands", one_pass_operands), ("backward7_operands", wgmma_operands),
    ("backward9_overlap", overlap))}
