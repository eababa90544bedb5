// As much of CUDA's driver as the TensorFlow add-on calls, on the host's memory: what it asks of a GPU is checked.
//
// A CUfunction is a FakeFunction: a kernel of the emulation.  Kernels may only be given device memory; copies must go
// the way they say; every call needs the context.  A breach is told by code 1 and `fake_cuda_fault`.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

typedef int (*HostLaunch)(const void*, void**, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t,
                          uint32_t, const void*, uint32_t, char*, uint32_t);

struct FakeFunction {
  const void* kernel;
  int32_t count;
  int32_t table;
};

static std::mutex lock;
static std::map<uint64_t, size_t> device;
static HostLaunch host_launch;
static const char* fault = "";
static int64_t counters[4];  // bytes to the device, bytes to the host, launches, managed blocks
static thread_local int depth;
static size_t room = 1 << 30;

static int breach(const char* what) {
  fault = what;
  return 1;
}

static bool on_device(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  auto next = device.upper_bound(address);
  if (next == device.begin()) return false;
  --next;
  return address + bytes <= next->first + next->second;
}

extern "C" {
void fake_cuda_set(HostLaunch launch) { host_launch = launch; }
const char* fake_cuda_fault() { return fault; }
int64_t fake_cuda_counter(int which) { return counters[which]; }
void fake_cuda_leave(size_t bytes) { room = bytes; }
void fake_cuda_reset() { memset(counters, 0, sizeof counters); }
void fake_cuda_own(uint64_t address, size_t bytes) {
  std::lock_guard<std::mutex> guard(lock);
  device[address] = bytes;
}
int64_t fake_cuda_blocks() {
  std::lock_guard<std::mutex> guard(lock);
  return device.size();
}

int cuCtxPushCurrent_v2(void*) { return ++depth, 0; }
int cuCtxPopCurrent_v2(void**) { return --depth, 0; }

int cuMemAllocAsync(uint64_t* address, size_t bytes, void*) {
  if (depth != 1) return breach("allocation outside of the context");
  *address = reinterpret_cast<uint64_t>(aligned_alloc(256, (bytes + 255) / 256 * 256));
  memset(reinterpret_cast<void*>(*address), 0xff, bytes);
  fake_cuda_own(*address, bytes);
  return 0;
}
int cuMemFreeAsync(uint64_t address, void*) {
  std::lock_guard<std::mutex> guard(lock);
  if (!device.erase(address)) return breach("freed twice");
  free(reinterpret_cast<void*>(address));
  return 0;
}
int cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  if (depth != 1) return breach("memory counted outside of the context");
  return *total = 1 << 30, *free_bytes = room, 0;
}
int cuMemAllocManaged(uint64_t* address, size_t bytes, unsigned flags) {
  counters[3]++;
  return flags == 1 ? cuMemAllocAsync(address, bytes, nullptr) : breach("managed memory of another kind");
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void*) {
  if (!on_device(to, bytes)) return breach("copy to the device that goes elsewhere");
  counters[0] += bytes;
  memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void*) {
  if (!on_device(from, bytes)) return breach("copy from the device that comes from elsewhere");
  counters[1] += bytes;
  memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void*) {
  if (!on_device(to, bytes) || !on_device(from, bytes)) return breach("copy on the device that is not");
  memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void*) {
  if (!on_device(to, bytes)) return breach("fill of what is not on the device");
  memset(reinterpret_cast<void*>(to), value, bytes);
  return 0;
}

int cuLaunchCooperativeKernel(void* f, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                              unsigned shared, void*, void** parameters) {
  if (depth != 1) return breach("launch outside of the context");
  const FakeFunction* function = static_cast<const FakeFunction*>(f);
  void* pointers[1024];
  if (function->table) {
    void** table = *static_cast<void***>(parameters[0]);
    if (!on_device(reinterpret_cast<uint64_t>(table), function->count * sizeof(void*)))
      return breach("a table of pointers that is not on the device");
    memcpy(pointers, table, function->count * sizeof(void*));
  } else {
    for (int i = 0; i < function->count; ++i) pointers[i] = *static_cast<void**>(parameters[i]);
  }
  for (int i = 0; i < function->count; ++i)
    if (!on_device(reinterpret_cast<uint64_t>(pointers[i]), 0)) return breach("a kernel gets memory of the host");
  void* table = pointers;
  char message[1024];
  counters[2]++;
  const int failed = host_launch(function->kernel, function->table ? &table : pointers, grid, block, shared, 1, 0, 0, 0,
                                 2, nullptr, 0, message, sizeof message);
  return failed ? breach("a kernel failed") : 0;
}
int cuLaunchKernel(void* f, unsigned grid, unsigned gy, unsigned gz, unsigned block, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void**) {
  return cuLaunchCooperativeKernel(f, grid, gy, gz, block, by, bz, shared, stream, parameters);
}
int cuStreamSynchronize(void*) { return 0; }
}
