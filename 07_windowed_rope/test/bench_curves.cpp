// Draws the encodings' scores by distance.
#include "curves.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "hidden/tables.hpp"

namespace windowed_rope {
namespace {

// As the project's figures look (tools/drawing.py).
constexpr int kWidth = 800, kHeight = 440;
constexpr double kLeft = 60, kRight = 780, kTop = 90, kBottom = 390;
constexpr char kGrey[] = "#59636e";

template <class... Numbers>
void add(std::string* svg, const char* format, Numbers... numbers) {
  char text[400];
  std::snprintf(text, sizeof text, format, numbers...);
  svg->append(text).append("\n");
}

void add_text(std::string* svg, double x, double y, const char* anchor, const char* colour,
              const std::string& text) {
  add(svg, R"(<text x="%.1f" y="%.1f" font-size="12" fill="%s" text-anchor="%s">%s</text>)", x, y,
      colour, anchor, text.c_str());
}

struct Look {
  const char *colour, *dashes;
};
Look look_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::learned: return {"#9aa3ac", ""};
    case Encoding::sinusoidal: return {"#1a7f37", "2 4"};
    case Encoding::rotary: return {"#0a5fc2", ""};
    case Encoding::exposb: return {"#b04a00", ""};
    case Encoding::exposb_plain: return {"#b04a00", "6 4"};
    case Encoding::windowed: return {"#c4202b", ""};
  }
  return {kGrey, ""};
}

}  // namespace

const char* title(Encoding encoding) {
  switch (encoding) {
    case Encoding::learned: return "Standard, learned";
    case Encoding::sinusoidal: return "Absolute, sinusoids";
    case Encoding::rotary: return "RoPE";
    case Encoding::exposb: return "ExpoSB";
    case Encoding::exposb_plain: return "ExpoSB, w = 1";
    case Encoding::windowed: return "ReRoPE";
  }
  return "?";
}

std::string curves(Hidden p) {
  std::vector<std::vector<double>> scores;
  double least = 0, most = 1;
  for (const Encoding encoding : kEncodings) {
    p.encoding = encoding;
    scores.push_back(score_by_distance(p));
    const auto [low, high] = std::minmax_element(scores.back().begin(), scores.back().end());
    least = std::min(least, *low), most = std::max(most, *high);
  }
  const double farthest = std::max(1.0, static_cast<double>(p.length - 1));
  const auto x_of = [&](double n) { return kLeft + (kRight - kLeft) * n / farthest; };
  const auto y_of = [&](double s) {
    return kBottom - (kBottom - kTop) * (s - least) / (most - least);
  };

  std::string svg;
  add(&svg,
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" )"
      R"(font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" role="img">)",
      kWidth, kHeight, kWidth, kHeight);
  svg += "<title>Scores by distance, with each encoding</title>\n";
  add(&svg,
      R"(<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" fill="#ffffff" stroke="#d0d7de"/>)",
      kWidth - 1, kHeight - 1);
  for (int tick = static_cast<int>(std::ceil(least * 4)); tick <= most * 4; ++tick) {
    const double y = y_of(tick / 4.0);
    add(&svg, R"(<path d="M%.1f %.1fH%.1f" stroke="#d0d7de"/>)", kLeft, y, kRight);
    char number[16];
    std::snprintf(number, sizeof number, "%.2f", tick / 4.0);
    add_text(&svg, kLeft - 8, y + 4, "end", kGrey, number);
  }
  for (int tick = 0; tick <= 4; ++tick) {
    const double n = std::floor(farthest * tick / 4);
    add_text(&svg, x_of(n), kBottom + 20, "middle", kGrey, std::to_string(static_cast<int>(n)));
  }
  add_text(&svg, (kLeft + kRight) / 2, kBottom + 40, "middle", kGrey,
           "distance; the score is 1 at distance 0, W = " + std::to_string(p.window) +
               ", d = " + std::to_string(p.head_dim));
  for (std::size_t i = 0; i < kEncodings.size(); ++i) {
    const auto [colour, dashes] = look_of(kEncodings[i]);
    const double x = kLeft + 240 * static_cast<double>(i % 3);
    const double y = 30 + 24 * static_cast<double>(i / 3);
    add(&svg, R"(<path d="M%.1f %.1fh36" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>)", x,
        y, colour, dashes);
    add_text(&svg, x + 44, y + 4, "start", "#1f2328", title(kEncodings[i]));
    svg += R"(<polyline fill="none" stroke=")" + std::string(colour) +
           R"(" stroke-width="1.8" stroke-dasharray=")" + dashes + R"(" points=")";
    const std::size_t step = 1 + scores[i].size() / 400;  // not many points to a pixel
    for (std::size_t n = 0; n < scores[i].size(); n += step) {
      char point[40];
      std::snprintf(point, sizeof point, "%s%.1f,%.1f", n == 0 ? "" : " ",
                    x_of(static_cast<double>(n)), y_of(scores[i][n]));
      svg += point;
    }
    svg += "\"/>\n";
  }
  return svg + "</svg>\n";
}

}  // namespace windowed_rope
