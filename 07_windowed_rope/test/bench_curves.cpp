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
constexpr int kWidth = 800, kColumns = 2, kRows = 3;
constexpr double kPanelWidth = 390, kPanelHeight = 200;
constexpr double kLeft = 56, kRight = 380, kTop = 40, kBottom = 170;  // of a panel's axes
constexpr char kGrey[] = "#59636e", kPale[] = "#b9dcff";

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

const char* colour_of(Encoding encoding) {
  switch (encoding) {
    case Encoding::learned: return kGrey;
    case Encoding::sinusoidal: return "#1a7f37";
    case Encoding::rotary: return "#0a5fc2";
    case Encoding::exposb: return "#b04a00";
    case Encoding::exposb_plain: return "#7a3fb5";
    case Encoding::windowed: return "#c4202b";
  }
  return kGrey;
}

template <class X, class Y>
void add_curve(std::string* svg, const std::vector<double>& scores, const char* colour, X x_of,
               Y y_of) {
  add(svg, R"(<polyline fill="none" stroke="%s" stroke-width="1.8" points=")", colour);
  const std::size_t step = 1 + scores.size() / 400;  // not many points to a pixel
  for (std::size_t n = 0; n < scores.size(); n += step) {
    add(svg, "%.1f,%.1f", x_of(static_cast<double>(n)), y_of(scores[n]));
  }
  svg->append("\"/>\n");
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
  const auto rotary = std::find(kEncodings.begin(), kEncodings.end(), Encoding::rotary);
  const std::vector<double>& pale = scores[static_cast<std::size_t>(rotary - kEncodings.begin())];
  const double farthest = std::max(1.0, static_cast<double>(p.length - 1));
  const int height = static_cast<int>(kRows * kPanelHeight) + 36;

  std::string svg;
  add(&svg,
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" )"
      R"(font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" role="img">)",
      kWidth, height, kWidth, height);
  svg += "<title>Scores by distance, with each encoding</title>\n";
  add(&svg,
      R"(<rect x="0.5" y="0.5" width="%d" height="%d" rx="8" fill="#ffffff" stroke="#d0d7de"/>)",
      kWidth - 1, height - 1);
  for (std::size_t i = 0; i < kEncodings.size(); ++i) {
    const double left = kPanelWidth * static_cast<double>(i % kColumns);
    const double top = kPanelHeight * static_cast<double>(i / kColumns);
    const auto x_of = [&](double n) { return left + kLeft + (kRight - kLeft) * n / farthest; };
    const auto y_of = [&](double s) {
      return top + kBottom - (kBottom - kTop) * (s - least) / (most - least);
    };
    add(&svg,
        R"(<text x="%.1f" y="%.1f" font-size="14" font-weight="bold" fill="#1f2328">%s</text>)",
        left + kLeft, top + 26, title(kEncodings[i]));
    for (int tick = static_cast<int>(std::ceil(least * 2)); tick <= most * 2; ++tick) {
      const double y = y_of(tick / 2.0);
      add(&svg, R"(<path d="M%.1f %.1fH%.1f" stroke="#d0d7de"/>)", left + kLeft, y, left + kRight);
      char number[16];
      std::snprintf(number, sizeof number, "%.1f", tick / 2.0);
      add_text(&svg, left + kLeft - 8, y + 4, "end", kGrey, number);
    }
    for (int tick = 0; tick <= 4; ++tick) {
      const double n = std::floor(farthest * tick / 4);
      add_text(&svg, x_of(n), top + kBottom + 20, tick == 4 ? "end" : "middle", kGrey,
               std::to_string(static_cast<int>(n)));
    }
    add_curve(&svg, pale, kPale, x_of, y_of);  // to compare with
    add_curve(&svg, scores[i], colour_of(kEncodings[i]), x_of, y_of);
  }
  add_text(&svg, kWidth / 2.0, height - 14, "middle", kGrey,
           "distance; the score is 1 at distance 0, W = " + std::to_string(p.window) +
               ", d = " + std::to_string(p.head_dim) + "; pale: RoPE, in each");
  return svg + "</svg>\n";
}

}  // namespace windowed_rope
