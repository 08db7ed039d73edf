#include "harness/results.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "tile/host/text.hpp"

namespace tile {
namespace {

std::string quoted(const std::string& text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) < 0x20)
      throw std::runtime_error("a control character in " + text);
    json += c;
  }
  return json + '"';
}

/// Four significant digits: more than the spread of any measurement.
std::string rounded_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

std::string number_or_null(const std::optional<double>& value) {
  return value ? rounded_number(*value) : "null";
}

/// The value of a string field in a row that to_json() wrote.
std::string field(const std::string& row, const std::string& name) {
  const std::string start = "\"" + name + "\": \"";
  const std::size_t begin = row.find(start);
  if (begin == row.npos) throw std::runtime_error("no field '" + name + "' in: " + row);
  std::size_t end = begin + start.size();
  while (end < row.size() && row[end] != '"') end += row[end] == '\\' ? 2 : 1;
  return row.substr(begin + start.size(), end - begin - start.size());
}

std::string key(const std::string& row) {
  std::string all;
  for (const char* name : {"chapter", "step", "direction", "case", "metric", "peer"}) {
    all += field(row, name) + '\n';
  }
  return all;
}

std::vector<std::string> read_rows(const std::string& path) {
  std::vector<std::string> rows;
  std::ifstream file(path);
  if (!file && std::filesystem::exists(path)) throw std::runtime_error("cannot read " + path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line == "[" || line == "]") continue;
    if (line.back() == ',') line.pop_back();
    if (line.front() != '{' || line.back() != '}') {
      throw std::runtime_error(path + " is not a list with a row a line: " + line);
    }
    rows.push_back(line);
  }
  return rows;
}

}  // namespace

std::string to_json(const Result& r, const Origin& origin) {
  std::string row = "{";
  auto add = [&row](const char* name, const std::string& json) {
    row.append(row.size() > 1 ? ", " : "").append(quoted(name)).append(": ").append(json);
  };
  add("chapter", quoted(r.chapter));
  add("step", quoted(r.step));
  add("direction", quoted(r.direction));
  add("case", quoted(r.workload));
  add("metric", quoted(r.metric));
  add("value", rounded_number(r.value));
  add("unit", quoted(r.unit));
  add("ceiling", number_or_null(r.ceiling));
  add("peer", quoted(r.peer));
  add("peer_value", number_or_null(r.peer_value));
  add("ratio", number_or_null(r.ratio));
  add("low", rounded_number(r.low));
  add("high", rounded_number(r.high));
  add("sm_clock", rounded_number(r.sm_clock));
  add("gpu", quoted(origin.gpu));
  add("driver", quoted(origin.driver));
  add("cuda", quoted(origin.cuda));
  add("commit", quoted(origin.commit));
  add("date", quoted(origin.date));
  return row + "}";
}

void merge_results(const std::string& path, const std::vector<Result>& results,
                   const Origin& origin) {
  std::vector<std::string> rows = read_rows(path);
  for (const Result& result : results) {
    const std::string row = to_json(result, origin);
    auto same = [wanted = key(row)](const std::string& old) { return key(old) == wanted; };
    const auto old = std::find_if(rows.begin(), rows.end(), same);
    if (old != rows.end()) {
      *old = row;
    } else {
      rows.push_back(row);
    }
  }
  const std::string next = path + ".new";
  std::ofstream file(next);
  file << "[\n";
  for (std::size_t i = 0; i < rows.size(); ++i) {
    file << rows[i] << (i + 1 < rows.size() ? ",\n" : "\n");
  }
  file << "]\n";
  file.close();
  if (!file || std::rename(next.c_str(), path.c_str()) != 0) {
    std::remove(next.c_str());
    throw std::runtime_error("cannot write " + path);
  }
}

}  // namespace tile
