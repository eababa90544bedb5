// As much of CUDA's driver as the TensorFlow add-on calls, on the host's memory: what it asks of a GPU is checked.
//
// A CUfunction is a FakeFunction: a kernel of the emulation.  Kernels may only be given device memory; copies must go
// the way they say; every call needs the context.  What is enqueued on a stream that captures is done when its graph is
// launched, and not before.  A breach is told by code 1 and `fake_cuda_fault`.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

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
// Bytes to the device, bytes to the host, launches, managed blocks; graphs made, launched; products of cuBLASLt's.
static int64_t counters[7];
static void* capturing;
static std::vector<std::function<int()>>* captured;
static int refused;  // 1: captures end badly
static int failing;  // 1: so do products
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

// Does the work, or leaves it to the graph that the stream captures.
static int enqueue(void* stream, std::function<int()> work) {
  if (!capturing || stream != capturing) return work();
  captured->push_back(std::move(work));
  return 0;
}

extern "C" {
int fake_cuda_enqueue(void* stream, int (*work)()) { return enqueue(stream, work); }
void fake_cuda_refuse(int what) { refused = what; }
void fake_cublas_fail(int what) { failing = what; }
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
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  if (!on_device(to, bytes) || !on_device(from, bytes)) return breach("copy on the device that is not");
  return enqueue(stream, [=] { return memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), 0; });
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
  if (!on_device(to, bytes)) return breach("fill of what is not on the device");
  return enqueue(stream, [=] { return memset(reinterpret_cast<void*>(to), value, bytes), 0; });
}

int cuLaunchCooperativeKernel(void* f, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                              unsigned shared, void* stream, void** parameters) {
  if (depth != 1) return breach("launch outside of the context");
  const FakeFunction* function = static_cast<const FakeFunction*>(f);
  // Parameters are read now, a table of pointers by the kernel.
  const int count = function->table ? 1 : function->count;
  std::vector<void*> given;
  for (int i = 0; i < count; ++i) given.push_back(*static_cast<void**>(parameters[i]));
  return enqueue(stream, [=] {
    std::vector<void*> pointers = given;
    if (function->table) {
      if (!on_device(reinterpret_cast<uint64_t>(given[0]), function->count * sizeof(void*)))
        return breach("a table of pointers that is not on the device");
      void** table = static_cast<void**>(given[0]);
      pointers.assign(table, table + function->count);
    }
    for (void* pointer : pointers)
      if (!on_device(reinterpret_cast<uint64_t>(pointer), 0)) return breach("a kernel gets memory of the host");
    void* table = pointers.data();
    char message[1024];
    counters[2]++;
    const int failed = host_launch(function->kernel, function->table ? &table : pointers.data(), grid, block, shared, 1,
                                   0, 0, 0, 2, nullptr, 0, message, sizeof message);
    return failed ? breach("a kernel failed") : 0;
  });
}
int cuLaunchKernel(void* f, unsigned grid, unsigned gy, unsigned gz, unsigned block, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void**) {
  return cuLaunchCooperativeKernel(f, grid, gy, gz, block, by, bz, shared, stream, parameters);
}

// cublasLtMatmul.  operation: does the work; algorithm: of how many bytes the operands and the result are.
int fake_cublas_matmul(void* handle, int (*operation)(uint64_t, uint64_t, uint64_t), const float* alpha, uint64_t a,
                       void* a_layout, uint64_t b, void* b_layout, const float* beta, uint64_t c, void* c_layout,
                       uint64_t d, void* d_layout, const int64_t* algorithm, uint64_t workspace, size_t workspace_bytes,
                       void* stream) {
  if (depth != 1) return breach("a product outside of the context");
  if (handle != &host_launch || *alpha != 1 || *beta != 0 || c != d || c_layout != d_layout || a_layout == b_layout)
    return breach("arguments of a product in another order");
  if (!on_device(a, algorithm[0]) || !on_device(b, algorithm[1]) || !on_device(d, algorithm[2]))
    return breach("a product gets memory of the host");
  if (!on_device(workspace, workspace_bytes)) return breach("a product's workspace is too small");
  if (failing) return 13;
  counters[6]++;
  return enqueue(stream, [=] { return operation(a, b, d); });
}
void* fake_cublas_handle() { return &host_launch; }

int cuStreamSynchronize(void* stream) {
  return capturing && stream == capturing ? breach("a stream is waited for that captures") : 0;
}

int cuStreamBeginCapture_v2(void* stream, int mode) {
  if (depth != 1 || capturing || mode != 2) return breach("a capture that cannot begin");
  capturing = stream;
  captured = new std::vector<std::function<int()>>();
  return 0;
}
int cuStreamEndCapture(void* stream, void** graph) {
  if (stream != capturing) return breach("the end of another capture");
  capturing = nullptr;
  if (refused) return delete captured, 900;
  *graph = captured;
  return 0;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  *executable = new std::vector<std::function<int()>>(*static_cast<std::vector<std::function<int()>>*>(graph));
  counters[4]++;
  return 0;
}
int cuGraphLaunch(void* executable, void*) {
  if (depth != 1 || capturing) return breach("a graph is launched out of place");
  counters[5]++;
  for (auto& work : *static_cast<std::vector<std::function<int()>>*>(executable))
    if (int failed = work()) return failed;
  return 0;
}
int cuGraphDestroy(void* graph) { return delete static_cast<std::vector<std::function<int()>>*>(graph), 0; }
int cuGraphExecDestroy(void* executable) { return cuGraphDestroy(executable); }
}
