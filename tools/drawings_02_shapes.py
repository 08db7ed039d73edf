"""The figures of chapter 02's page on shapes: few tiles and shares of their sums; a line of
iterations and its pieces."""
from drawing import A, A_PALE, B, B_PALE, EDGE, GREY, INK, LIGHT, Canvas
from drawings_02_matmul import CHAPTER, MULTIPROCESSORS

EXTENT, DEPTH = 256, 16384  # of the product
ROWS, COLUMNS, AT_ONCE = 64, 128, 3  # of step 23's tiles; blocks of a multiprocessor
ACROSS, SIDE, APART = 12, 20, 24  # multiprocessors in a row; a square's pixels


def shares(root):
    """Which multiprocessors of a card have work, without shares of k and with them."""
    tiles = (EXTENT // ROWS) * (EXTENT // COLUMNS)
    of_tile = AT_ONCE * MULTIPROCESSORS // tiles
    canvas = Canvas(760, 372, "Few tiles and a deep k: which multiprocessors have work")
    canvas.text(20, 28, f"C has {EXTENT} × {EXTENT} elements, and k is {DEPTH:,}: {tiles} tiles on "
                f"{MULTIPROCESSORS} multiprocessors", 14, bold=True)
    for x, blocks, title, below in (
            (20, tiles, f"a block has a tile of {ROWS} × {COLUMNS}", f"each block: {DEPTH:,} of k"),
            (410, tiles * of_tile, f"{of_tile} blocks share a tile",
             f"two or three blocks on each, with {DEPTH // of_tile} or so of k")):
        canvas.text(x, 58, title, 13, INK)
        for n in range(MULTIPROCESSORS):
            works = n < blocks
            canvas.rect(x + n % ACROSS * APART, 70 + n // ACROSS * APART, SIDE, SIDE,
                        A_PALE if works else LIGHT, A if works else EDGE)
        canvas.text(x, 352, below, 12, GREY)
    return canvas


TILES, OF_TILE, BLOCKS = 5, 8, 4  # the line that is drawn: iterations of a tile
UNIT = 17  # pixels of an iteration


def walk(block):
    """What a block does with its piece, from the end: (tile, iterations)."""
    piece = TILES * OF_TILE // BLOCKS
    first, end = block * piece, (block + 1) * piece
    while end > first:
        tile = (end - 1) // OF_TILE
        begin = max(first, tile * OF_TILE)
        yield tile, end - begin
        end = begin


def stream_k(root):
    """Five tiles on four blocks, a tile at a time and in equal pieces."""
    del root
    piece = TILES * OF_TILE // BLOCKS
    canvas = Canvas(760, 384, "Five tiles on four blocks: waves of tiles, and equal pieces of a line")
    canvas.text(20, 28, f"{TILES} tiles of {OF_TILE} iterations, {BLOCKS} blocks at one time", 14,
                bold=True)

    def bar(x, y, tile, iterations):
        pale, line = ((A_PALE, A), (B_PALE, B))[tile % 2]
        canvas.rect(x, y, iterations * UNIT, 28, pale, line)
        if iterations * UNIT > 22:
            canvas.text(x + 8, y + 19, str(tile), 12, INK)

    canvas.text(20, 60, "the line: the iterations of all tiles, cut into a piece for each block", 13)
    for tile in range(TILES):
        bar(40 + tile * OF_TILE * UNIT, 72, tile, OF_TILE)
    for block in range(BLOCKS):
        x = 40 + block * piece * UNIT
        if block > 0:
            canvas.line(x, 70, x, 110, INK, 2)
        canvas.text(x + piece * UNIT / 2, 118, f"block {block}", 12, GREY, "middle")
    for x, title, rows, length in (
            (90, "a block takes a tile at a time", [[(tile, OF_TILE) for tile in range(block, TILES, BLOCKS)]
                                                    for block in range(BLOCKS)], 2 * OF_TILE),
            (480, "a block has a piece, from its end", [list(walk(block)) for block in range(BLOCKS)],
             piece)):
        canvas.text(x, 160, title, 13)
        for block, row in enumerate(rows):
            y, at = 174 + 38 * block, x
            canvas.text(x - 8, y + 19, f"{block}", 12, GREY, "end")
            canvas.rect(x, y, length * UNIT, 28, LIGHT, EDGE)
            for tile, iterations in row:
                bar(at, y, tile, iterations)
                at += iterations * UNIT
        canvas.text(x, 348, f"{length} iterations", 12, GREY)
    canvas.text(20, 372, "A number is a tile; a block that does not end a tile leaves its sums to the "
                "block that does", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/step23_shares.svg": shares,
           f"{CHAPTER}/figures/step24_stream_k.svg": stream_k}
