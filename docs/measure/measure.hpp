// What the programs of this folder share: times by events, and rows of results.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorString(error));
  std::exit(1);
}

inline cudaDeviceProp properties() {
  cudaDeviceProp card;
  check(cudaGetDeviceProperties(&card, 0));
  return card;
}

/// Ends the program if results are wrong, and on the CPU device, whose times say nothing.
inline void end_without_times(int wrong) {
  const cudaDeviceProp card = properties();
  std::printf("%s: %d results are wrong\n", card.name, wrong);
  if (wrong) std::exit(1);
  if (std::strcmp(card.name, "CPU device") != 0) return;
  std::printf("Its times would say nothing about a GPU: none are shown.\n");
  std::exit(0);
}

template <class T>
T* allocate(std::size_t count) {
  T* device = nullptr;
  check(cudaMalloc(&device, count * sizeof(T)));
  return device;
}
template <class T>
T* on_device(const std::vector<T>& host) {
  T* device = allocate<T>(host.size());
  check(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}
template <class T>
std::vector<T> on_host(const T* device, std::size_t count) {
  std::vector<T> host(count);
  check(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return host;
}

// snippet-begin time
/// The least time of some launches, in nanoseconds. An event is recorded on the card when all work
/// before it has ended, so the host's own time does not count.
template <class Launch>
double nanoseconds(int times, const Launch& launch) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float least = 1e30f;
  for (int i = 0; i < times; ++i) {
    float milliseconds = 0;
    check(cudaEventRecord(begin));
    launch();
    check(cudaGetLastError());
    check(cudaEventRecord(end));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    least = std::min(least, milliseconds);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return least * 1e6;
}
// snippet-end time

inline std::string shown_bytes(double count) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  for (; count >= 1024 && unit < 3; ++unit) count /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", count, units[unit]);
  return text;
}

struct Row {
  std::string step, metric;
  double value;
  std::string unit, where;  // which case
};

/// Prints the rows, and if there is an argument `FILE COMMIT` writes them as docs/results has them.
inline void show(const std::vector<Row>& rows, const char* page, int count, char** arguments) {
  for (const Row& row : rows) {
    std::printf("%-16s %-18s %10.4g %-8s %s\n", row.step.c_str(), row.metric.c_str(), row.value,
                row.unit.c_str(), row.where.c_str());
  }
  if (count != 3) return;
  FILE* file = std::fopen(arguments[1], "w");
  if (!file) std::printf("cannot write %s\n", arguments[1]), std::exit(1);
  char driver[64] = "";
  FILE* pipe = popen("nvidia-smi --query-gpu=driver_version --format=csv,noheader", "r");
  if (pipe && std::fgets(driver, sizeof driver, pipe)) driver[std::strcspn(driver, "\n")] = '\0';
  if (pipe) pclose(pipe);
  char date[16];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  int cuda = 0;
  check(cudaRuntimeGetVersion(&cuda));
  const cudaDeviceProp card = properties();
  const char* before = "[";
  for (const Row& row : rows) {
    std::fprintf(file,
                 "%s\n  {\"chapter\": \"%s\", \"step\": \"%s\", \"direction\": \"forward\", "
                 "\"case\": \"%s\", \"metric\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", "
                 "\"ceiling\": null, \"peer\": \"\", \"peer_value\": null, \"ratio\": null, "
                 "\"gpu\": \"%s\", \"driver\": \"%s\", \"cuda\": \"%d.%d\", \"commit\": \"%s\", "
                 "\"date\": \"%s\"}",
                 before, page, row.step.c_str(), row.where.c_str(), row.metric.c_str(), row.value,
                 row.unit.c_str(), card.name, driver, cuda / 1000, cuda % 1000 / 10, arguments[2],
                 date);
    before = ",";
  }
  std::fprintf(file, "\n]\n");
  std::fclose(file);
}
