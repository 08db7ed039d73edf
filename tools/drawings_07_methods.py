"""The figure of chapter 07's page on methods: where the rotated tensors are."""
from drawing import A, A_PALE, B, B_PALE, GREY, INK, LIGHT, Canvas

CHAPTER = "07_windowed_rope"
TENSOR = 32 * 8192 * 64 * 2 / 1e6  # MB of q or k: 32 heads, N = 8,192, d = 64, 2 bytes
# A step: how often q and k are read to be rotated, and what is written.
FORWARD = (("composed", {"q": 2, "k": 2}, ("q1", "q2", "k1", "k2"), "one read for each rotation"),
           ("prologue", {"k": 1}, ("k1", "k2"), "k is read once for both"),
           ("turn_twice", {"q": 1, "k": 1}, ("q1", "q2", "k1", "k2"), "q and k are read once"))


def moved(step):
    """MB that the rotations of a step move."""
    _, reads, written, _ = step
    return (sum(reads.values()) + len(written)) * TENSOR


def forward(_root):
    canvas = Canvas(800, 430, "Methods, forward: where the rotated tensors are")
    xs = (20, 300, 590)
    for x, head in zip(xs, ("memory", "memory, rotated", "a block of attention")):
        canvas.text(x, 30, head, 14, bold=True)
    for n, step in enumerate(FORWARD):
        name, reads, written, how = step
        y = 84 + n * 112
        canvas.text(xs[0], y - 14, f"{n + 1}  {name}", 13, INK, bold=True)
        for i, tensor in enumerate(("q", "k")):
            canvas.rect(xs[0] + i * 54, y, 48, 40, A_PALE, A, radius=4)
            canvas.text(xs[0] + i * 54 + 24, y + 25, tensor, 13, INK, "middle")
        canvas.arrow(xs[0] + 112, y + 20, xs[1] - 8, y + 20)
        canvas.text(xs[0] + 116, y + 12, " ".join(f"{t} {k} ×" for t, k in reads.items()), 12, GREY)
        canvas.text(xs[0], y + 60, f"{how}: {moved(step):.0f} MB move", 12, GREY)
        for i, tensor in enumerate(("q1", "q2", "k1", "k2")):
            if tensor in written:
                canvas.rect(xs[1] + i * 54, y, 48, 40, A_PALE, A, radius=4)
                canvas.text(xs[1] + i * 54 + 24, y + 25, tensor, 13, INK, "middle")
        canvas.arrow(xs[1] + 220, y + 20, xs[2] - 8, y + 20)
        rotates = "q1" not in written
        canvas.rect(xs[2], y - 10, 190, 60, B_PALE if rotates else LIGHT, B if rotates else GREY,
                    radius=4)
        canvas.text(xs[2] + 12, y + 12, "rotates its queries in\nshared memory, twice" if rotates
                    else "loads its queries\nas they are", 12)
    canvas.text(20, 410, "MB for one batch entry with 32 heads, N = 8,192, d = 64 and 2 bytes an "
                "element.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/{name}.svg": draw for name, draw in (("method_forward", forward),)}
