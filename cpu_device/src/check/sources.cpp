// Places of device code: addresses in the program's text, with the calls that have led there.
#include "../source_lines.hpp"

#include <array>
#include <compare>
#include <map>
#include <string>
#include <vector>

#include "checker.hpp"

namespace cpu_device::check {
namespace {

struct Where {
  uintptr_t pc = 0;  // a return address
  Place call = 0;    // the call of the function in which pc is
  Place wait = 0;    // for a write by cp.async
  auto operator<=>(const Where&) const = default;
};
std::vector<Where> places(1);  // a place is its number here; each is there once

Place number_of(const Where& where) {
  static std::array<Place, 4096> recent{};
  Place& place = recent[(where.pc ^ where.call * 0x9e3779b1u) % recent.size()];
  if (places[place] == where) return place;
  static std::map<Where, Place> all;
  const auto [entry, is_new] = all.try_emplace(where, static_cast<Place>(places.size()));
  if (is_new) places.push_back(where);
  return place = entry->second;
}

}  // namespace

Place place_of(const void* caller) {
  return number_of({reinterpret_cast<uintptr_t>(caller), current_call(), 0});
}

Place with_wait(Place place, Place wait) {
  Where where = places[place];
  where.wait = wait;
  return number_of(where);
}

Place wait_of(Place place) { return places[place].wait; }

bool same_line(Place a, Place b) { return places[a].pc == places[b].pc; }

void function_entered(const void* caller) { current_call() = place_of(caller); }

void function_left() { current_call() = places[current_call()].call; }

namespace {

Calls calls_of(Place place) {
  Calls calls;
  for (; place != 0; place = places[place].call) {
    calls.push_back(reinterpret_cast<const void*>(places[place].pc));
  }
  return calls;
}

}  // namespace

const char* source_of(Place place) {
  static std::map<Place, std::string> known;
  const auto [entry, is_new] = known.try_emplace(place);
  if (is_new) entry->second = cpu_device::source_of(calls_of(place));
  return entry->second.c_str();
}

std::vector<std::string> kernel_lines_of(std::span<const Place> of) {
  std::vector<Calls> all;
  for (const Place place : of) all.push_back(calls_of(place));
  return cpu_device::kernel_lines_of(all);
}

}  // namespace cpu_device::check
