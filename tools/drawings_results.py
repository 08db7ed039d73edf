"""Charts of docs/results: a ladder for each chapter, all steps on one roofline, ratios to peers."""
import json
import math
import re
import textwrap
from typing import NamedTuple

from drawing import A, B, C, EDGE, GREY, GROUND, INK, OCHRE, RED, VIOLET, Canvas, text_width
from drawings_02_matmul import DEVICE_TB_PER_S, TFLOPS

TENSOR_TFLOPS, FP8_TFLOPS = 989, 1979  # data sheet, without sparsity
COLOURS = {"01": GREY, "02": A, "03": C, "04": OCHRE, "05": B, "06": VIOLET, "07": RED}

# What a chapter's chart shows: (direction, case). Steps stand in the order of the results file.
ATTENTION = "bf16 B2 H16 Hkv16 S8192 d128 causal"
WINDOWED = "bf16 B1 H32 Hkv32 S8192 d64 W2048"
LADDERS = {
    "01_vector_add": [("forward", "fp32 n268435456")],
    "02_matmul": [("forward", "fp32 m4096 n4096 k4096"), ("forward", "bf16 m4096 n4096 k4096")],
    "03_softmax": [("forward", "bf16 rows32768 cols4096"), ("backward", "bf16 rows32768 cols4096")],
    "04_layernorm": [("forward", "bf16 rows32768 cols4096"), ("backward", "bf16 rows32768 cols4096")],
    "05_flash_attention": [("forward", ATTENTION), ("backward", ATTENTION)],
    "06_rope": [("forward", "bf16 B4 S4096 H32 Hkv8 d128 half"),
                ("backward", "bf16 B4 S4096 H32 Hkv8 d128 half"),
                ("forward", "bf16 B2 H32 Hkv8 S8192 d128 causal half")],
    "07_windowed_rope": [("forward", f"{WINDOWED} causal"), ("forward", f"{WINDOWED} rerope"),
                         ("backward", f"{WINDOWED} causal"), ("backward", f"{WINDOWED} rerope")],
}
# Of an H100 the file has steps on Hopper's instructions, beside the peers.
H100_LADDERS = {
    "02_matmul": [("forward", "bf16 m4096 n4096 k4096"), ("forward", "bf16 m8192 n8192 k8192"),
                  ("forward", "bf16 m512 n512 k8192"), ("forward", "e4m3 m8192 n8192 k8192 B^T")],
    "05_flash_attention": [("forward", ATTENTION), ("forward", ATTENTION.replace("causal", "full"))],
    "07_windowed_rope": LADDERS["07_windowed_rope"],
}


class Card(NamedTuple):
    name: str
    results: str
    tb_per_s: float  # data sheet
    ladders: dict


H200 = Card("an H200", "docs/results/nvidia-h200.json", DEVICE_TB_PER_S, LADDERS)
H100 = Card("an H100", "docs/results/nvidia-h100.json", 3.35, H100_LADDERS)
# Peers that do not compute the same: a bound, and one score for each pair where there are two.
OTHERS = ("", "copy", "cuDNN causal")


def order_of_steps(root, chapter, direction):
    """{step: its number}, from the names of the files. A folder may have one ladder for both."""
    numbers = {}
    for folder in sorted({file.parent for file in (root / chapter).glob("**/*.cu")}):
        files = [file.stem for file in sorted(folder.glob("*.cu"))]
        steps = [re.fullmatch(rf"{direction}(\d+)_(\w+)", file) for file in files]
        if not any(steps):
            steps = [re.fullmatch(r"(?:step|forward)(\d+)_(\w+)", file) for file in files]
        numbers |= {found[2]: int(found[1]) for found in steps if found}
    return numbers


def on_request(root, chapter, direction):
    """The steps that run only if they are named: `.on_request = true` in a ladder's list."""
    found, other = set(), {"forward": "Backward", "backward": "Forward"}[direction]
    for header in (root / chapter).glob("**/*.hpp"):
        for name, steps in re.findall(r"::Step k(\w+)\[\] = \{(.*?)\n?\};",
                                      header.read_text(encoding="utf-8"), re.DOTALL):
            found |= {step.partition('"')[0] for step in steps.split('.name = "')[1:]
                      if other not in name and ".on_request = true" in step}
    return found


def rows_of(root, chapter, direction, case=None, card=H200):
    """The rows of bursts of the ladder's steps, in their order, older ones first."""
    rows = json.loads((root / card.results).read_text(encoding="utf-8"))
    numbers = order_of_steps(root, chapter, direction)
    return sorted((row for row in rows if row["chapter"] == chapter and row["direction"] == direction
                   and row["metric"].endswith("burst") and case in (None, row["case"])
                   and row["step"] in numbers),
                  key=lambda row: (numbers[row["step"]], row["date"]))


def newest(rows):
    """{step: its newest row}."""
    return {row["step"]: row for row in rows}


def best_peer(rows):
    """The newest row of the fastest peer; a copy if there is no other. None without peers."""
    peers = {row["peer"]: row for row in rows if row["peer"] not in OTHERS} or \
            {row["peer"]: row for row in rows if row["peer"] == "copy"}
    return max(peers.values(), key=lambda row: row["peer_value"], default=None)


def caption(rows):
    """What was measured where, and when."""
    def all_of(key):
        return ", ".join(sorted({row[key] for row in rows}))
    return (f"{all_of('gpu')}; driver {all_of('driver')}; CUDA {all_of('cuda')}; commit "
            f"{all_of('commit')}; {all_of('date')}")


def digits(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def with_foot(draw, shown, height, title, note=""):
    """A canvas with a note and its caption below, which need more or fewer lines."""
    foot = [*textwrap.wrap(note, 100), *textwrap.wrap(caption(shown), 100)]
    canvas = Canvas(800, height + 16 * len(foot) + 14, title)
    draw(canvas)
    canvas.text(20, height + 10, "\n".join(foot), 12, GREY)
    return canvas


# ---- A ladder for each chapter ----
def ladder(chapter, card=H200):
    def draw(root):
        groups = []
        for direction, case in card.ladders[chapter]:
            rows = rows_of(root, chapter, direction, case, card)
            if not rows:
                raise ValueError(f"{chapter}, {direction}: there are no rows of {case}")
            groups.append((direction, case, newest(rows), best_peer(rows)))
        named = [(direction, step) for direction, _, steps, _ in groups
                 for step in on_request(root, chapter, direction) & set(steps)]
        shown = [row for *_, steps, peer in groups for row in [*steps.values(), *([peer] if peer else [])]]

        def bars(canvas):
            y = 30
            for direction, case, steps, peer in groups:
                unit = next(iter(steps.values()))["unit"]
                most = max([row["value"] for row in steps.values()] + ([peer["peer_value"]] if peer else []))
                canvas.text(20, y, f"{direction}, {case}: {unit}", 14, bold=True)
                y += 14
                lines = [(step + (" *" if (direction, step) in named else ""), row["value"],
                          COLOURS[chapter[:2]]) for step, row in steps.items()]
                if peer:
                    lines.append((peer["peer"], peer["peer_value"], EDGE))
                for name, value, colour in lines:
                    canvas.text(190, y + 17, name, 13, INK if colour != EDGE else GREY, "end")
                    canvas.rect(200, y + 4, max(1, 500 * value / most), 18, colour, radius=2)
                    canvas.text(208 + 500 * value / most, y + 18, digits(value), 13)
                    y += 26
                y += 34
        height = 10 + sum(48 + 26 * (len(steps) + bool(peer)) for *_, steps, peer in groups)
        return with_foot(bars, shown, height, f"The steps of {chapter} on {card.name}, and the fastest peer",
                         "Grey: the fastest peer. Rows of different dates are of different runs."
                         + (" * Runs only by its name." if named else ""))
    return draw


# ---- One roofline ----
# Operations for an element of a tensor, and how many such tensors move. Counted from the formulas: a
# maximum, an exponential, a sum and a product are one each.
COUNTS = {("01_vector_add", "forward"): (1, 3), ("03_softmax", "forward"): (5, 2),
          ("03_softmax", "backward"): (4, 3), ("04_layernorm", "forward"): (7, 2),
          ("04_layernorm", "backward"): (11, 3), ("06_rope", "forward"): (3, 2),
          ("06_rope", "backward"): (3, 2)}
SIZES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "e4m3": 1}


def intensity(row):
    """Operations for each byte that must move through device memory."""
    size = SIZES[row["case"].split()[0]]
    number = {name: int(value) for name, value in re.findall(r"\b([a-zA-Z]+)(\d+)\b", row["case"])}
    if row["chapter"] == "02_matmul":
        m, n, k = number["m"], number["n"], number["k"]
        return 2 * m * n * k / (size * (m * k + k * n) + (2 if size == 1 else size) * m * n)
    if row["unit"] == "TFLOP/s":  # attention: pairs of a query and a key, products of d multiply-adds
        forward = row["direction"] == "forward"
        far = "W" in number
        pairs = number["S"] * (number["S"] if row["case"].endswith(" full") else (number["S"] + 1) / 2)
        operations = 2 * (2 if forward else 5) * pairs * number["H"]
        of_q, of_k = ((3, 3) if far else (2, 2)) if forward else ((6, 6) if far else (4, 4))
        return operations / (size * number["S"] * (of_q * number["H"] + of_k * number["Hkv"]))
    operations, tensors = COUNTS[row["chapter"], row["direction"]]
    return operations / (tensors * size)


def rate(row):
    """TFLOP/s."""
    return row["value"] * (intensity(row) if row["unit"] == "TB/s" else 1)


def points(root, card=H200):
    """Of each step of each chapter one row: that of its chapter's chart, or else its fastest."""
    found = []
    for chapter, ladders in card.ladders.items():
        for direction in ("forward", "backward"):
            cases = [case for of, case in ladders if of == direction]
            steps = {}
            for row in rows_of(root, chapter, direction, card=card):
                if row["unit"] == "TB/s" and chapter in ("02_matmul", "05_flash_attention"):
                    continue  # decoding, whose bytes are those of the keys and values
                if re.search(r" D\d", row["case"]):
                    continue  # from hidden states: four products with weights beside attention
                key = (row["case"] in cases, row["date"] if row["case"] in cases else "", row["value"])
                if row["step"] not in steps or key >= steps[row["step"]][0]:
                    steps[row["step"]] = (key, row)
            found += [row for _, row in steps.values()]
    return found


def roofline(root, card=H200):
    shown = points(root, card)

    def draw(canvas):
        left, right, top, bottom = 64, 780, 64, 500
        x_from, x_to, y_from, y_to = 1 / 16, 32768, 0.03, 4096

        def x_of(value):
            return left + (right - left) * math.log(value / x_from) / math.log(x_to / x_from)

        def y_of(value):
            return bottom - (bottom - top) * math.log(value / y_from) / math.log(y_to / y_from)

        for value in (0.1, 1, 10, 100, 1000):
            canvas.line(left, y_of(value), right, y_of(value), EDGE, 1)
            canvas.text(left - 8, y_of(value) + 4, f"{value:g}", 12, GREY, "end")
            canvas.line(x_of(value), top, x_of(value), bottom, EDGE, 1)
            canvas.text(x_of(value), bottom + 18, f"{value:g}", 12, GREY, "middle")
        canvas.text(16, 50, "TFLOP/s", 12, GREY)
        canvas.text(right, bottom + 36, "operations for each byte that must move", 12, GREY, "end")
        for roof, name in ((TFLOPS, f"fp32: {TFLOPS:.0f}"), (TENSOR_TFLOPS, f"bf16: {TENSOR_TFLOPS}"),
                           (FP8_TFLOPS, f"fp8: {FP8_TFLOPS:,}")):
            canvas.line(x_of(roof / card.tb_per_s), y_of(roof), right, y_of(roof), INK, 2)
            canvas.text(x_of(roof / card.tb_per_s) - 8, y_of(roof) - 6, name, 12, INK, "end", bold=True)
        canvas.line(x_of(x_from), y_of(x_from * card.tb_per_s),
                    x_of(FP8_TFLOPS / card.tb_per_s), y_of(FP8_TFLOPS), INK, 2)
        canvas.text(x_of(0.1), y_of(8), f"memory: {card.tb_per_s} TB/s", 12, INK, bold=True)
        for row in shown:
            canvas.dot(x_of(intensity(row)), y_of(rate(row)), 4.5, COLOURS[row["chapter"][:2]])
        x = left
        for number in (chapter[:2] for chapter in card.ladders):
            canvas.dot(x + 6, 26, 5, COLOURS[number])
            canvas.text(x + 16, 30, number, 13)
            x += 56
        canvas.text(x + 10, 30, f"chapters; {len(shown)} steps, forward and backward", 13, GREY)
    return with_foot(draw, shown, 550, f"Every measured step on one roofline of {card.name}")


# ---- The last step of each ladder that runs unasked, beside its fastest peer ----
def beside_peer(rows, named=()):
    """(the last step's row, the fastest peer's row, ratio, whether both are of one run), without the
    steps that run only if they are named."""
    peer = best_peer(rows)
    last = next(row for row in reversed(rows) if row["value"] and row["step"] not in named)
    same = [row for row in rows if row["step"] == last["step"] and row["peer"] == peer["peer"]]
    if same:
        return same[-1], same[-1], same[-1]["ratio"], True
    return last, peer, last["value"] / peer["peer_value"], False


def ratios(root):
    found = []
    for chapter, ladders in LADDERS.items():
        for direction, case in ladders:
            rows = rows_of(root, chapter, direction, case)
            if best_peer(rows):
                found.append(beside_peer(rows, on_request(root, chapter, direction)))
    shown = [row for last, peer, *_ in found for row in (last, peer)]
    most = max(1.25, max(ratio for *_, ratio, _ in found))

    def draw(canvas):
        left, width = 330, 400
        canvas.text(20, 28, "the last step's speed, as a multiple of the fastest peer's", 14, bold=True)
        one = left + width / most
        y = 44
        for row, peer, ratio, together in found:
            canvas.text(left - 12, y + 10, f"{row['chapter'][:2]} {row['direction']}, {row['step']}", 13,
                        anchor="end", bold=True)
            canvas.text(left - 12, y + 27, row["case"], 12, GREY, "end")
            canvas.rect(left, y + 2, width * ratio / most, 22, COLOURS[row["chapter"][:2]], radius=2)
            label = f"{ratio:.2f} × {peer['peer']}{'' if together else ' *'}"
            end = left + width * max(ratio, 1) / most
            if end + 8 + text_width(label, 13) > 790:
                canvas.text(end - 8, y + 18, label, 13, GROUND, "end")
            else:
                canvas.text(end + 8, y + 18, label, 13)
            y += 42
        canvas.line(one, 40, one, y - 6, INK, 1.5, "4 4")
    return with_foot(draw, shown, 62 + 42 * len(found),
                     "The last measured step of each ladder beside its fastest peer",
                     "Above 1 is better for us. Steps that run only by their name are left out."
                     + ("" if all(together for *_, together in found) else
                        " * The two were measured in different runs."))


FIGURES = {f"docs/figures/ladder_{chapter[:2]}.svg": ladder(chapter) for chapter in LADDERS} | {
    f"docs/figures/results_h100_{chapter[:2]}.svg": ladder(chapter, H100) for chapter in H100_LADDERS} | {
    "docs/figures/results_roofline.svg": roofline, "docs/figures/results_ratios.svg": ratios,
    "docs/figures/results_h100_roofline.svg": lambda root: roofline(root, H100)}
