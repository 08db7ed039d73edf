"""The figure of chapter 02's page on shapes: few tiles, and shares of their sums."""
from drawing import A, A_PALE, EDGE, GREY, INK, LIGHT, Canvas
from drawings_02_matmul import CHAPTER, MULTIPROCESSORS, of

EXTENT, DEPTH = 256, 16384  # of the product
ACROSS, SIDE, APART = 12, 20, 24  # multiprocessors in a row; a square's pixels


def shares(root):
    """Which multiprocessors of a card have work, without shares of k and with them."""
    tile = of(root, "tiles.cuh")
    tiles = (EXTENT // tile["kTileM"]) * (EXTENT // tile["kTileN"])
    of_tile = 2 * MULTIPROCESSORS // tiles  # two blocks on each multiprocessor
    canvas = Canvas(760, 372, "Few tiles and a deep k: which multiprocessors have work")
    canvas.text(20, 28, f"C has {EXTENT} × {EXTENT} elements, and k is {DEPTH:,}: {tiles} tiles on "
                f"{MULTIPROCESSORS} multiprocessors", 14, bold=True)
    for x, blocks, title, below in (
            (20, tiles, "a block has a tile", f"each block: {DEPTH:,} of k"),
            (410, tiles * of_tile, f"{of_tile} blocks share a tile",
             f"two blocks on each, with {DEPTH // of_tile} or so of k")):
        canvas.text(x, 58, title, 13, INK)
        for n in range(MULTIPROCESSORS):
            works = n < blocks
            canvas.rect(x + n % ACROSS * APART, 70 + n // ACROSS * APART, SIDE, SIDE,
                        A_PALE if works else LIGHT, A if works else EDGE)
        canvas.text(x, 352, below, 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/step23_shares.svg": shares}
