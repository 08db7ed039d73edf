"""The chart of 07: what models trained at one length lose by position at eight lengths."""
import json
import statistics

from drawing import A, B, C, EDGE, GREY, INK, OCHRE, RED, VIOLET, Canvas

RESULTS = "docs/results/length_extrapolation_h200.json"
COLOURS = (GREY, OCHRE, VIOLET, RED, A, C)  # of the methods, in the order of the file
HIGHEST = 4.0  # nats; what is above lies on the chart's edge


def losses(root):
    found = json.loads((root / RESULTS).read_text())
    trained, runs = found["trained_length"], list(found["runs"].values())
    canvas = Canvas(770, 420, "Loss by position of models trained at "
                    f"{trained:,} positions, at eight times that length")
    left, top, width, height = 60, 50, 560, 310
    length = max(found["lengths"])

    def place(position, loss):
        return left + position / length * width, top + height * (1 - min(loss, HIGHEST) / HIGHEST)
    canvas.text(left, 28, f"nats a byte by position, the mean of {len(runs)} models", 13, bold=True)
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
    ends = []
    for (name, _), colour in zip(runs[0].items(), COLOURS, strict=True):
        means = [statistics.mean(each) for each in
                 zip(*(run[name]["by_position"] for run in runs), strict=True)]
        points = [place((i + 0.5) * length / len(means), loss) for i, loss in enumerate(means)]
        for (x0, y0), (x1, y1) in zip(points, points[1:]):
            canvas.line(x0, y0, x1, y1, colour, 2)
        ends.append((points[-1][1], name, colour))
    below = top - 16.0
    for y, name, colour in sorted(ends):  # names beside the ends of their lines, one below another
        below = max(below + 16, y)
        canvas.text(left + width + 12, below + 4, name, 13, colour, bold=True)
    return canvas


FIGURES = {"07_windowed_rope/figures/length_extrapolation.svg": losses}
