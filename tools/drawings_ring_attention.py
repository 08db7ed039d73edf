"""The figures of docs/ring_attention.md: who holds which keys when, and which scores each step of a
causal ring computes, with two ways to split the sequence."""
from drawing import A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, LIGHT, RED, RED_PALE, Canvas

RANKS, CHUNKS = 4, 8
COLOURS = ((A, A_PALE), (B, B_PALE), (C, C_PALE), (RED, RED_PALE))
SPLITS = (("contiguous", [(2 * rank, 2 * rank + 1) for rank in range(RANKS)]),
          ("zigzag", [(rank, CHUNKS - 1 - rank) for rank in range(RANKS)]))


def squares(chunks, step):
    """What is computed in a step: (rank, chunk of queries, chunk of keys)."""
    return [(rank, query, key) for rank in range(RANKS) for query in chunks[rank]
            for key in chunks[(rank - step) % RANKS] if key <= query]


def work(chunks, step, rank):
    """In squares. On the diagonal half of one is hidden."""
    return sum(0.5 if query == key else 1 for owner, query, key in squares(chunks, step)
               if owner == rank)


def ring(_root):
    canvas = Canvas(760, 316, "Four ranks: whose keys and values each has in each step")
    left, top, width, height, across, down = 110, 56, 110, 36, 160, 58
    for step in range(RANKS):
        canvas.text(left + step * across + width / 2, 34, f"step {step}", 13, INK, "middle",
                    bold=True)
    for rank in range(RANKS):
        y = top + rank * down
        canvas.text(20, y + 23, f"rank {rank}", 13, COLOURS[rank][0], bold=True)
        for step in range(RANKS):
            x, (colour, pale) = left + step * across, COLOURS[(rank - step) % RANKS]
            canvas.rect(x, y, width, height, pale, colour, radius=4)
            canvas.text(x + width / 2, y + 23, f"k, v of {(rank - step) % RANKS}", 13, INK,
                        "middle")
            if step + 1 < RANKS:
                if rank + 1 < RANKS:
                    canvas.arrow(x + width, y + height, x + across, y + down)
                else:
                    canvas.line(x + width, y + height, x + width + 13, y + height + 12)
                    canvas.text(x + width + 8, y + height + 28, "to rank 0", 12, GREY, "middle")
                    canvas.arrow(x + across - 13, top - 12, x + across, top)
    return canvas


def splits(_root):
    cell, gap, left, across = 19, 8, 20, 190
    canvas = Canvas(770, 480, "The scores that each step of a causal ring computes, by rank")
    for number, (name, chunks) in enumerate(SPLITS):
        top = 70 + number * 214
        total = sum(max(work(chunks, step, rank) for rank in range(RANKS))
                    for step in range(RANKS))
        canvas.text(left, top - 32, f"{name}: the slowest rank of each step, added up: {total:g} "
                    "squares", 13, bold=True)
        for step in range(RANKS):
            x0 = left + step * across
            slowest = max(work(chunks, step, rank) for rank in range(RANKS))
            canvas.text(x0, top - 10, f"step {step}: at most {slowest:g}", 12, GREY)
            for row in range(CHUNKS):
                for col in range(row + 1):
                    canvas.rect(x0 + col * cell, top + row * cell, cell - 2, cell - 2, LIGHT)
            for rank, row, col in squares(chunks, step):
                colour, pale = COLOURS[rank]
                canvas.rect(x0 + col * cell, top + row * cell, cell - 2, cell - 2,
                            pale if row == col else colour)
    for rank in range(RANKS):
        x = left + rank * 80
        canvas.rect(x, 453, cell - 2, cell - 7, COLOURS[rank][0])
        canvas.text(x + cell + gap / 2, 464, f"rank {rank}", 12)
    canvas.text(left + 4 * 80, 464, "pale: half a square, on the diagonal", 12, GREY)
    return canvas


FIGURES = {"docs/figures/ring_attention.svg": ring,
           "docs/figures/ring_attention_splits.svg": splits}
