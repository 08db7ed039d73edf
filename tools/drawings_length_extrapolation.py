"""The chart of 07: what models trained at one length lose by position at eight lengths."""
import json
import statistics

from drawing import A, C, EDGE, GREY, OCHRE, RED, VIOLET, Canvas

RESULTS = "docs/results/length_extrapolation_h200.json"
COLOURS = (GREY, OCHRE, VIOLET, RED, A, C)  # of the methods, in the order of the file
HIGHEST = 4.5  # nats, above every curve
ALIKE = 0.02  # nats: curves as near as that share a line, and take turns on it


def curves(root):
    """{method: the mean of the runs at each position}."""
    runs = list(json.loads((root / RESULTS).read_text())["runs"].values())
    return {name: [statistics.mean(each) for each in
                   zip(*(run[name]["by_position"] for run in runs), strict=True)] for name in runs[0]}


def lines_of(means):
    """The methods whose curves lie on one line, for each line."""
    lines = []
    for name, curve in means.items():
        for line in lines:
            if all(abs(x - y) < ALIKE for x, y in zip(curve, means[line[0]], strict=True)):
                line.append(name)
                break
        else:
            lines.append([name])
    return lines


def apart(places, gap):
    """Places near these, which are sorted, with `gap` from one to the next at least."""
    blocks = []  # (middle, how many)
    for place in places:
        block = (place, 1)
        while blocks and block[0] - blocks[-1][0] < gap * (block[1] + blocks[-1][1]) / 2:
            (y, m), (x, n) = block, blocks.pop()
            block = ((x * n + y * m) / (n + m), n + m)
        blocks.append(block)
    return [middle + (i - (count - 1) / 2) * gap for middle, count in blocks for i in range(count)]


def losses(root):
    found = json.loads((root / RESULTS).read_text())
    trained, means = found["trained_length"], curves(root)
    canvas = Canvas(770, 420, "Loss by position of models trained at "
                    f"{trained:,} positions, at eight times that length")
    left, top, width, height = 60, 50, 560, 310
    length = max(found["lengths"])

    def place(position, loss):
        return left + position / length * width, top + height * (1 - loss / HIGHEST)
    canvas.text(left, 28, f"nats a byte by position, the mean of {len(found['runs'])} models", 13, bold=True)
    for loss in range(int(HIGHEST) + 1):
        x, y = place(0, loss)
        canvas.line(x, y, x + width, y, EDGE, 1)
        canvas.text(x - 8, y + 4, str(loss), 12, GREY, "end")
    for multiple in (1, 2, 4, 8):
        x, y = place(multiple * trained, 0)
        canvas.line(x, top, x, y, GREY if multiple == 1 else EDGE, 1, "4 3")
        canvas.text(x, y + 18, f"{multiple * trained:,}", 12, GREY, "middle")
    canvas.text(place(trained, 0)[0] - 6, top + 14, "trained", 12, GREY, "end")
    canvas.text(left + width / 2, top + height + 40, "position", 12, GREY, "middle")
    colours = dict(zip(means, COLOURS, strict=True))
    ends = []
    for line in lines_of(means):
        count = len(means[line[0]])
        points = [place((i + 0.5) * length / count, sum(means[name][i] for name in line) / len(line))
                  for i in range(count)]
        for i, (start, end) in enumerate(zip(points, points[1:])):
            canvas.line(*start, *end, colours[line[i // 2 % len(line)]], 2 if len(line) == 1 else 3)
        ends += [(points[-1][1], name) for name in line]
    ends.sort(key=lambda end: end[0])
    label_x = left + width + 14
    for (y, name), beside in zip(ends, apart([y for y, _ in ends], 17)):
        canvas.line(points[-1][0] + 2, y, label_x - 4, beside, EDGE, 1)
        canvas.text(label_x, beside + 4, name, 13, colours[name], bold=True)
    return canvas


FIGURES = {"07_windowed_rope/figures/length_extrapolation.svg": losses}
