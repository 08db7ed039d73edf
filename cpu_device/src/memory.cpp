// Device memory: host memory that remembers its bounds.
#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "asan.hpp"
#include "check/checker.hpp"
#include "closed_memory.hpp"
#include "cpu_device/options.h"
#include "cpu_device/runtime_templates.h"
#include "source_lines.hpp"
#include "state.hpp"

struct CUmemPoolHandle_st {};

// Where the linker has put the program's managed variables, if it has any.
extern "C" __attribute__((weak, visibility("hidden"))) char __start_cpu_device_managed[];
extern "C" __attribute__((weak, visibility("hidden"))) char __stop_cpu_device_managed[];

namespace cpu_device {
namespace {

// cudaMalloc aligns to at least 256 bytes (CUDA C++ Programming Guide, "Device Memory Accesses").
constexpr size_t kAlignment = 256;
// So far apart are the rows of cudaMallocPitch on the cards of today.
constexpr size_t kPitch = 512;
// Fresh memory is all ones: NaN in every floating-point type.
constexpr int kMemoryPoison = 0xff;

enum class Owner {
  device,
  host,        // page-locked
  managed,     // of both
  registered,  // the host's own, of which kernels have been told
  symbol,      // a variable of the program
};

struct Allocation {
  size_t bytes;
  Owner owner;
  size_t mapped = 0;  // bytes, from a gap before the memory on; 0 for memory of the heap
  bool is_on(bool device) const {
    return owner == Owner::managed || (owner == Owner::device || owner == Owner::symbol) == device;
  }
};

std::mutex memory_mutex;
// Not destroyed: destructors of the program's global objects may free memory.
auto& allocations = *new std::map<uintptr_t, Allocation>;
size_t allocated_bytes = 0;
std::map<cudaMemPool_t, std::unique_ptr<CUmemPoolHandle_st>> pools;

// The allocation that holds the pointer, or null. Managed variables are one.
const std::pair<const uintptr_t, Allocation>* find(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  static const std::pair<const uintptr_t, Allocation> managed_variables{
      reinterpret_cast<uintptr_t>(__start_cpu_device_managed),
      {static_cast<size_t>(__stop_cpu_device_managed - __start_cpu_device_managed),
       Owner::managed}};
  if (address - managed_variables.first < managed_variables.second.bytes) return &managed_variables;
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return nullptr;
  const auto& candidate = *std::prev(next);
  return address - candidate.first < candidate.second.bytes ? &candidate : nullptr;
}

// What is wrong with bytes that are to be of one device allocation, or none of them, as `on_device`
// says; or nothing.
std::string wrong_with(const void* pointer, size_t bytes, bool on_device) {
  if (!pointer) return "is null";
  const auto* allocation = find(pointer);
  if (allocation ? !allocation->second.is_on(on_device) : on_device) {
    return std::string("is ") + (on_device ? "not " : "") + "device memory";
  }
  if (!allocation) return {};
  const size_t left =
      allocation->second.bytes - (reinterpret_cast<uintptr_t>(pointer) - allocation->first);
  if (bytes <= left) return {};
  return "has " + std::to_string(left) + " bytes, and " + std::to_string(bytes) + " are asked for";
}

// The same for rows `pitch` bytes apart.
std::string wrong_with_rows(const void* pointer, size_t pitch, size_t width, size_t height,
                            bool on_device) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(height - 1, pitch, &bytes) ||
      __builtin_add_overflow(bytes, width, &bytes)) {
    return "has more bytes than there are addresses";
  }
  return wrong_with(pointer, bytes, on_device);
}

// "cudaMemcpy was refused: its target" and `why`. The line, which takes 50 ms, is for programs that
// somebody is writing.
cudaError_t refused_for(const char* function, const char* argument, const std::string& why) {
  const std::string line = options().closed_memory ? "  at " + source_of_caller() + "\n" : "";
  return refused(cudaErrorInvalidValue,
                 std::string(function) + " was refused: its " + argument + " " + why + "\n" + line);
}

const char* name_of(cudaMemcpyKind kind) {
  switch (kind) {
    case cudaMemcpyHostToHost: return "cudaMemcpyHostToHost";
    case cudaMemcpyHostToDevice: return "cudaMemcpyHostToDevice";
    case cudaMemcpyDeviceToHost: return "cudaMemcpyDeviceToHost";
    case cudaMemcpyDeviceToDevice: return "cudaMemcpyDeviceToDevice";
    case cudaMemcpyDefault: break;
  }
  return "cudaMemcpyDefault";
}

cudaError_t allocate(void** pointer, size_t bytes, Owner owner) {
  if (!pointer) return note(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  const std::lock_guard lock(memory_mutex);
  if (bytes > properties().totalGlobalMem - allocated_bytes) {
    return note(cudaErrorMemoryAllocation);
  }
  const bool managed = owner == Owner::managed;
  const bool may_close = options().closed_memory && !kAsan && closed_memory::has_room() &&
                         (owner == Owner::device || (managed && kChecking));
  // To the byte for AddressSanitizer, which guards what follows.
  const size_t room = kAsan ? bytes : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = nullptr;
  size_t mapped = 0;
  if constexpr (kChecking) {
    memory = check::allocate(bytes);
  } else if (may_close) {
    mapped = closed_memory::kGapBefore + room;
    memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return note(cudaErrorMemoryAllocation);
    mprotect(memory, closed_memory::kGapBefore, PROT_NONE);
    memory = static_cast<char*>(memory) + closed_memory::kGapBefore;
  } else if (posix_memalign(&memory, kAlignment, room) != 0) {
    memory = nullptr;
  }
  if (!memory) return note(cudaErrorMemoryAllocation);
  std::memset(memory, kMemoryPoison, bytes);
  allocations[reinterpret_cast<uintptr_t>(memory)] = {bytes, owner, mapped};
  // What the host writes there itself is not seen.
  if constexpr (kChecking) {
    if (owner != Owner::device) check::written_by_host(memory, bytes);
  }
  if (may_close) closed_memory::add(memory, bytes, managed);
  allocated_bytes += bytes;
  *pointer = memory;
  return cudaSuccess;
}

void release(std::map<uintptr_t, Allocation>::iterator allocation) {
  const auto [address, allocated] = *allocation;
  allocations.erase(allocation);
  if (allocated.owner == Owner::registered || allocated.owner == Owner::symbol) return;
  allocated_bytes -= allocated.bytes;
  closed_memory::remove(reinterpret_cast<void*>(address));
  if constexpr (kChecking) {
    check::release(reinterpret_cast<void*>(address));
  } else if (allocated.mapped != 0) {
    munmap(reinterpret_cast<void*>(address - closed_memory::kGapBefore), allocated.mapped);
  } else {
    std::free(reinterpret_cast<void*>(address));
  }
}

cudaError_t release(void* pointer, Owner owner, Owner or_owner) {
  if (!pointer) return cudaSuccess;
  const std::lock_guard lock(memory_mutex);
  const auto found = allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations.end() ||
      (found->second.owner != owner && found->second.owner != or_owner)) {
    return note(cudaErrorInvalidValue);
  }
  release(found);
  return cudaSuccess;
}

// Memory that the program has already.
cudaError_t adopt(void* pointer, size_t bytes, Owner owner) {
  const std::lock_guard lock(memory_mutex);
  allocations.try_emplace(reinterpret_cast<uintptr_t>(pointer), Allocation{bytes, owner, 0});
  return cudaSuccess;
}

bool valid_pool(cudaMemPool_t pool) {
  const std::lock_guard lock(memory_mutex);
  return pools.contains(pool);
}

bool sides(cudaMemcpyKind kind, const void* to, const void* from, bool* to_device,
           bool* from_device) {
  switch (kind) {
    case cudaMemcpyHostToHost:
    case cudaMemcpyHostToDevice:
    case cudaMemcpyDeviceToHost:
    case cudaMemcpyDeviceToDevice:
      *to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
      *from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
      return true;
    case cudaMemcpyDefault: {
      const auto* target = find(to);
      const auto* source = find(from);
      *to_device = target && target->second.is_on(true);
      *from_device = source && source->second.is_on(true);
      return true;
    }
  }
  return false;
}

}  // namespace

cudaError_t copy_symbol(void* symbol, size_t symbol_bytes, void* other, size_t bytes, size_t offset,
                        cudaMemcpyKind kind, bool to_symbol) {
  if (offset > symbol_bytes || bytes > symbol_bytes - offset || (!other && bytes > 0)) {
    return note(cudaErrorInvalidValue);
  }
  const cudaMemcpyKind from_host = to_symbol ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  if (kind != from_host && kind != cudaMemcpyDeviceToDevice && kind != cudaMemcpyDefault) {
    return note(cudaErrorInvalidMemcpyDirection);
  }
  closed_memory::host_has_waited();
  const closed_memory::Open open;
  char* inside = static_cast<char*>(symbol) + offset;
  std::memcpy(to_symbol ? inside : other, to_symbol ? other : inside, bytes);
  return cudaSuccess;
}

cudaError_t symbol_address(void** pointer, void* symbol, size_t bytes) {
  if (!pointer) return note(cudaErrorInvalidValue);
  *pointer = symbol;
  return adopt(symbol, bytes, Owner::symbol);
}

void release_all() {
  const std::lock_guard lock(memory_mutex);
  while (!allocations.empty()) release(allocations.begin());
}

}  // namespace cpu_device

using namespace cpu_device;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, Owner::device);
}
cudaError_t cudaFree(void* pointer) {
  closed_memory::host_has_waited();
  return release(pointer, Owner::device, Owner::managed);
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return allocate(pointer, bytes, Owner::host);
}
cudaError_t cudaFreeHost(void* pointer) { return release(pointer, Owner::host, Owner::host); }

// ---- Memory of both sides ----

cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  if (bytes == 0 || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) {
    return note(cudaErrorInvalidValue);
  }
  return allocate(pointer, bytes, Owner::managed);
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  if (flags > (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) {
    return note(cudaErrorInvalidValue);
  }
  return allocate(pointer, bytes, Owner::host);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  if (!device || flags != 0) return note(cudaErrorInvalidValue);
  const std::lock_guard lock(memory_mutex);
  const auto* allocation = find(host);
  if (!allocation || !allocation->second.is_on(false)) return note(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  const unsigned all = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly;
  if (!pointer || bytes == 0 || (flags & ~all)) return note(cudaErrorInvalidValue);
  if constexpr (kChecking) return note(cudaErrorNotSupported);
  {
    const std::lock_guard lock(memory_mutex);
    if (find(pointer)) return note(cudaErrorHostMemoryAlreadyRegistered);
  }
  return adopt(pointer, bytes, Owner::registered);
}

cudaError_t cudaHostUnregister(void* pointer) {
  if (!pointer) return note(cudaErrorInvalidValue);
  const cudaError_t error = release(pointer, Owner::registered, Owner::registered);
  return error == cudaSuccess ? error : note(cudaErrorHostMemoryNotRegistered);
}

// Pages do not move here.
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, cudaMemLocation, unsigned,
                                 cudaStream_t stream) {
  return cudaMemPrefetchAsync(pointer, bytes, 0, stream);
}
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t bytes, int, cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaMemAdvise(pointer, bytes, cudaMemAdviseSetReadMostly, 0);
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise advice,
                          cudaMemLocation) {
  return cudaMemAdvise(pointer, bytes, advice, 0);
}
cudaError_t cudaMemAdvise(const void* pointer, size_t bytes, cudaMemoryAdvise, int) {
  const std::lock_guard lock(memory_mutex);
  const auto* allocation = find(pointer);
  const bool is_managed = allocation && allocation->second.owner == Owner::managed;
  return is_managed && wrong_with(pointer, bytes, true).empty() ? cudaSuccess
                                                                : note(cudaErrorInvalidValue);
}
cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void* pointer, size_t bytes, unsigned) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaMemAdvise(pointer, bytes, cudaMemAdviseSetReadMostly, 0);
}

// ---- Memory in the order of a stream ----

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  if (!pool || !properties || properties->allocType != cudaMemAllocationTypePinned ||
      properties->handleTypes != cudaMemHandleTypeNone ||
      properties->location.type != cudaMemLocationTypeDevice || properties->location.id != 0) {
    return note(cudaErrorInvalidValue);
  }
  auto made = std::make_unique<CUmemPoolHandle_st>();
  *pool = made.get();
  const std::lock_guard lock(memory_mutex);
  pools[*pool] = std::move(made);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  const std::lock_guard lock(memory_mutex);
  return pools.erase(pool) == 1 ? cudaSuccess : note(cudaErrorInvalidValue);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  const bool is_right = valid_pool(pool) && attribute == cudaMemPoolAttrReleaseThreshold && value;
  return is_right ? cudaSuccess : note(cudaErrorInvalidValue);
}
cudaError_t cudaMallocFromPoolAsync(void** pointer, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  if (!valid_pool(pool)) return note(cudaErrorInvalidValue);
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return allocate(pointer, bytes, Owner::device);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  if (device != 0) return note(cudaErrorInvalidDevice);
  static cudaMemPool_t shared = nullptr;
  if (!shared) {
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, 0};
    cudaMemPoolCreate(&shared, &properties);
  }
  if (!pool) return note(cudaErrorInvalidValue);
  *pool = shared;
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaFree(pointer);
}

// ---- Copies and fills ----

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width_bytes, size_t height, cudaMemcpyKind kind) {
  if (const cudaError_t earlier = take_kernel_error(); earlier != cudaSuccess) return earlier;
  {
    const std::lock_guard lock(memory_mutex);
    bool to_device = false, from_device = false;
    if (!sides(kind, to, from, &to_device, &from_device)) {
      return note(cudaErrorInvalidMemcpyDirection);
    }
    if (width_bytes == 0 || height == 0) return cudaSuccess;
    if (width_bytes > to_pitch || width_bytes > from_pitch) {  // as CUDA 13 has it
      return note(height > 1 ? cudaErrorInvalidPitchValue : cudaErrorInvalidValue);
    }
    const char* function = height == 1 ? "cudaMemcpy" : "cudaMemcpy2D";
    const auto refuse = [&](const char* argument, std::string why, bool on_device) {
      if (why.ends_with("memory")) {
        why +=
            std::string(", which ") + name_of(kind) + " says it is" + (on_device ? "" : " not") +
            "\n  the target is the first argument, then comes the source, and last the direction";
      }
      return refused_for(function, argument, why);
    };
    if (std::string why = wrong_with_rows(to, to_pitch, width_bytes, height, to_device);
        !why.empty()) {
      return refuse("target", why, to_device);
    }
    if (std::string why = wrong_with_rows(from, from_pitch, width_bytes, height, from_device);
        !why.empty()) {
      return refuse("source", why, from_device);
    }
  }
  const closed_memory::Open open;
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char*>(to) + row * to_pitch,
                 static_cast<const char*>(from) + row * from_pitch, width_bytes);
    if constexpr (kChecking) {
      check::written_by_host(static_cast<char*>(to) + row * to_pitch, width_bytes,
                             static_cast<const char*>(from) + row * from_pitch);
    }
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpy2D(to, bytes, from, bytes, bytes, 1, kind);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaMemcpy(to, from, bytes, kind);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width_bytes, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width_bytes, height, kind);
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           size_t bytes) {
  if (to_device != 0 || from_device != 0) return note(cudaErrorInvalidDevice);
  return cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice);
}

cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width_bytes, size_t height) {
  if (!pitch) return note(cudaErrorInvalidValue);
  *pitch = (width_bytes + kPitch - 1) / kPitch * kPitch;
  return cudaMalloc(pointer, *pitch * height);
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* pointer, cudaExtent extent) {
  if (!pointer) return note(cudaErrorInvalidValue);
  *pointer = {nullptr, 0, extent.width, extent.height};
  return cudaMallocPitch(&pointer->ptr, &pointer->pitch, extent.width,
                         extent.height * extent.depth);
}

namespace {
char* slice_of(const cudaPitchedPtr& pointer, cudaPos position, size_t slice) {
  return static_cast<char*>(pointer.ptr) +
         ((position.z + slice) * pointer.ysize + position.y) * pointer.pitch + position.x;
}
}  // namespace

cudaError_t cudaMemset3D(cudaPitchedPtr pointer, int value, cudaExtent extent) {
  for (size_t z = 0; z < extent.depth; ++z) {
    const cudaError_t error =
        cudaMemset2D(slice_of(pointer, {}, z), pointer.pitch, value, extent.width, extent.height);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy3D(const cudaMemcpy3DParms* p) {
  if (!p || p->srcArray || p->dstArray) return note(cudaErrorInvalidValue);
  for (size_t z = 0; z < p->extent.depth; ++z) {
    const cudaError_t error = cudaMemcpy2D(slice_of(p->dstPtr, p->dstPos, z), p->dstPtr.pitch,
                                           slice_of(p->srcPtr, p->srcPos, z), p->srcPtr.pitch,
                                           p->extent.width, p->extent.height, p->kind);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset2D(void* pointer, size_t pitch, int value, size_t width_bytes,
                         size_t height) {
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error =
        cudaMemset(static_cast<char*>(pointer) + row * pitch, value, width_bytes);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  if (const cudaError_t earlier = take_kernel_error(); earlier != cudaSuccess) return earlier;
  if (bytes == 0) return cudaSuccess;
  {
    const std::lock_guard lock(memory_mutex);
    if (const std::string why = wrong_with(pointer, bytes, true); !why.empty()) {
      return refused_for("cudaMemset", "target", why);
    }
  }
  const closed_memory::Open open;
  std::memset(pointer, value, bytes);
  if constexpr (kChecking) check::written_by_host(pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t stream) {
  if (!valid_stream(stream)) return note(cudaErrorInvalidResourceHandle);
  return cudaMemset(pointer, value, bytes);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (!free_bytes || !total_bytes) return note(cudaErrorInvalidValue);
  const std::lock_guard lock(memory_mutex);
  *total_bytes = properties().totalGlobalMem;
  *free_bytes = *total_bytes - allocated_bytes;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  if (!attributes) return note(cudaErrorInvalidValue);
  const std::lock_guard lock(memory_mutex);
  void* address = const_cast<void*>(pointer);
  const auto* allocation = find(pointer);
  if (!allocation) {
    *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, address};
  } else {
    const Allocation& found = allocation->second;
    *attributes = {found.owner == Owner::managed ? cudaMemoryTypeManaged
                   : found.is_on(true)           ? cudaMemoryTypeDevice
                                                 : cudaMemoryTypeHost,
                   0, address, found.is_on(false) ? address : nullptr};
  }
  return cudaSuccess;
}
