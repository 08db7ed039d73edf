"""The figure of docs/online_softmax.md: one row, merged in three orders."""
import functools
import math

from drawing import A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, Canvas
from drawings_03_softmax import online

ROW = (1, 3, 2, 2.5, 4, 3.5, 5, 4.5)  # that of chapter 03, step 4
# Each order as its rounds: which stretches of the row, first to last, have become one pair.
ORDERS = (
    ("one number after the other", "a thread: 03, step 4", [[(0, last)] for last in range(2, 9)]),
    ("in pairs", "lanes and warps: 03, step 4",
     [[(first, first + size) for first in range(0, 8, size)] for size in (2, 4, 8)]),
    ("part by part", "blocks: 03, step 7; 05, step 8", [[(0, 3), (3, 6), (6, 8)], [(0, 8)]]))


def merge(a, b):
    """Two pairs of a maximum m and a sum of exp(z - m)."""
    greatest = max(a[0], b[0])
    return greatest, sum(total * math.exp(m - greatest) for m, total in (a, b))


def pairs(rounds):
    """For each round the stretches and their pairs. A stretch is merged from those of the round
    before that it holds, and from the numbers that had not been part of one."""
    before, made = {}, []
    for stretches in rounds:
        now = {}
        for first, last in stretches:
            inside = {part: pair for part, pair in before.items()
                      if first <= part[0] and part[1] <= last}
            known = {i for part in inside for i in range(*part)}
            single = [(ROW[i], 1.0) for i in range(first, last) if i not in known]
            now[first, last] = functools.reduce(merge, [*inside.values(), *single])
        made.append(now)
        before = now
    return made


def orders(_root):
    canvas = Canvas(800, 306, "One row of eight numbers, merged in three orders to the same pair")
    cell, gap, line, top = 30, 20, 28, 104
    canvas.text(20, 28, "Each bar has m; s of the numbers above it. The last is the same in all "
                f"orders: {online(ROW)[-1][0]:g}; {online(ROW)[-1][3]:.2f}", 13, bold=True)
    for number, ((title, where, rounds), (pale, colour)) in enumerate(
            zip(ORDERS, ((A_PALE, A), (B_PALE, B), (C_PALE, C)))):
        left = 20 + number * (8 * cell + gap)
        canvas.text(left, 54, title, 13, colour, bold=True)
        canvas.text(left, 72, where, 12, GREY)
        for i, z in enumerate(ROW):
            canvas.text(left + i * cell + cell / 2, top - 10, f"{z:g}", 12, INK, "middle")
        for depth, made in enumerate(pairs(rounds)):
            for (first, last), (m, total) in made.items():
                width = (last - first) * cell - 4
                canvas.rect(left + first * cell + 2, top + depth * line, width, line - 6, pale,
                            colour, radius=3)
                canvas.text(left + first * cell + 2 + width / 2, top + depth * line + 15,
                            f"{m:g}; {total:.2f}", 12, INK, "middle", bold=last - first == 8)
    return canvas


FIGURES = {"docs/figures/online_softmax.svg": orders}
