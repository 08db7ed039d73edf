#include "xray_svg.hpp"

#include <bit>
#include <fstream>
#include <map>
#include <sstream>

namespace cpu_device::check {
namespace {

// A row is 128 bytes: four sectors of global memory, or a word of each of the 32 banks.
constexpr uintptr_t kRow = 128, kWordBytes = 4;
constexpr int kCell = 24, kLeft = 110, kWidth = kLeft + 32 * kCell + 16, kFont = 11;
constexpr const char *kGround = "#ffffff", *kInk = "#1f2328", *kGrey = "#59636e",
                     *kLight = "#eef1f4", *kEdge = "#d0d7de", *kPale = "#b9dcff",
                     *kConflict = "#ffd0cc";

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return result;
}

class Drawing {
 public:
  void text(int x, int y, const std::string& text, const char* fill, const char* anchor = "start") {
    out_ << "<text x=\"" << x << "\" y=\"" << y << "\" fill=\"" << fill << "\" text-anchor=\""
         << anchor << "\">" << escaped(text) << "</text>\n";
  }
  void rect(int x, int y, int width, const char* fill, const char* stroke) {
    out_ << "<rect x=\"" << x << "\" y=\"" << y << "\" width=\"" << width << "\" height=\"" << kCell
         << "\" fill=\"" << fill << "\" stroke=\"" << stroke << "\"/>\n";
  }
  std::string str() const { return out_.str(); }

 private:
  std::ostringstream out_;
};

/// "5", "0–31", or of lanes that are not in sequence "0 …".
std::string name_of(uint32_t lanes) {
  const int first = std::countr_zero(lanes), last = 31 - std::countl_zero(lanes);
  if (first == last) return std::to_string(first);
  const bool all = std::popcount(lanes) == last - first + 1;
  return std::to_string(first) + (all ? "–" + std::to_string(last) : " …");
}

/// Returns the height.
int draw(const XrayPanel& panel, int y, Drawing* to) {
  std::map<uintptr_t, std::map<int, uint32_t>> rows;  // lanes by row and column
  std::array<int, 32> words_in{};                     // by column
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((panel.request.lanes >> lane & 1) == 0) continue;
    const uintptr_t begin = panel.request.address[lane];
    for (uintptr_t word = begin / kWordBytes;
         word <= (begin + panel.request.bytes - 1) / kWordBytes; ++word) {
      uint32_t& lanes = rows[word * kWordBytes / kRow][static_cast<int>(word % 32)];
      if (lanes == 0) ++words_in[word % 32];
      lanes |= 1u << lane;
    }
  }
  to->text(16, y + 20, panel.place + ": " + panel.source, kInk);
  to->text(
      16, y + 40,
      "one request, " + panel.title + "; a cell is a word of 4 bytes, the numbers in it are lanes",
      kGrey);
  int top = y + 64;
  for (int column = 0; column < 32; column += panel.shared ? 1 : 8) {
    const int width = panel.shared ? 1 : 8;
    to->text(kLeft + column * kCell + width * kCell / 2, top - 6,
             panel.shared ? std::to_string(column) : "sector " + std::to_string(column / 8), kGrey,
             "middle");
  }
  if (panel.shared) to->text(kLeft - 8, top - 6, "bank", kGrey, "end");
  const uintptr_t first = rows.begin()->first;
  for (const auto& [row, columns] : rows) {
    to->text(kLeft - 8, top + 16, "byte +" + std::to_string((row - first) * kRow), kGrey, "end");
    for (int column = 0; column < 32; ++column) {
      const auto cell = columns.find(column);
      bool moved = false;  // with what a lane asked for, but asked for by none
      if (!panel.shared) {
        for (int i = 0; i < 8; ++i) moved = moved || columns.contains(column / 8 * 8 + i);
      }
      const bool conflicts = panel.shared && panel.request.bytes <= kWordBytes &&
                             words_in[static_cast<size_t>(column)] > 1;
      to->rect(kLeft + column * kCell, top, kCell,
               cell == columns.end() ? moved ? kLight : kGround
               : conflicts           ? kConflict
                                     : kPale,
               kEdge);
      if (cell != columns.end())
        to->text(kLeft + column * kCell + kCell / 2, top + 16, name_of(cell->second), kInk,
                 "middle");
    }
    top += kCell;
  }
  return top + 16 - y;
}

}  // namespace

bool write_xray_svg(const char* path, const std::vector<XrayPanel>& panels) {
  Drawing drawing;
  int height = 8;
  for (const XrayPanel& panel : panels) height += draw(panel, height, &drawing);
  std::ofstream file(path);
  file << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << kWidth << "\" height=\"" << height
       << "\" viewBox=\"0 0 " << kWidth << " " << height
       << "\" font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"" << kFont << "\">\n"
       << "<rect width=\"100%\" height=\"100%\" fill=\"" << kGround << "\"/>\n"
       << drawing.str() << "</svg>\n";
  file.close();
  return !file.fail();
}

}  // namespace cpu_device::check
