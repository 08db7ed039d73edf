// The functions that belong to no chapter: errors, types, memory, and the list of chapters and
// steps.
#include "harness/c/c_interface.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>

#include "tile/host/cuda_check.hpp"
#include "tile/host/device.hpp"

namespace tile::c {
namespace {

thread_local std::string last_error;
thread_local const char* last_step = "";

struct Chapter {
  std::string_view title;
  std::vector<StepInfo> steps;
};

// By name, which begins with the chapter's number.
using Chapters = std::map<std::string_view, Chapter>;

Chapters& chapters() {
  static Chapters all;
  return all;
}

// The text as a C string that is never freed.
const char* permanent(std::string_view text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> texts;
  const std::lock_guard lock(mutex);
  auto found = texts.find(text);
  if (found == texts.end()) found = texts.emplace(text).first;
  return found->c_str();
}

// The chapter and its name, or null.
const Chapters::value_type* find_chapter(std::int32_t index) {
  const Chapters& all = chapters();
  if (index < 0 || static_cast<std::size_t>(index) >= all.size()) return nullptr;
  return &*std::next(all.begin(), index);
}

const StepInfo* find_row(std::int32_t chapter_index, std::int32_t index) {
  const auto* chapter = find_chapter(chapter_index);
  if (!chapter || index < 0) return nullptr;
  const auto at = static_cast<std::size_t>(index);
  return at < chapter->second.steps.size() ? &chapter->second.steps[at] : nullptr;
}

// The result of `look`, or `otherwise` if it throws.
template <class Result, class Look>
Result look_up(Result otherwise, Look look) noexcept {
  try {
    return look();
  } catch (...) {
    return otherwise;
  }
}

constexpr tile_status code_of(Code code) {
  switch (code) {
    case Code::ok: return TILE_OK;
    case Code::invalid_argument: return TILE_INVALID_ARGUMENT;
    case Code::unsupported: return TILE_UNSUPPORTED;
    case Code::out_of_memory: return TILE_OUT_OF_MEMORY;
    case Code::device_error: return TILE_DEVICE_ERROR;
  }
  return TILE_DEVICE_ERROR;
}

constexpr Code kCodes[] = {Code::ok, Code::invalid_argument, Code::unsupported, Code::out_of_memory,
                           Code::device_error};

constexpr tile_type type_of(DType type) {
  switch (type) {
    case DType::fp32: return TILE_FP32;
    case DType::fp16: return TILE_FP16;
    case DType::bf16: return TILE_BF16;
    case DType::fp64: return TILE_FP64;
    case DType::tf32: return TILE_TF32;
    case DType::e4m3: return TILE_E4M3;
  }
  return 0;
}

// The type, or null.
const DType* find_type(tile_type given) {
  const auto found = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [given](DType type) { return type_of(type) == given; });
  return found == std::end(kDTypes) ? nullptr : &*found;
}

// Copies between device memory and the host's.
Status copy(const char* to_name, void* to, const char* from_name, const void* from,
            std::int64_t bytes, cudaMemcpyKind kind) {
  if (bytes < 0) return invalid_argument("bytes", std::to_string(bytes) + " is negative");
  if (bytes == 0) return {};
  if (!to) return invalid_argument(to_name, "is null");
  if (!from) return invalid_argument(from_name, "is null");
  const auto size = static_cast<std::size_t>(bytes);
  TILE_RETURN_IF_CUDA_ERROR(cudaMemcpy(to, from, size, kind));
  return {};
}

}  // namespace

tile_status finish(const Status& status) noexcept {
  // Failures are reported by their messages only, not on stderr.
  static const bool quiet = (keep_device_reports(), true);
  static_cast<void>(quiet);
  try {
    last_error = status.message;
  } catch (const std::bad_alloc&) {
    last_error.assign("out of memory");  // short enough to need no allocation
  }
  return code_of(status.code);
}

Status current_exception_status() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return {Code::out_of_memory, "host memory: there is not enough"};
  } catch (const std::exception& error) {
    return {Code::device_error, error.what()};
  } catch (...) {
    return {Code::device_error, "an exception that says nothing"};
  }
}

std::int64_t leading_dimension(std::int64_t given, std::int64_t cols) {
  return given == 0 ? std::max<std::int64_t>(1, cols) : given;
}

std::vector<double> packed(const void* data, std::int64_t rows, std::int64_t cols,
                           std::int64_t ld) {
  const auto* values = static_cast<const double*>(data);
  std::vector<double> copy;
  copy.reserve(static_cast<std::size_t>(rows * cols));
  for (std::int64_t row = 0; row < rows; ++row) {
    copy.insert(copy.end(), values + row * ld, values + row * ld + cols);
  }
  return copy;
}

void unpack(const std::vector<double>& packed, std::int64_t rows, std::int64_t cols,
            std::int64_t ld, void* data) {
  auto* to = static_cast<double*>(data);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(packed.begin() + row * cols, cols, to + row * ld);
  }
}

Status check_reference_type(DType type) {
  if (type == DType::fp64) return {};
  return unsupported("type",
                     std::string(name(type)) + " is not fp64, which the reference computes in");
}

Status read_type(tile_type given, DType* type) {
  const DType* found = find_type(given);
  if (found) {
    *type = *found;
    return {};
  }
  const std::string types = joined(kDTypes, [](DType known) {
    return std::to_string(type_of(known)).append(" (").append(name(known)).append(")");
  });
  return invalid_argument("type", std::to_string(given) + " is not one of " + types);
}

Status read_flag(const char* argument, std::int32_t given, bool* flag) {
  *flag = given != 0;
  if (given == 0 || given == 1) return {};
  return invalid_argument(argument, std::to_string(given) + " is neither 0 nor 1");
}

RegisterLadder::RegisterLadder(std::string_view name, std::string_view title,
                               std::vector<StepInfo> steps) {
  Chapter& chapter = chapters()[name];
  chapter.title = title;
  for (const StepInfo& step : steps) {
    const auto same = [&step](const StepInfo& other) { return other.name == step.name; };
    if (std::ranges::none_of(chapter.steps, same)) chapter.steps.push_back(step);
  }
}

void set_last_step(std::string_view name) noexcept {
  last_step = look_up("", [name] { return permanent(name); });
}

}  // namespace tile::c

using namespace tile::c;

const char* tile_version(void) { return TILE_VERSION; }

// ---- Status and types ----

const char* tile_status_name(tile_status status) {
  for (const tile::Code code : kCodes) {
    if (code_of(code) == status) return look_up("", [&] { return permanent(to_string(code)); });
  }
  return "unknown status";
}

const char* tile_last_error(void) { return last_error.c_str(); }

const char* tile_type_name(tile_type type) {
  const tile::DType* found = find_type(type);
  if (!found) return nullptr;
  return look_up<const char*>(nullptr, [found] { return permanent(name(*found)); });
}

int64_t tile_type_bytes(tile_type type) {
  const tile::DType* found = find_type(type);
  return found ? static_cast<int64_t>(size_bytes(*found)) : 0;
}

// ---- The device and its memory ----

tile_status tile_device_name(const char** name) {
  return guarded([name]() -> tile::Status {
    if (!name) return tile::invalid_argument("name", "is null");
    *name = nullptr;
    *name = permanent(tile::device().name);
    return {};
  });
}

int32_t tile_device_is_simulated(void) { return tile::device_is_simulated() ? 1 : 0; }

tile_status tile_alloc(void** memory, int64_t bytes) {
  return guarded([=]() -> tile::Status {
    if (!memory) return tile::invalid_argument("memory", "is null");
    *memory = nullptr;
    if (bytes < 0) {
      return tile::invalid_argument("bytes", std::to_string(bytes) + " is negative");
    }
    if (bytes == 0) return {};
    const auto size = static_cast<std::size_t>(bytes);
    TILE_RETURN_IF_CUDA_ERROR(cudaMalloc(memory, size));
    return {};
  });
}

tile_status tile_free(void* memory) {
  return guarded([memory]() -> tile::Status {
    TILE_RETURN_IF_CUDA_ERROR(cudaFree(memory));
    return {};
  });
}

tile_status tile_copy_to_device(void* device, const void* host, int64_t bytes) {
  return guarded(
      [=] { return copy("device", device, "host", host, bytes, cudaMemcpyHostToDevice); });
}

tile_status tile_copy_from_device(void* host, const void* device, int64_t bytes) {
  return guarded(
      [=] { return copy("host", host, "device", device, bytes, cudaMemcpyDeviceToHost); });
}

tile_status tile_synchronize(void* stream) {
  return guarded([stream] { return tile::synchronize_status(static_cast<cudaStream_t>(stream)); });
}

// ---- Chapters and their steps ----

int32_t tile_chapter_count(void) { return static_cast<int32_t>(chapters().size()); }

const char* tile_chapter_name(int32_t chapter) {
  return look_up<const char*>(nullptr, [chapter] {
    const auto* found = find_chapter(chapter);
    return found ? permanent(found->first) : nullptr;
  });
}

const char* tile_chapter_title(int32_t chapter) {
  return look_up<const char*>(nullptr, [chapter] {
    const auto* found = find_chapter(chapter);
    return found ? permanent(found->second.title) : nullptr;
  });
}

int32_t tile_step_count(int32_t chapter) {
  const auto* found = find_chapter(chapter);
  return found ? static_cast<int32_t>(found->second.steps.size()) : -1;
}

const char* tile_step_name(int32_t chapter, int32_t step) {
  return look_up<const char*>(nullptr, [=] {
    const tile::StepInfo* row = find_row(chapter, step);
    return row ? permanent(row->name) : nullptr;
  });
}

const char* tile_step_idea(int32_t chapter, int32_t step) {
  return look_up<const char*>(nullptr, [=] {
    const tile::StepInfo* row = find_row(chapter, step);
    return row ? permanent(row->idea) : nullptr;
  });
}

tile_status tile_step_takes(int32_t chapter, int32_t step, tile_type type) {
  return guarded([=]() -> tile::Status {
    if (!find_chapter(chapter)) {
      return tile::invalid_argument("chapter", std::to_string(chapter) + " does not exist");
    }
    const tile::StepInfo* row = find_row(chapter, step);
    if (!row) return tile::invalid_argument("step", std::to_string(step) + " does not exist");
    tile::DType dtype{};
    if (tile::Status s = read_type(type, &dtype); !s.ok()) return s;
    return tile::check_requirements(row->types, row->needs, dtype);
  });
}

const char* tile_last_step(void) { return last_step; }
