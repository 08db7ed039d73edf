"""Figures of chapter 05: attention as products of matrices, and who holds their operands in the
backward pass."""
from drawing import A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, LIGHT, Canvas
from drawings_05_flash_attention import (CHAPTER, KEYS, QUERIES, VALUES, pair, plain, power, score)


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


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (("attention", attention),)}
