"""The figure of chapter 05's step in 8 bits: which keys a lane has, and where they go."""
import drawings_02_tensor_cores
from drawing import A, A_PALE, B, B_PALE, C, C_PALE, GREY, INK, LIGHT, RED, RED_PALE, Canvas
from drawings_05_flash_attention import CHAPTER

KEYS, LANES = 16, 4  # of a row that lanes 0 to 3 share
COLOURS = ((A, A_PALE), (B, B_PALE), (C, C_PALE), (RED, RED_PALE))


def lane_keys(maps):
    """The keys of the first row that each lane has, in the order of its registers: two of the sums
    of 8 keys, and two of the next 8."""
    of_8 = [[col for row, col in maps["d"][lane] if row == 0] for lane in range(LANES)]
    return [[*keys, *(key + KEYS // 2 for key in keys)] for keys in of_8]


def lane_places(maps):
    """The places of the first row that each lane has as operand A of 8 bits, of the first 16."""
    return [[col for row, col in maps["a_8"][lane] if row == 0 and col < KEYS]
            for lane in range(LANES)]


def order(maps):
    """Which key stands in each place."""
    pairs = {place: key for keys, places in zip(lane_keys(maps), lane_places(maps))
             for key, place in zip(keys, places)}
    return [pairs[place] for place in range(KEYS)]


def keys_of_a_lane(root):
    maps = drawings_02_tensor_cores.maps(root)
    owner = {key: lane for lane, keys in enumerate(lane_keys(maps)) for key in keys}
    placed = order(maps)
    canvas = Canvas(800, 420, "16 keys: sums of the scores, weights as operand A, and values")
    left, cell = 148, 38

    def row(y, keys, name, detail):
        canvas.text(20, y + 16, name, 13, bold=True)
        canvas.text(20, y + 34, detail, 12, GREY)
        for i, key in enumerate(keys):
            colour, pale = COLOURS[owner[key]]
            canvas.rect(left + i * cell, y, cell - 3, 36, pale, colour)
            canvas.text(left + i * cell + (cell - 3) / 2, y + 23, str(key), 13, INK, "middle")

    for lane, (colour, pale) in enumerate(COLOURS):
        canvas.rect(left + lane * 90, 16, 14, 14, pale, colour)
        canvas.text(left + lane * 90 + 20, 28, f"lane {lane}", 12)
    canvas.text(left + 380, 28, "one query, 16 keys by their numbers", 12, GREY)
    top, below = 52, 148
    row(top, range(KEYS), "scores", "as they are left")
    row(below, placed, "weights", "as they are read")
    shown = 1
    for key in lane_keys(maps)[shown]:
        x = left + key * cell + (cell - 3) / 2
        to = left + placed.index(key) * cell + (cell - 3) / 2
        canvas.line(x, top + 40, to, below - 4, COLOURS[shown][0], arrow=True)
    canvas.text(left, below + 58, "A lane packs its own four weights. So places hold the keys in "
                "another order,", 13)
    canvas.text(left, below + 78, "and the values, transposed, have to have the same:", 13)

    y = below + 100
    for i, (name, columns) in enumerate((("column 0", 0), ("column 2", 2), ("column 1", 1))):
        at = y + i * 40
        canvas.text(20, at + 22, f"v, {name}", 13, bold=True)
        for place, key in enumerate(placed):
            canvas.rect(left + place * cell, at, cell - 3, 32, LIGHT)
            canvas.text(left + place * cell + (cell - 3) / 2, at + 21, f"v{key}", 12, INK,
                        "middle")
    canvas.text(20, y + 142, "The even columns of 16 come first, since ldmatrix moves two bytes "
                "together: a lane takes apart what\nit has of columns 0 and 1 of four keys, and "
                "stores the two halves 8 rows apart.", 12, GREY)
    return canvas


FIGURES = {f"{CHAPTER}/figures/forward13_keys.svg": keys_of_a_lane}
