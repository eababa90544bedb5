// TensorFlow's side of astitch: takes over the calls of functions that must be compiled (`jit_compile=True`).
//
// Takes a call with its tensors, has tf2xla make HLO of the function, hands that to Python, which answers with the
// number of a program; its launch table then runs without Python, but for the steps that the table leaves to it.
// What cannot be so is left to XLA's own kernel, and what XLA refuses as well to TensorFlow's, each with a reason.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tensorflow/compiler/jit/compilability_check_util.h"
#include "tensorflow/compiler/jit/variable_info_util.h"
#include "tensorflow/compiler/jit/xla_kernel_creator.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/common_runtime/function.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tsl/platform/denormal.h"
#include "xla/client/client_library.h"
#if __has_include("xla/hlo/builder/xla_computation.h")
#include "xla/hlo/builder/xla_computation.h"
#else
#include "xla/client/xla_computation.h"
#endif
#include "xla/service/hlo.pb.h"
#include "xla/stream_executor/platform_manager.h"
#include "xla/stream_executor/stream.h"

// Declared, not included: xla_launch_util.h wants headers of LLVM's that no wheel ships.
namespace tensorflow {
std::vector<const Tensor*> InputsFromContext(OpKernelContext* ctx);
class XlaComputationLaunchContext {
 public:
  static absl::StatusOr<std::vector<XlaCompiler::Argument>> BuildXlaCompilerArguments(
      absl::Span<int const>, absl::Span<const Tensor* const>, absl::Span<VariableInfo const>, Device*);
};
}  // namespace tensorflow

// ---- what Python sees: kept in step with tf_addon/shim_library.py ------------------------------------------------

extern "C" {

enum Space : int32_t { kParameter = 0, kConstant = 1, kResult = 2, kScratch = 3 };

struct BufferRow {
  int32_t space;
  int32_t index;    // of the parameter or the result
  int64_t address;  // of a constant; of scratch the offset
  int64_t bytes;
};

enum StepKind : int32_t { kHostKernel = 0, kCudaKernel = 1, kPythonStep = 2 };
// kCapturable: of a step of Python's, which only enqueues work; launches of kernels always do.
enum StepFlag : int32_t { kCooperative = 1, kPointerTable = 2, kCapturable = 4 };

struct StepRow {
  int32_t kind;
  int32_t flags;
  int32_t grid;
  int32_t block;
  int64_t shared_bytes;
  int64_t function;      // address of the host kernel's description, or a CUfunction
  int64_t table_offset;  // in scratch, of a CUDA kernel's table of pointers
  int32_t first;         // of its buffers in ProgramRow.operands
  int32_t count;
};

struct ResultRow {
  int32_t buffer;
  int32_t copies;  // 1: the result is written elsewhere, and copied at the end
  int64_t bytes;
};

struct ZeroRow {
  int64_t offset;
  int64_t bytes;
};

struct ProgramRow {
  int64_t key;  // Python's own number, which its steps get
  int32_t staged;
  int32_t parameter_count, buffer_count, step_count, operand_count, result_count, zero_count;
  int64_t scratch_bytes;
  void* context;  // of its GPU, or null
  void* stream;   // of its GPU, for staged programs; a GPU's own tensors are used on TensorFlow's
  void* capture_stream;  // on which launches are captured into graphs, or null: none are
  const BufferRow* buffers;
  const StepRow* steps;
  const int32_t* operands;
  const ResultRow* results;
  const ZeroRow* zeros;  // parts of the scratch that a call begins with as zero: the words of barriers
};

// cublasLtMatmul (cublasLt.h).
typedef int (*MatmulFn)(void* handle, void* operation, const void* alpha, const void* a, void* a_layout, const void* b,
                        void* b_layout, const void* beta, const void* c, void* c_layout, void* d, void* d_layout,
                        const void* algorithm, void* workspace, size_t workspace_bytes, void* stream);

// A step of Python's that is a product and nothing else, once its algorithm is chosen.
struct ProductRow {
  MatmulFn function;
  void *handle, *operation;
  const void* one;
  void *a, *b;  // layouts
  const void* zero;
  void* result;
  const void* algorithm;
  void* workspace;
  int64_t workspace_bytes;
  void* stream;  // for which the workspace is
  int32_t a_buffer, b_buffer, result_buffer;
};

struct Settings {
  int32_t taken;           // every function; else only the marked ones
  int32_t strict;          // what would fall back fails instead
  int32_t uncompiled;      // what XLA refuses as well runs op by op
  int32_t dry;             // everything but the launches: what a call costs the host
  int32_t max_signatures;  // of one function
  int32_t engine;          // which was asked for: signatures are compiled for each
};

// kFailedItself: the function has an error of its own, which XLA's kernel raises.
enum Outcome : int32_t { kStitched = 0, kXla = 1, kOpByOp = 2, kFailedItself = 3, kOutcomes = 4 };

// Functions that are counted: a process may make new ones for weeks.
constexpr size_t kMostFunctions = 1000;

constexpr int kMessageBytes = 2048;

// How a callback ended.  Python sets it last: one that an exception left, a signal handler's for one, is interrupted,
// and Python raises the exception again when the call is back there.
enum Ending : int32_t { kInterrupted = 0, kDone = 1, kFailed = 2 };

struct CompileCall {
  const char* function;
  const char* device;
  const void* hlo;
  int64_t hlo_bytes;
  int32_t device_number;  // -1: TensorFlow runs it on the CPU
  int32_t ending;         // this and the rest: Python's answer
  int64_t program;        // its number, when done
  char message[kMessageBytes];
};

// One step of a program.
struct StepCall {
  int64_t key;
  void* stream;
  void** addresses;  // one for each of its buffers
  int32_t step;
  int32_t ending;  // this and the rest: Python's answer
  char message[kMessageBytes];
};

struct RefuseCall {
  const char* function;
  const char* device;
  const char* reason;
  int32_t outcome;
};

struct NameCall {
  const char* function;
  const char* device;
};

typedef void (*CompileFn)(CompileCall* call);
typedef void (*StepFn)(StepCall* call);
typedef void (*NameFn)(NameCall* call);
typedef void (*RefuseFn)(RefuseCall* call);

typedef int (*HostLaunchFn)(const void* kernel, void** pointers, uint32_t grid, uint32_t block, uint32_t shared_bytes,
                            uint32_t cooperative, uint32_t check, uint32_t order, uint64_t seed, uint32_t workers,
                            const void* arguments, uint32_t argument_count, char* message, uint32_t message_bytes);

// Entries of libcuda (cuda.h), as Python finds them.
struct CudaDriver {
  int (*push)(void* context);
  int (*pop)(void** context);
  int (*launch)(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                void* stream, void** parameters, void** extra);
  int (*launch_cooperative)(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, void* stream, void** parameters);
  int (*copy_to_device)(uint64_t to, const void* from, size_t bytes, void* stream);
  int (*copy_to_host)(void* to, uint64_t from, size_t bytes, void* stream);
  int (*copy)(uint64_t to, uint64_t from, size_t bytes, void* stream);
  int (*fill)(uint64_t to, unsigned char value, size_t bytes, void* stream);
  int (*allocate)(uint64_t* address, size_t bytes, void* stream);
  int (*release)(uint64_t address, void* stream);
  int (*allocate_managed)(uint64_t* address, size_t bytes, unsigned flags);  // null: the host cannot use it meanwhile
  int (*count_memory)(size_t* free, size_t* total);
  int (*synchronize)(void* stream);
  int (*begin_capture)(void* stream, int mode);  // this and the rest: null where the driver is too old
  int (*end_capture)(void* stream, void** graph);
  int (*instantiate)(void** executable, void* graph, unsigned long long flags);
  int (*launch_graph)(void* executable, void* stream);
  int (*destroy_graph)(void* graph);
  int (*destroy_executable)(void* executable);
};

struct Callbacks {
  CompileFn compile;
  StepFn step;
  RefuseFn refuse;
};
}  // extern "C"

namespace {
using namespace tensorflow;

constexpr int kAlignment = 16;  // the widest access of a kernel
constexpr int kScratchAlignment = 256;
constexpr int kLeastLaunches = 3;  // fewer are no slower one by one
constexpr size_t kMostGraphs = 16, kMostSeen = 64;  // sets of addresses of one program: with graphs, and seen once
constexpr char kMark[] = "api_preferred_device";  // survives into forward and backward functions
constexpr char kMarked[] = "astitch";
constexpr char kNever[] = "xla";  // not ours, whether or not the add-on is enabled

enum class Mark { kNone, kOurs, kNever };

// Consecutive steps, which are one graph if they can be captured.
struct StepRun {
  size_t first, end;
  bool captured;
};

class GraphSet;

struct Program {
  ProgramRow row;
  std::vector<BufferRow> buffers;
  std::vector<StepRow> steps;
  std::vector<int32_t> operands;
  std::vector<ResultRow> results;
  std::vector<ZeroRow> zeros;
  std::vector<StepRun> runs;
  // One for each step, null while Python launches it.
  std::unique_ptr<std::atomic<const ProductRow*>[]> products;
  // The graphs of the sets of addresses that came last, the latest first; and hashes of sets that came once.
  mutable mutex graphs_mu;
  mutable std::deque<std::shared_ptr<GraphSet>> graphs;
  mutable std::deque<size_t> seen;
  mutable bool no_graphs = false;
};

std::vector<StepRun> split_runs(const std::vector<StepRow>& steps) {
  std::vector<StepRun> runs;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool captured = steps[i].kind == kCudaKernel || (steps[i].kind == kPythonStep && steps[i].flags & kCapturable);
    if (!runs.empty() && runs.back().captured == captured) {
      runs.back().end = i + 1;
    } else {
      runs.push_back({i, i + 1, captured});
    }
  }
  for (StepRun& run : runs) run.captured = run.captured && run.end - run.first >= kLeastLaunches;
  return runs;
}

enum class Admission { kFirst, kAgain, kBeyond };

// A function on a device, wherever it is called: each call site has a kernel of its own.
struct Function {
  std::atomic<int64_t> runs[kOutcomes] = {};
  std::atomic<bool> told_beyond{false};
  std::atomic<bool> xla_refuses{false};  // a signature of it, so those beyond the most are not given to XLA either, for good
  std::atomic<bool> has_strings{false};  // among the constants, at which XLA's own kernel would end the process

  // Has the signature a place among the first `most`?
  Admission admit(const std::string& signature, size_t most) {
    mutex_lock lock(mu);
    if (signatures.count(signature)) return Admission::kAgain;
    if (signatures.size() >= most) return Admission::kBeyond;
    signatures.insert(signature);
    return Admission::kFirst;
  }

  // The signature was not compiled, and comes as a first one again.
  void withdraw(const std::string& signature) {
    mutex_lock lock(mu);
    signatures.erase(signature);
  }

 private:
  mutex mu;
  std::unordered_set<std::string> signatures;
};

struct State {
  std::atomic<int32_t> taken{0}, strict{0}, uncompiled{1}, dry{0}, max_signatures{0}, engine{0};
  Callbacks callbacks{};
  HostLaunchFn host_launch = nullptr;
  CudaDriver cuda{};
  mutex mu, capture_mu, product_mu;
  std::atomic<int64_t> graphs_captured{0}, graphs_launched{0}, products_launched{0};
  std::vector<std::unique_ptr<Program>> programs;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<Function>> functions;
  std::deque<std::pair<std::string, std::string>> noted;  // the keys of `functions`, in the order in which they came
};

// Never destroyed: kernels of TensorFlow's outlive static destructors.
State& state() {
  static State* the_state = new State();
  return *the_state;
}

// Forgets functions without a kernel, the first ones first, where there are as many as may be.  With state().mu held.
void make_room() {
  auto& noted = state().noted;
  for (size_t seen = noted.size(); seen > 0 && noted.size() >= kMostFunctions; --seen) {
    const auto names = noted.front();
    noted.pop_front();
    const auto found = state().functions.find(names);
    if (found->second.use_count() > 1) {
      noted.push_back(names);
    } else {
      state().functions.erase(found);
    }
  }
}

std::shared_ptr<Function> find_function(const std::string& name, const std::string& device) {
  mutex_lock lock(state().mu);
  const auto found = state().functions.find({name, device});
  if (found != state().functions.end()) return found->second;
  make_room();
  state().noted.push_back({name, device});
  return state().functions[{name, device}] = std::make_shared<Function>();
}

absl::Status cuda_status(int code, const char* what) {
  if (code == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("astitch: ", what, " failed with CUDA error ", code));
}

// What a callback answered.  failed, prefix: the error if Python told one, and what its message begins with.
template <typename Call>
absl::Status status_of(const Call& call, absl::StatusCode failed, absl::string_view prefix) {
  const absl::string_view message(call.message, strnlen(call.message, kMessageBytes));
  switch (call.ending) {
    case kDone: return absl::OkStatus();
    case kFailed: return absl::Status(failed, absl::StrCat(prefix, message));
    default: return absl::CancelledError("astitch: interrupted");
  }
}

// ---- variables that stay on the GPU while TensorFlow knows only the host -----------------------------------------

// Managed memory: kernels find it on the GPU, and TensorFlow's own ops, which know nothing of that, read and write it
// like memory of the host.  Freed blocks are kept by size: allocating them waits for the GPU.
class ResidentAllocator : public Allocator {
 public:
  std::string Name() override { return "astitch_resident"; }

  void* AllocateRaw(size_t, size_t bytes) override {
    bytes = std::max<size_t>(bytes, 1);
    mutex_lock lock(mu_);
    auto& free = free_[bytes];
    uint64_t found = 0;
    if (!free.empty()) {
      found = free.back();
      free.pop_back();
    } else if (!allocate_block(bytes, &found)) {
      return nullptr;
    }
    live_[found] = bytes;
    return reinterpret_cast<void*>(found);
  }

  void DeallocateRaw(void* address) override {
    mutex_lock lock(mu_);
    auto found = live_.find(reinterpret_cast<uint64_t>(address));
    free_[found->second].push_back(found->first);
    live_.erase(found);
  }

  bool owns(const void* address) {
    mutex_lock lock(mu_);
    return live_.count(reinterpret_cast<uint64_t>(address)) != 0;
  }

 private:
  // More managed memory than the GPU has would move to and fro between it and the host: a part is left for the rest.
  static bool allocate_block(size_t bytes, uint64_t* found) {
    const CudaDriver& cuda = state().cuda;
    size_t free = 0, total = 0;
    if (!cuda.allocate_managed || cuda.count_memory(&free, &total) != 0) return false;
    if (free < bytes + total / kLeftToOthers) return false;
    const unsigned attach_global = 1;
    return cuda.allocate_managed(found, bytes, attach_global) == 0;
  }

  static constexpr size_t kLeftToOthers = 16;

  mutex mu_;
  std::unordered_map<size_t, std::vector<uint64_t>> free_;
  std::unordered_map<uint64_t, size_t> live_;
};

// Never destroyed: variables of TensorFlow's outlive static destructors.
ResidentAllocator& resident() {
  static ResidentAllocator* allocator = new ResidentAllocator();
  return *allocator;
}

// False where there is no room: such a variable travels with each call.
bool make_resident(DataType type, const TensorShape& shape, Tensor* tensor) {
  *tensor = Tensor(&resident(), type, shape);
  return tensor->IsInitialized();
}

// ---- memory of staged calls --------------------------------------------------------------------------------------

// One block holds all that a call needs besides the variables, and goes back when the call ends: all calls of a GPU
// share a stream.  The smallest that is large enough is taken, so that equal calls get equal addresses.
class BlockPool {
 public:
  int take(void* context, size_t bytes, void* stream, uint64_t* address, size_t* size) {
    mutex_lock lock(mu_);
    auto& free = free_[context];
    auto found = free.lower_bound(bytes);
    if (found != free.end()) {
      *size = found->first;
      *address = found->second;
      free.erase(found);
      return 0;
    }
    // Too small, all of them.
    for (auto& [_, block] : free) state().cuda.release(block, stream);
    free.clear();
    *size = bytes;
    return state().cuda.allocate(address, bytes, stream);
  }

  void give(void* context, uint64_t address, size_t size) {
    mutex_lock lock(mu_);
    free_[context].emplace(size, address);
  }

 private:
  mutex mu_;
  std::map<void*, std::multimap<size_t, uint64_t>> free_;
};

// Never destroyed, as the variables.
BlockPool& blocks() {
  static BlockPool* pool = new BlockPool();
  return *pool;
}

// ---- CUDA graphs -------------------------------------------------------------------------------------------------

// The graphs of a program for one set of addresses: one for each run of steps that can be one.
class GraphSet {
 public:
  GraphSet(std::vector<void*> addresses, void* stream) : addresses(std::move(addresses)), stream_(stream) {}

  // In the context of the program's GPU.  What is running ends first: executables are destroyed thereafter, memory in
  // the order of the stream.
  ~GraphSet() {
    for (void* executable : executables)
      if (executable) state().cuda.destroy_executable(executable);
    for (uint64_t table : tables) state().cuda.release(table, stream_);
  }

  const std::vector<void*> addresses;
  std::vector<void*> executables;
  std::vector<uint64_t> tables;

 private:
  void* const stream_;
};

size_t hash_of(const std::vector<void*>& addresses) {
  return std::hash<absl::string_view>()(
      absl::string_view(reinterpret_cast<const char*>(addresses.data()), addresses.size() * sizeof(void*)));
}

// ---- one run of a launch table -----------------------------------------------------------------------------------

bool is_host_device(const OpKernelContext* ctx) {
  return ctx->device()->tensorflow_accelerator_device_info() == nullptr;
}

// Memory of one call, and where each buffer of the program lies.
class Run {
 public:
  Run(OpKernelContext* ctx, const Program& program) : ctx_(ctx), program_(program), cuda_(state().cuda) {
    const bool on_gpu = !is_host_device(ctx);
    uses_cuda_ = on_gpu || program.row.staged;
    staged_ = !on_gpu && program.row.staged;
    if (on_gpu) stream_ = ctx->op_device_context()->stream()->platform_specific_handle().stream;
    if (staged_) stream_ = program.row.stream;
    call_stream_ = stream_;
    if (uses_cuda_) entered_ = cuda_.push(program.row.context) == 0;
  }

  ~Run() {
    graphs_.reset();
    if (block_) blocks().give(program_.row.context, block_, block_bytes_);
    void* context = nullptr;
    if (entered_) cuda_.pop(&context);
  }

  bool staged() const { return staged_; }

  // parameters, results: tensors in the order of the program; results are allocated.
  absl::Status execute(const std::vector<const Tensor*>& parameters, const std::vector<Tensor*>& results) {
    // TensorFlow's threads flush denormal numbers to zero; the emulation is a GPU, which keeps them.
    tsl::port::ScopedDontFlushDenormal keep_denormals;
    if (uses_cuda_ && !entered_) return absl::InternalError("astitch: the GPU's context cannot be entered");
    TF_RETURN_IF_ERROR(place(parameters, results));
    if (!state().dry) TF_RETURN_IF_ERROR(launch_all());
    return finish(results);
  }

 private:
  absl::Status place(const std::vector<const Tensor*>& parameters, const std::vector<Tensor*>& results) {
    given_.resize(parameters.size());
    made_.resize(results.size());
    TF_RETURN_IF_ERROR(reserve(parameters, results));
    char* scratch = nullptr;
    TF_RETURN_IF_ERROR(allocate(program_.row.scratch_bytes, &scratch));
    scratch_ = scratch;
    for (size_t i = 0; i < parameters.size(); ++i) TF_RETURN_IF_ERROR(place_parameter(*parameters[i], &given_[i]));
    for (size_t i = 0; i < results.size(); ++i) {
      if (!made_[i]) {
        char* room = nullptr;
        TF_RETURN_IF_ERROR(allocate(program_.results[i].bytes, &room));
        made_[i] = room;
      }
    }
    addresses_.resize(program_.buffers.size());
    for (size_t i = 0; i < addresses_.size(); ++i) {
      const BufferRow& buffer = program_.buffers[i];
      switch (buffer.space) {
        case kParameter: addresses_[i] = given_[buffer.index]; break;
        case kConstant: addresses_[i] = reinterpret_cast<void*>(buffer.address); break;
        case kResult: addresses_[i] = made_[buffer.index]; break;
        default: addresses_[i] = scratch + buffer.address;
      }
    }
    return absl::OkStatus();
  }

  // Finds the tensors that kernels may use where they lie, and one block for the others and for scratch memory.
  absl::Status reserve(const std::vector<const Tensor*>& parameters, const std::vector<Tensor*>& results) {
    size_t bytes = room_for(program_.row.scratch_bytes);
    for (size_t i = 0; i < parameters.size(); ++i) {
      void* data = parameters[i]->data();
      const bool there = reinterpret_cast<uintptr_t>(data) % kAlignment == 0 && (!staged_ || resident().owns(data));
      given_[i] = there ? data : nullptr;
      if (!there) bytes += room_for(parameters[i]->TotalBytes());
    }
    for (size_t i = 0; i < results.size(); ++i) {
      const bool there = !staged_ || resident().owns(results[i]->data());
      made_[i] = there ? results[i]->data() : nullptr;
      if (!there) bytes += room_for(program_.results[i].bytes);
    }
    if (!staged_) return absl::OkStatus();
    TF_RETURN_IF_ERROR(cuda_status(blocks().take(program_.row.context, bytes, stream_, &block_, &block_bytes_),
                                   "room on the GPU"));
    next_ = block_;
    return absl::OkStatus();
  }

  static size_t room_for(size_t bytes) {
    return (std::max<size_t>(bytes, 1) + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
  }

  // Copies the tensor to where a kernel may read it, if it does not lie there.
  absl::Status place_parameter(const Tensor& tensor, void** address) {
    if (*address) return absl::OkStatus();
    void* data = tensor.data();
    const size_t bytes = tensor.TotalBytes();
    char* room = nullptr;
    TF_RETURN_IF_ERROR(allocate(bytes, &room));
    *address = room;
    if (!bytes) return absl::OkStatus();
    if (staged_ && !resident().owns(data))
      return cuda_status(cuda_.copy_to_device(reinterpret_cast<uint64_t>(room), data, bytes, stream_), "a copy");
    return copy(room, data, bytes);
  }

  absl::Status launch_all() {
    TF_RETURN_IF_ERROR(find_graphs());
    for (size_t i = 0; i < program_.runs.size(); ++i) {
      if (graphs_ && graphs_->executables[i]) {
        mutex_lock lock(program_.graphs_mu);  // an executable is launched by one thread at a time
        mutex_lock products(state().product_mu);  // its products work where those of others do
        const int code = cuda_.launch_graph(graphs_->executables[i], stream_);
        if (code == 0) {
          state().graphs_launched++;
          continue;
        }
        refuse_graphs(cuda_status(code, "the launch of a graph"));
      }
      TF_RETURN_IF_ERROR(launch_steps(program_.runs[i]));
    }
    return absl::OkStatus();
  }

  absl::Status launch_steps(const StepRun& run) {
    if (run.first == 0)
      for (const ZeroRow& zero : program_.zeros) TF_RETURN_IF_ERROR(fill_zero(scratch_ + zero.offset, zero.bytes));
    for (size_t number = run.first; number < run.end; ++number) TF_RETURN_IF_ERROR(run_step(number));
    return absl::OkStatus();
  }

  // The graphs for the addresses of this call, if it has come with them before: they are captured the second time.
  absl::Status find_graphs() {
    if (!uses_cuda_ || !program_.row.capture_stream || !cuda_.begin_capture) return absl::OkStatus();
    mutex_lock lock(program_.graphs_mu);
    if (program_.no_graphs) return absl::OkStatus();
    auto& graphs = program_.graphs;
    auto known = std::find_if(graphs.begin(), graphs.end(),
                              [this](const auto& set) { return set->addresses == addresses_; });
    if (known != graphs.end()) {
      graphs_ = *known;
      std::rotate(graphs.begin(), known, known + 1);
      return absl::OkStatus();
    }
    auto& seen = program_.seen;
    const size_t hash = hash_of(addresses_);
    const auto before = std::find(seen.begin(), seen.end(), hash);
    if (before == seen.end()) {
      seen.push_back(hash);
      if (seen.size() > kMostSeen) seen.pop_front();
      return absl::OkStatus();
    }
    seen.erase(before);
    const absl::Status status = capture();
    if (absl::IsCancelled(status)) return status;  // it says nothing of the graph
    if (!status.ok()) {
      refuse_graphs(status);
      return absl::OkStatus();
    }
    graphs.push_front(graphs_);
    if (graphs.size() > kMostGraphs) graphs.pop_back();
    return absl::OkStatus();
  }

  // Once a program: from then on its steps are launched one by one.
  void refuse_graphs(const absl::Status& status) {
    graphs_.reset();
    program_.graphs.clear();
    program_.no_graphs = true;
    LOG(WARNING) << "no CUDA graph, steps are launched one by one: " << status.message();
  }

  absl::Status capture() {
    mutex_lock lock(state().capture_mu);
    auto graphs = std::make_shared<GraphSet>(addresses_, stream_);
    graphs->executables.resize(program_.runs.size());
    captured_ = graphs.get();
    absl::Status status;
    for (size_t i = 0; i < program_.runs.size() && status.ok(); ++i)
      if (program_.runs[i].captured) status = capture_run(program_.runs[i], &graphs->executables[i]);
    captured_ = nullptr;
    if (status.ok()) graphs_ = graphs;
    return status;
  }

  absl::Status capture_run(const StepRun& run, void** executable) {
    const int relaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED: what other threads do does not matter
    void* capture_stream = program_.row.capture_stream;
    TF_RETURN_IF_ERROR(cuda_status(cuda_.begin_capture(capture_stream, relaxed), "the begin of a capture"));
    void* stream = std::exchange(stream_, capture_stream);
    absl::Status status = launch_steps(run);
    stream_ = stream;
    void* graph = nullptr;
    const int ended = cuda_.end_capture(capture_stream, &graph);
    if (status.ok()) status = cuda_status(ended, "a capture");
    if (status.ok()) status = cuda_status(cuda_.instantiate(executable, graph, 0), "making a graph");
    if (graph) cuda_.destroy_graph(graph);
    if (status.ok()) state().graphs_captured++;
    return status;
  }

  absl::Status run_step(int number) {
    const StepRow& step = program_.steps[number];
    if (step.kind == kPythonStep) {
      const ProductRow* product = program_.products[number].load(std::memory_order_acquire);
      if (product && product->stream == call_stream_) return multiply(*product);
      StepCall call{program_.row.key, stream_, addresses_.data(), number, kInterrupted};
      state().callbacks.step(&call);
      return status_of(call, absl::StatusCode::kInternal, "astitch: ");
    }
    std::vector<void*> pointers(step.count);
    for (int i = 0; i < step.count; ++i) pointers[i] = addresses_[program_.operands[step.first + i]];
    const bool has_table = step.flags & kPointerTable;
    void* table = pointers.data();
    if (step.kind == kHostKernel) {
      const uint32_t workers = 2;
      char message[kMessageBytes] = "";
      if (state().host_launch(reinterpret_cast<const void*>(step.function), has_table ? &table : pointers.data(),
                              step.grid, step.block, step.shared_bytes, step.flags & kCooperative, 0, 0, 0, workers,
                              nullptr, 0, message, kMessageBytes))
        return absl::InternalError(absl::StrCat("astitch: ", message));
      return absl::OkStatus();
    }
    return launch_cuda(step, pointers, has_table);
  }

  absl::Status multiply(const ProductRow& product) {
    void* result = addresses_[product.result_buffer];
    // A product may be several kernels, which hand on parts in the stream's workspace: nothing that works there, a
    // product or a graph of another thread, may come between them.
    mutex_lock lock(state().product_mu);
    const int code = product.function(product.handle, product.operation, product.one, addresses_[product.a_buffer],
                                      product.a, addresses_[product.b_buffer], product.b, product.zero, result,
                                      product.result, result, product.result, product.algorithm, product.workspace,
                                      product.workspace_bytes, stream_);
    if (code) return absl::InternalError(absl::StrCat("astitch: a product failed with cuBLAS error ", code));
    state().products_launched++;
    return absl::OkStatus();
  }

  absl::Status launch_cuda(const StepRow& step, std::vector<void*>& pointers, bool has_table) {
    std::vector<void*> parameters(step.count);
    for (int i = 0; i < step.count; ++i) parameters[i] = &pointers[i];
    void* table = scratch_ + step.table_offset;
    void* table_parameter = &table;
    if (has_table) {
      const size_t bytes = pointers.size() * sizeof(void*);
      if (captured_) {
        // A graph has tables of its own, filled in front of it.
        uint64_t own = 0;
        TF_RETURN_IF_ERROR(cuda_status(cuda_.allocate(&own, bytes, call_stream_), "room for a table of pointers"));
        captured_->tables.push_back(own);
        table = reinterpret_cast<void*>(own);
      }
      // From pageable memory this returns once the bytes are staged: `pointers` may go.
      TF_RETURN_IF_ERROR(cuda_status(
          cuda_.copy_to_device(reinterpret_cast<uint64_t>(table), pointers.data(), bytes, call_stream_),
          "a table of pointers"));
    }
    void* function = reinterpret_cast<void*>(step.function);
    void** passed = has_table ? &table_parameter : parameters.data();
    const unsigned shared = step.shared_bytes;
    const int code =
        step.flags & kCooperative
            ? cuda_.launch_cooperative(function, step.grid, 1, 1, step.block, 1, 1, shared, stream_, passed)
            : cuda_.launch(function, step.grid, 1, 1, step.block, 1, 1, shared, stream_, passed, nullptr);
    return cuda_status(code, "a launch");
  }

  // Results that lie elsewhere, to where TensorFlow wants them.
  absl::Status finish(const std::vector<Tensor*>& results) {
    for (size_t i = 0; i < results.size(); ++i) {
      const ResultRow& row = program_.results[i];
      if (row.copies) TF_RETURN_IF_ERROR(copy(made_[i], addresses_[row.buffer], row.bytes));
      if (made_[i] != results[i]->data() && row.bytes)
        TF_RETURN_IF_ERROR(cuda_status(
            cuda_.copy_to_host(results[i]->data(), reinterpret_cast<uint64_t>(made_[i]), row.bytes, stream_), "a copy"));
    }
    // TensorFlow reads host memory at once; on a GPU its own stream orders what follows.
    return staged_ ? cuda_status(cuda_.synchronize(stream_), "a kernel") : absl::OkStatus();
  }

  // Memory that lives as long as the call.
  absl::Status allocate(size_t bytes, char** address) {
    if (staged_) {
      *address = reinterpret_cast<char*>(next_);
      next_ += room_for(bytes);
      return absl::OkStatus();
    }
    const int64_t room = std::max<size_t>(bytes, 1) + kScratchAlignment;
    Tensor tensor;
    TF_RETURN_IF_ERROR(ctx_->allocate_temp(DT_UINT8, TensorShape({room}), &tensor));
    const uintptr_t start = reinterpret_cast<uintptr_t>(tensor.data());
    *address = reinterpret_cast<char*>((start + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment);
    temporaries_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status copy(void* to, const void* from, size_t bytes) {
    if (!bytes) return absl::OkStatus();
    if (uses_cuda_)
      return cuda_status(
          cuda_.copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), bytes, stream_), "a copy");
    std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }

  absl::Status fill_zero(void* to, size_t bytes) {
    if (!bytes) return absl::OkStatus();
    if (uses_cuda_) return cuda_status(cuda_.fill(reinterpret_cast<uint64_t>(to), 0, bytes, stream_), "a fill");
    std::memset(to, 0, bytes);
    return absl::OkStatus();
  }

  OpKernelContext* ctx_;
  const Program& program_;
  const CudaDriver& cuda_;
  bool uses_cuda_ = false, staged_ = false, entered_ = false;
  void* stream_ = nullptr;       // where work goes: to be captured, or at once
  void* call_stream_ = nullptr;  // at once
  char* scratch_ = nullptr;
  uint64_t block_ = 0, next_ = 0;
  size_t block_bytes_ = 0;
  std::shared_ptr<GraphSet> graphs_;
  GraphSet* captured_ = nullptr;
  std::vector<Tensor> temporaries_;
  std::vector<void*> given_, made_, addresses_;
};

// ---- the kernel of a call ----------------------------------------------------------------------------------------

// What was made of one signature: a program, or why not.
struct Entry {
  absl::Notification made;
  const Program* program = nullptr;
  bool xla_refuses = false;
  bool own_error = false;
  bool beyond = false;       // of all signatures that are too many
  bool interrupted = false;  // an exception that came from outside ended it: neither of them
  std::string reason;
  std::vector<int> input_mapping;
  std::vector<XlaOutputDescription> outputs;
  std::vector<XlaResourceUpdate> updates;
};

class AstitchKernel : public AsyncOpKernel {
 public:
  // xla: XLA's own kernel, or null with what XLA said.
  AstitchKernel(OpKernelConstruction* construction, std::unique_ptr<OpKernel> xla, absl::Status refusal,
                NameAttrList function, std::vector<int> constants, std::vector<int> resources, Mark mark)
      : AsyncOpKernel(construction),
        xla_(std::move(xla)),
        refusal_(std::move(refusal)),
        function_(std::move(function)),
        constants_(std::move(constants)),
        resources_(std::move(resources)),
        mark_(mark),
        library_(construction->function_library()),
        device_(library_->device()->name()),
        shared_(find_function(function_.name(), device_)) {}

  void ComputeAsync(OpKernelContext* ctx, DoneCallback done) override {
    const bool wanted = mark_ == Mark::kOurs || (mark_ == Mark::kNone && state().taken);
    if (!wanted) return run_xla(ctx, std::move(done), kOutcomes);
    if (!xla_) {
      if (!told_.exchange(true)) refuse(refusal_.message(), kOpByOp);
      return run_op_by_op(ctx, std::move(done), refusal_);
    }
    const Entry* refused = nullptr;
    const absl::Status status = run_stitched(ctx, &refused);
    if (refused) {
      if (state().strict)
        return fail(ctx, std::move(done),
                    absl::UnimplementedError(absl::StrCat("astitch, strict: ", function_.name(), ": ", refused->reason)));
      const bool xla_refuses = refused->xla_refuses || (refused->beyond && shared_->xla_refuses);
      const bool has_strings = shared_->has_strings;
      if (has_strings && !is_host_device(ctx))
        return fail(ctx, std::move(done), absl::InvalidArgumentError(refused->reason));
      if (xla_refuses && is_host_device(ctx) && (state().uncompiled || has_strings))
        return run_op_by_op(ctx, std::move(done), absl::InvalidArgumentError(refused->reason));
      return run_xla(ctx, std::move(done), refused->own_error ? kFailedItself : kXla);
    }
    if (!status.ok()) return fail(ctx, std::move(done), status);
    shared_->runs[kStitched]++;
    done();
  }

 private:
  void fail(OpKernelContext* ctx, DoneCallback done, const absl::Status& status) {
    ctx->CtxFailure(status);
    done();
  }

  void refuse(absl::string_view reason, Outcome outcome) {
    const std::string told(reason);
    RefuseCall call{function_.name().c_str(), device_.c_str(), told.c_str(), outcome};
    state().callbacks.refuse(&call);
  }

  // outcome: as what the call counts; kOutcomes: as nothing.
  void run_xla(OpKernelContext* ctx, DoneCallback done, Outcome outcome) {
    if (!xla_) return fail(ctx, std::move(done), refusal_);
    if (outcome != kOutcomes) shared_->runs[outcome]++;
    if (AsyncOpKernel* async = xla_->AsAsync()) return async->ComputeAsync(ctx, std::move(done));
    xla_->Compute(ctx);
    done();
  }

  // The function by TensorFlow's own kernels: what XLA cannot compile either.
  void run_op_by_op(OpKernelContext* ctx, DoneCallback done, const absl::Status& refusal) {
    if (!state().uncompiled || state().strict) return fail(ctx, std::move(done), refusal);
    FunctionLibraryRuntime::Handle handle;
    {
      mutex_lock lock(mu_);
      if (!instantiated_) {
        const absl::Status status = library_->Instantiate(function_.name(), AttrSlice(&function_.attr()), &handle_);
        if (!status.ok()) return fail(ctx, std::move(done), status);
        instantiated_ = true;
      }
      handle = handle_;
    }
    shared_->runs[kOpByOp]++;
    FunctionLibraryRuntime::Options options(ctx->step_id());
    options.rendezvous = ctx->rendezvous();
    options.cancellation_manager = ctx->cancellation_manager();
    options.collective_executor = ctx->collective_executor();
    options.step_container = ctx->step_container();
    options.stats_collector = ctx->stats_collector();
    options.runner = ctx->runner();
    std::vector<Tensor> arguments;
    for (int i = 0; i < ctx->num_inputs(); ++i) arguments.push_back(ctx->input(i));
    auto* results = new std::vector<Tensor>();
    library_->Run(options, handle, arguments, results, [ctx, results, done](const absl::Status& status) {
      if (!status.ok()) {
        ctx->SetStatus(status);
      } else {
        for (size_t i = 0; i < results->size(); ++i) ctx->set_output(i, (*results)[i]);
      }
      delete results;
      done();
    });
  }

  // refused: set, with nothing done, where the signature has no program.
  absl::Status run_stitched(OpKernelContext* ctx, const Entry** refused) {
    std::vector<const Tensor*> inputs = InputsFromContext(ctx);
    std::vector<VariableInfo> variables;
    const absl::Status found =
        GetVariableInfosFromInputs(ctx->resource_manager(), ctx->device(), inputs, resources_, &variables);
    if (!found.ok()) {
      *refused = note_resource(absl::StrCat(name_fault(inputs), ": ", found.message()));
      return absl::OkStatus();
    }
    if (!is_host_device(ctx) && reads_variable_as_constant(inputs)) {
      *refused = note_resource("a variable's value must be known when the function is compiled, and it lies on the GPU");
      return absl::OkStatus();
    }
    // Held until the end of the call, as XLA's own kernel does.
    TF_RETURN_IF_ERROR(LockVariables(absl::MakeSpan(variables)));
    std::vector<const Tensor*> values = inputs;
    for (VariableInfo& variable : variables)
      if (variable.var() && variable.var()->is_initialized) values[variable.index()] = variable.var()->tensor();
    if (has_strings(values)) shared_->has_strings = shared_->xla_refuses = true;
    TF_ASSIGN_OR_RETURN(std::shared_ptr<Entry> entry, find_entry(ctx, inputs, values, variables));
    if (!entry->program) {
      *refused = entry.get();  // the map keeps it as long as this kernel lives
      return absl::OkStatus();
    }
    return run_program(ctx, *entry, inputs, values, variables);
  }

  std::string signature(const std::vector<const Tensor*>& values) {
    std::string key;
    key.reserve(24 * values.size());
    auto add = [&key](const void* data, size_t bytes) { key.append(static_cast<const char*>(data), bytes); };
    const int32_t wishes[2] = {state().strict, state().engine};
    add(wishes, sizeof wishes);
    for (const Tensor* value : values) {
      const int32_t head[2] = {value->dtype(), value->dims()};
      add(head, sizeof head);
      for (int d = 0; d < value->dims(); ++d) {
        const int64_t extent = value->dim_size(d);
        add(&extent, sizeof extent);
      }
    }
    for (int i : constants_) {
      // A variable's value is the constant; one that is not initialized has none.  Strings are refused, whatever they are.
      if (!DataTypeCanUseMemcpy(values[i]->dtype())) continue;
      const absl::string_view bytes = values[i]->tensor_data();
      add(bytes.data(), bytes.size());
    }
    return key;
  }

  // What was made of the signature, by this call or by another one.  Cancelled where this call was interrupted at it:
  // whoever waits for it, and the next call, begins anew.
  absl::StatusOr<std::shared_ptr<Entry>> find_entry(OpKernelContext* ctx, const std::vector<const Tensor*>& inputs,
                                                    const std::vector<const Tensor*>& values,
                                                    std::vector<VariableInfo>& variables) {
    const std::string key = signature(values);
    while (true) {
      std::shared_ptr<Entry> entry;
      bool ours = false;
      Admission admission = Admission::kAgain;
      {
        mutex_lock lock(mu_);
        auto found = entries_.find(key);
        if (found != entries_.end()) {
          entry = found->second;
        } else if ((admission = shared_->admit(key, state().max_signatures)) == Admission::kBeyond) {
          entry = find_beyond();
        } else {
          entry = entries_[key] = std::make_shared<Entry>();
          ours = true;
        }
      }
      if (admission == Admission::kBeyond && !shared_->told_beyond.exchange(true))
        refuse(entry->reason, shared_->xla_refuses && is_host_device(ctx) ? kOpByOp : kXla);
      if (ours) {
        const absl::Status status = compile(ctx, inputs, values, variables, entry.get());
        if (entry->interrupted) {
          forget(key);
          entry->made.Notify();
          return status;
        }
        if (!status.ok()) entry->reason = std::string(status.message());
        if (entry->xla_refuses) shared_->xla_refuses = true;
        if (!entry->program && admission == Admission::kFirst)
          refuse(entry->reason, entry->own_error ? kFailedItself
                                : entry->xla_refuses && is_host_device(ctx) ? kOpByOp : kXla);
        entry->made.Notify();
      }
      // Another thread makes it: that needs no lock that this call holds.
      entry->made.WaitForNotification();
      if (!entry->interrupted) return entry;
    }
  }

  void forget(const std::string& key) {
    mutex_lock lock(mu_);
    entries_.erase(key);
    shared_->withdraw(key);
  }

  // The entry of all signatures that are too many.  With mu_ held.
  std::shared_ptr<Entry> find_beyond() {
    if (!beyond_) {
      beyond_ = std::make_shared<Entry>();
      beyond_->beyond = true;
      beyond_->reason = absl::StrCat("more than ", state().max_signatures.load(),
                                     " signatures (shapes, types, constant values): pad to fewer shapes, or "
                                     "enable(max_signatures=...)");
      beyond_->made.Notify();
    }
    return beyond_;
  }

  // Why an argument cannot be read as a variable of this device.
  std::string name_fault(const std::vector<const Tensor*>& inputs) {
    for (int i : resources_) {
      const std::string& owner = inputs[i]->scalar<ResourceHandle>()().device();
      if (owner != device_)
        return absl::StrCat("a variable lies on ", owner, ", and a compiled function reads those of its own device only");
    }
    return "an argument is a resource but no variable";
  }

  bool reads_variable_as_constant(const std::vector<const Tensor*>& inputs) {
    return std::any_of(constants_.begin(), constants_.end(),
                       [&inputs](int i) { return inputs[i]->dtype() == DT_RESOURCE; });
  }

  const Entry* note_resource(const std::string& reason) {
    mutex_lock lock(mu_);
    if (!other_resource_) {
      other_resource_ = std::make_shared<Entry>();
      other_resource_->reason = reason;
      refuse(other_resource_->reason, kXla);
    }
    return other_resource_.get();
  }

  // Can XLA not compile it, though TensorFlow may run it?  Other errors are the function's own, a wrong shape for one,
  // and XLA's kernel raises them before any variable has changed.
  static bool is_limit_of_xla(const absl::Status& status) {
    const absl::string_view limits[] = {"Detected unsupported operations", "must be a compile-time constant"};
    return absl::IsUnimplemented(status) ||
           std::any_of(std::begin(limits), std::end(limits),
                       [&status](absl::string_view limit) { return absl::StrContains(status.message(), limit); });
  }

  bool has_strings(const std::vector<const Tensor*>& values) {
    return std::any_of(constants_.begin(), constants_.end(), [&values](int i) { return values[i]->dtype() == DT_STRING; });
  }

  absl::Status compile(OpKernelContext* ctx, const std::vector<const Tensor*>& inputs,
                       const std::vector<const Tensor*>& values, const std::vector<VariableInfo>& variables,
                       Entry* entry) {
    if (has_strings(values)) {
      entry->xla_refuses = true;
      return absl::UnimplementedError("an argument of strings must be a compile-time constant, and XLA has no strings");
    }
    Device* device = static_cast<Device*>(ctx->device());
    const XlaOpRegistry::DeviceRegistration* registration;
    if (!XlaOpRegistry::GetCompilationDevice(device->device_type(), &registration))
      return absl::UnimplementedError(absl::StrCat("no compiler of XLA's for ", device->device_type()));
    TF_ASSIGN_OR_RETURN(auto arguments, XlaComputationLaunchContext::BuildXlaCompilerArguments(constants_, inputs,
                                                                                              variables, device));
    const bool on_gpu = device->device_type() == "GPU";
    TF_ASSIGN_OR_RETURN(auto* platform,
                        stream_executor::PlatformManager::PlatformWithName(on_gpu ? "CUDA" : "Host"));
    XlaCompiler::Options options;
    options.device_type = DeviceType(registration->compilation_device_name);
    TF_ASSIGN_OR_RETURN(options.client, xla::ClientLibrary::GetOrCreateLocalClient(platform));
    options.flib_def = library_->GetFunctionLibraryDefinition();
    options.graph_def_version = library_->graph_def_version();
    XlaCompiler compiler(options);
    XlaCompiler::CompileOptions compile_options;
    compile_options.always_return_tuple = true;
    XlaCompiler::CompilationResult result;
    const absl::Status lowered = compiler.CompileFunction(compile_options, function_, arguments, &result);
    if (!lowered.ok()) {
      entry->xla_refuses = is_limit_of_xla(lowered);
      entry->own_error = !entry->xla_refuses;
      return lowered;
    }
    TF_RETURN_IF_ERROR(check_result(result));
    const std::string hlo = result.computation->proto().SerializeAsString();
    CompileCall call{function_.name().c_str(),
                     device_.c_str(),
                     hlo.data(),
                     static_cast<int64_t>(hlo.size()),
                     on_gpu ? device->tensorflow_accelerator_device_info()->gpu_id : -1,
                     kInterrupted};
    state().callbacks.compile(&call);
    entry->interrupted = call.ending == kInterrupted;
    TF_RETURN_IF_ERROR(status_of(call, absl::StatusCode::kUnimplemented, ""));
    const Program* program = nullptr;
    {
      mutex_lock lock(state().mu);
      const auto& programs = state().programs;
      if (call.program < 0 || call.program >= static_cast<int64_t>(programs.size()))
        return absl::InternalError(
            absl::StrCat("Python names program ", call.program, ", and there are ", programs.size()));
      program = programs[call.program].get();
    }
    size_t results = result.resource_updates.size();
    for (const XlaOutputDescription& output : result.outputs)
      results += !output.is_constant && output.type != DT_RESOURCE;
    if (results != program->results.size() || result.input_mapping.size() != program->row.parameter_count)
      return absl::InternalError(absl::StrCat("the program has ", program->row.parameter_count, " parameters and ",
                                              program->results.size(), " results, the function ",
                                              result.input_mapping.size(), " and ", results));
    entry->input_mapping = result.input_mapping;
    entry->outputs = result.outputs;
    entry->updates = result.resource_updates;
    entry->program = program;
    return absl::OkStatus();
  }

  static absl::Status check_result(const XlaCompiler::CompilationResult& result) {
    if (result.collective_info) return absl::UnimplementedError("collectives between devices");
    const auto& host = result.host_compute_metadata;
    if (host.host_to_device_size() || host.device_to_host_size())
      return absl::UnimplementedError("transfers to the host inside of the function");
    if (!result.xla_output_shape.is_static())
      return absl::UnimplementedError(
          absl::StrCat("a result's shape depends on values: ", result.xla_output_shape.ToString()));
    for (const XlaOutputDescription& output : result.outputs)
      if (output.is_tensor_list) return absl::UnimplementedError("a result is a list of tensors");
    for (const XlaResourceUpdate& update : result.resource_updates)
      if (!update.tensor_array_gradients_accessed.empty())
        return absl::UnimplementedError("a TensorArray's gradients are updated");
    return absl::OkStatus();
  }

  absl::Status run_program(OpKernelContext* ctx, const Entry& entry, const std::vector<const Tensor*>& inputs,
                           std::vector<const Tensor*>& values, std::vector<VariableInfo>& variables) {
    Run run(ctx, *entry.program);
    if (run.staged()) move_variables(variables);
    std::vector<const Tensor*> parameters;
    parameters.reserve(entry.input_mapping.size());
    for (int input : entry.input_mapping) parameters.push_back(values[input]);
    std::vector<Tensor*> results;
    for (size_t i = 0; i < entry.outputs.size(); ++i) {
      const XlaOutputDescription& output = entry.outputs[i];
      if (output.type == DT_RESOURCE) {
        ctx->set_output(i, *inputs[output.input_index]);
      } else if (output.is_constant) {
        TF_RETURN_IF_ERROR(set_constant(ctx, i, output.constant_value));
      } else {
        Tensor* result = nullptr;
        TF_RETURN_IF_ERROR(ctx->allocate_output(i, output.shape, &result));
        results.push_back(result);
      }
    }
    std::vector<Tensor> updated(entry.updates.size());
    for (size_t i = 0; i < updated.size(); ++i) {
      const XlaResourceUpdate& update = entry.updates[i];
      if (!run.staged() || !make_resident(update.type, update.shape, &updated[i]))
        TF_RETURN_IF_ERROR(ctx->allocate_temp(update.type, update.shape, &updated[i]));
      results.push_back(&updated[i]);
    }
    TF_RETURN_IF_ERROR(run.execute(parameters, results));
    for (size_t i = 0; i < updated.size(); ++i) {
      if (!entry.updates[i].modified || state().dry) continue;
      for (VariableInfo& variable : variables) {
        if (variable.index() != entry.updates[i].input_index) continue;
        *variable.var()->tensor() = updated[i];
        variable.var()->is_initialized = true;
      }
    }
    return absl::OkStatus();
  }

  // The host's variables to memory that the GPU reads where it lies; from then on they stay there.
  void move_variables(std::vector<VariableInfo>& variables) {
    for (VariableInfo& variable : variables) {
      if (!variable.var() || !variable.var()->is_initialized) continue;
      Tensor* tensor = variable.var()->tensor();
      if (!DataTypeCanUseMemcpy(tensor->dtype()) || resident().owns(tensor->data())) continue;
      Tensor moved;
      if (!make_resident(tensor->dtype(), tensor->shape(), &moved)) continue;
      std::memcpy(moved.data(), tensor->data(), tensor->TotalBytes());
      *tensor = moved;
    }
  }

  absl::Status set_constant(OpKernelContext* ctx, int number, const Tensor& value) {
    if (is_host_device(ctx) || ctx->output_memory_type(number) == HOST_MEMORY) {
      ctx->set_output(number, value);
      return absl::OkStatus();
    }
    Tensor* room = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(number, value.shape(), &room));
    return ctx->op_device_context()->CopyCPUTensorToDeviceSync(&value, static_cast<Device*>(ctx->device()), room);
  }

  const std::unique_ptr<OpKernel> xla_;
  const absl::Status refusal_;
  const NameAttrList function_;
  const std::vector<int> constants_, resources_;
  const Mark mark_;
  FunctionLibraryRuntime* const library_;
  const std::string device_;
  const std::shared_ptr<Function> shared_;
  std::atomic<bool> told_{false};
  mutex mu_;
  bool instantiated_ = false;
  FunctionLibraryRuntime::Handle handle_ = 0;
  std::unordered_map<std::string, std::shared_ptr<Entry>> entries_;
  std::shared_ptr<Entry> beyond_, other_resource_;
};

class Creator : public CustomKernelCreator {
 public:
  bool CanCreateKernel(const FunctionLibraryRuntime& library,
                       const std::shared_ptr<const NodeProperties>& node) const override {
    return xla_.CanCreateKernel(library, node);
  }

  absl::Status CreateKernel(FunctionLibraryRuntime* library, const std::shared_ptr<const NodeProperties>& node,
                            std::unique_ptr<OpKernel>* kernel) const override {
    std::unique_ptr<OpKernel> xla;
    const absl::Status refusal = xla_.CreateKernel(library, node, &xla);
    Device* device = library->device();
    // On a GPU XLA's kernel says which tensors lie on the host.
    if (!refusal.ok() && device->device_type() != DEVICE_CPU) return refusal;
    NameAttrList function;
    TF_RETURN_IF_ERROR(NameAndAttrsFromFunctionCall(node->node_def, &function));
    const FunctionBody* body = nullptr;
    std::vector<int> constants, resources;
    TF_RETURN_IF_ERROR(GetBodyAndConstantsAndResources(library, function, &body, &constants, &resources));
    auto properties = std::make_shared<NodeProperties>(&body->record->fdef().signature(), node->node_def,
                                                       body->arg_types, body->ret_types);
    const MemoryTypeVector host_inputs(body->arg_types.size(), HOST_MEMORY);
    const MemoryTypeVector host_outputs(body->ret_types.size(), HOST_MEMORY);
    absl::Status status;
    OpKernelConstruction construction(
        DeviceType(device->device_type()), device, device->GetAllocator(AllocatorAttributes()), library,
        device->resource_manager(), properties, xla ? xla->input_memory_types() : host_inputs,
        xla ? xla->output_memory_types() : host_outputs, library->graph_def_version(), &status);
    const auto& attributes = body->record->fdef().attr();
    const auto found = attributes.find(kMark);
    const std::string said = found == attributes.end() ? "" : found->second.s();
    const Mark mark = said == kMarked ? Mark::kOurs : said == kNever ? Mark::kNever : Mark::kNone;
    *kernel = std::make_unique<AstitchKernel>(&construction, std::move(xla), refusal, std::move(function),
                                              std::move(constants), std::move(resources), mark);
    return status;
  }

 private:
  XlaKernelCreator xla_;
};

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// Takes part from now on, by the settings; once a process.
EXPORT void astitch_tf_install(const Callbacks* callbacks) {
  state().callbacks = *callbacks;
  RegisterDefaultCustomKernelCreator(new Creator());
}

EXPORT void astitch_tf_set(const Settings* settings) {
  state().strict = settings->strict;
  state().uncompiled = settings->uncompiled;
  state().dry = settings->dry;
  state().max_signatures = settings->max_signatures;
  state().engine = settings->engine;
  state().taken = settings->taken;
}

EXPORT void astitch_tf_set_host(HostLaunchFn launch) { state().host_launch = launch; }

EXPORT void astitch_tf_set_cuda(const CudaDriver* driver) { state().cuda = *driver; }

// Copies the rows; the number is what `compile` answers with.
EXPORT int64_t astitch_tf_add_program(const ProgramRow* row) {
  auto program = std::make_unique<Program>();
  program->row = *row;
  program->buffers.assign(row->buffers, row->buffers + row->buffer_count);
  program->steps.assign(row->steps, row->steps + row->step_count);
  program->operands.assign(row->operands, row->operands + row->operand_count);
  program->results.assign(row->results, row->results + row->result_count);
  program->zeros.assign(row->zeros, row->zeros + row->zero_count);
  program->runs = split_runs(program->steps);
  program->products = std::make_unique<std::atomic<const ProductRow*>[]>(row->step_count);
  mutex_lock lock(state().mu);
  state().programs.push_back(std::move(program));
  return state().programs.size() - 1;
}

// Copies the row: from now on the step is launched by it.  The first one stays.
EXPORT void astitch_tf_set_product(int64_t number, int32_t step, const ProductRow* row) {
  mutex_lock lock(state().mu);
  auto& product = state().programs[number]->products[step];
  if (!product.load()) product.store(new ProductRow(*row), std::memory_order_release);
}

// How many products were launched without Python since the process began.
EXPORT int64_t astitch_tf_count_products() { return state().products_launched.load(); }

// How often a function ended so; 0 for one that is not known.
EXPORT int64_t astitch_tf_count_runs(const char* function, const char* device, int32_t outcome) {
  mutex_lock lock(state().mu);
  auto found = state().functions.find({function, device});
  return found == state().functions.end() ? 0 : found->second->runs[outcome].load();
}

// How many CUDA graphs were launched since the process began, or (1) captured.
EXPORT int64_t astitch_tf_count_graphs(int32_t captured) {
  return captured ? state().graphs_captured.load() : state().graphs_launched.load();
}

// Tells the functions that ran since the last reset.
EXPORT void astitch_tf_list_functions(NameFn tell) {
  std::vector<std::pair<std::string, std::string>> found;
  {
    mutex_lock lock(state().mu);
    for (auto& [names, function] : state().functions)
      for (auto& runs : function->runs)
        if (runs.load() && (found.empty() || found.back() != names)) found.push_back(names);
  }
  for (auto& [function, device] : found) {
    NameCall call{function.c_str(), device.c_str()};
    tell(&call);
  }
}

EXPORT void astitch_tf_reset_runs() {
  mutex_lock lock(state().mu);
  for (auto& [_, function] : state().functions)
    for (auto& runs : function->runs) runs = 0;
}

}  // extern "C"
