#include <algorithm>

#include "cpu_device/check.h"
#include "cpu_device/launch.h"
#include "cpu_device/options.h"
#include "cpu_device/report.h"
#include "cpu_device/xray.h"
#include "tile/host/device.hpp"
#include "tile/host/memory_requests.hpp"
#include "tile/host/text.hpp"

namespace tile {

bool device_is_simulated() { return true; }

bool device_reads_host_memory() { return !cpu_device::kChecking; }

std::string driver_version() { return {}; }

std::string device_report() { return cpu_device::take_report(); }

void keep_device_reports() { cpu_device::options().print_reports = false; }

void shuffle_device(std::uint64_t seed) {
  static const cpu_device::Options told = cpu_device::options();
  cpu_device::Options& now = cpu_device::options();
  now.order = seed == 0 ? told.order : cpu_device::Order::random;
  now.seed = seed == 0 ? told.seed : seed;
}

void name_array(const DeviceArray& a) {
  cpu_device::check::name_array({a.name, a.data, a.element_bytes, a.rows, a.cols, a.ld, a.written});
}

void name_launch(const char* kernel, const char* file, int line) {
  cpu_device::name_next_launch({kernel, file, line});
}

std::string device_activity() {
  const cpu_device::Activity activity = cpu_device::take_activity();
  std::string text = counted(static_cast<std::int64_t>(activity.blocks), "block");
  auto add = [&text](std::uint64_t count, const char* noun) {
    text.append(", ").append(counted(static_cast<std::int64_t>(count), noun));
  };
  add(activity.threads, "thread");
  if (activity.barriers > 0) add(activity.barriers, "barrier");
  if (activity.collectives > 0) add(activity.collectives, "warp collective");
  if (cpu_device::kChecking) text += "; each access to memory checked";
  return text;
}

BulkLoads bulk_loads() {
  const cpu_device::Activity activity = cpu_device::take_activity();
  return {static_cast<std::int64_t>(activity.loaded_bytes),
          static_cast<std::int64_t>(activity.most_on_the_way)};
}

std::vector<std::string> launched_kernels() {
  std::vector<std::string> names = cpu_device::take_launched_kernels();
  for (std::string& name : names) name.resize(std::min(name.find('<'), name.size()));
  return names;
}

bool count_memory_requests() {
  cpu_device::options().xray = cpu_device::kChecking;
  return cpu_device::kChecking;
}

std::vector<MemoryRequests> memory_requests() {
  std::vector<MemoryRequests> all;
  if constexpr (cpu_device::kChecking) {
    auto number = [](std::uint64_t count) { return static_cast<std::int64_t>(count); };
    for (const cpu_device::XrayLine& line : cpu_device::take_xray()) {
      all.push_back(
          {line.place, line.access, number(line.requests), number(line.cost), number(line.least)});
    }
  }
  return all;
}

}  // namespace tile
