// The host runtime: runs a kernel compiled with host.h, one fibre for each CUDA thread, and checks it.
//
// Takes a kernel's entry and its launch from emulate.py, hands back nothing or the text of the first fault.
// The idea: within one OS thread only one fibre runs at a time, and it gives way only where CUDA lets it
// wait (barriers, warp operations, polled atomics), so a switch is a dozen instructions and a run is
// repeatable.  Blocks of an ordinary launch are dealt to a few OS threads; those of a cooperative launch
// are all resident in one.
//
// Check mode: the kernel is compiled with -fsanitize=thread and -fsanitize=bounds,alignment,.. but linked
// against the hooks at the end of this file, not against a sanitizer's library.  They know CUDA's rules of
// what is ordered before what.  A code address in a fault's text is written @hex, an offset into the kernel
// module; emulate.py turns it into a line.
#define ASTITCH_HOST_RUNTIME 1
#include "host.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define NOINLINE __attribute__((noinline))
// Where the kernel called from; minus one, because the return address may belong to the next line.
#define CALLER (static_cast<const char*>(__builtin_return_address(0)) - 1)

namespace {

constexpr u32 max_threads = 1024;
constexpr u32 max_warps = max_threads / 32;
// Virtual size; a page is backed only when touched, and kernels with frames over 32 KiB do not compile.
// An odd number of pages, or the tops of all stacks would fall into a few sets of the TLB.
constexpr size_t stack_bytes = 17 * 4096;
constexpr u32 fibres_a_slab = 64;
// Fibres whose stack pages stay with us after a launch (about 4 KiB each).
constexpr u32 kept_fibres = 8192;
constexpr u64 max_idle_yields = 1 << 20;

enum class Order : u32 { forward, reverse, random };
enum class Waiting : u8 { nothing, block_barrier, warp, grid_barrier };

// ---- what check mode remembers --------------------------------------------------------------------------

// What is known to have happened before: of each block all epochs below a bound (a block's epoch counts its
// barriers), and of single threads all accesses up to a clock (a thread's clock counts its releases).
struct Clock {
    std::vector<u32> epoch_of_block;
    std::map<u32, u32> clock_of_thread;

    bool empty() const { return epoch_of_block.empty() && clock_of_thread.empty(); }
    void clear() { epoch_of_block.clear(); clock_of_thread.clear(); }
    void cover_block(u32 block, u32 epoch)
    {
        if (epoch_of_block.size() <= block) epoch_of_block.resize(block + 1);
        epoch_of_block[block] = std::max(epoch_of_block[block], epoch);
    }
    void cover_thread(u32 thread, u32 clock)
    {
        u32& known = clock_of_thread[thread];
        known = std::max(known, clock);
    }
    void join(const Clock& other)
    {
        for (u32 b = 0; b < other.epoch_of_block.size(); ++b)
            if (other.epoch_of_block[b]) cover_block(b, other.epoch_of_block[b]);
        for (const auto& [thread, clock] : other.clock_of_thread) cover_thread(thread, clock);
    }
};

// One access to memory.  thread: block << 10 | thread of the block.  epoch 0: there was none.
struct Access {
    u32 thread = 0, epoch = 0, clock = 0, phase = 0, code = 0;
    bool atomic = false;
    bool happened() const { return epoch != 0; }
};

// How many readers since the last write the one that is kept stands for.
enum class Readers : u8 { lanes, warps, blocks };

// The state of a few bytes of memory.
struct Cell {
    Access write, read;
    u32 read_lanes = 0;  // lanes of read.thread's warp that read in the same epoch
    Readers readers = Readers::lanes;
    const astitch_slot* slot = nullptr;  // through which it was written, where known
};

// Cells of a stretch of memory: one for 4 bytes, or finer once a smaller access was seen.
class Shadow {
public:
    Shadow() = default;
    Shadow(const Shadow&) = delete;
    Shadow& operator=(const Shadow&) = delete;
    ~Shadow() { unmap(); }

    void cover(uintptr_t low, uintptr_t high)
    {
        unmap();
        low_ = low, high_ = high, shift_ = 2;
    }
    void forget() { cover(low_, high_); }

    // Calls visit(cell, address) for each cell that the access touches.
    template <class Visit> void visit(uintptr_t address, size_t bytes, Visit&& visit)
    {
        const u32 needed = u32(__builtin_ctzll((address - low_) | bytes));
        if (!cells_ || needed < shift_) refine(std::min(needed, shift_));
        const size_t first = (address - low_) >> shift_, last = (address - low_ + bytes - 1) >> shift_;
        for (size_t i = first; i <= last; ++i) visit(cells_[i], low_ + (i << shift_));
    }

private:
    void refine(u32 shift)
    {
        Cell* old = cells_;
        const size_t old_bytes = mapped_bytes_, old_count = old ? count() : 0;
        const u32 by = shift_ - shift;
        shift_ = shift;
        mapped_bytes_ = count() * sizeof(Cell);
        void* memory = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            fprintf(stderr, "astitch: no memory for the checker of %zu bytes\n", size_t(high_ - low_));
            abort();
        }
        cells_ = static_cast<Cell*>(memory);  // zero bytes are a Cell that nobody touched
        for (size_t i = 0; i < old_count; ++i)
            if (old[i].write.happened() || old[i].read.happened())
                for (size_t k = 0; k < size_t(1) << by && ((i << by) + k) < count(); ++k)
                    cells_[(i << by) + k] = old[i];
        if (old) munmap(old, old_bytes);
    }
    size_t count() const { return ((high_ - low_) >> shift_) + 1; }
    void unmap()
    {
        if (cells_) munmap(cells_, mapped_bytes_);
        cells_ = nullptr;
    }

    uintptr_t low_ = 0, high_ = 0;
    u32 shift_ = 2;
    Cell* cells_ = nullptr;
    size_t mapped_bytes_ = 0;
};

// An argument of the launch (or several that overlap).
struct Region {
    uintptr_t low, high;
    u32 element_bytes;
    bool is_const, uninitialised;
    std::string name;
    Shadow shadow;
};

// Which slot an address was last computed from: the hooks see only addresses.
struct SlotUse {
    uintptr_t low = 0, high = 0;
    const astitch_slot* slot = nullptr;
};

struct ThreadCheck {
    u32 clock = 1;
    u32 seen[32] = {};       // clock of each lane of the warp up to which its accesses are ordered before
    Clock acquired, pending, released;  // pending: read by a relaxed atomic, waits for a fence
    SlotUse uses[8];
    u32 next_use = 0;
};

// ---- threads, warps, blocks ---------------------------------------------------------------------------

struct Block;
struct Warp;
class Worker;

struct alignas(64) Fibre {
    // What a switch touches, in one cache line.
    void* stack_pointer;
    Warp* warp;
    Block* block;
    Worker* worker;
    const char* waits_at;  // code address
    Waiting waiting;       // what it waits for, or last waited for
    u32 lane;
    astitch_position position;

    const unsigned* polled;  // last atomic's address and value: seen twice means that the thread polls
    u64 polled_value;
    ThreadCheck* check;
    Fibre* next_free;
    char* stack;
    u32 number;

    u32 thread_key() const { return position.block << 10 | position.thread; }
};

struct Warp {
    u32 ready;    // lanes that can run (started or not)
    u32 live;     // lanes that have not exited
    u32 arrived;  // lanes that wait in a warp operation
    u32 first_thread;
    Fibre** fibres;
    u64 value[32], result[32];
    u32 mask[32];
    u32 request[32];  // source lane | operation << 8
};

struct Block {
    Worker* worker;
    u32 index, threads, warps;
    u32 exited, arrived;
    u32 site;                   // of the barrier that threads wait at
    const char* site_code;
    unsigned* grid_word;        // not null: they wait at the grid barrier
    bool at_grid;
    u8* shared;
    size_t shared_capacity;
    u32 epoch;                  // barriers passed, from 1
    Clock acquired;             // what all threads of the block know since the last barrier
    Shadow shadow;
    Warp warp[max_warps];
    Fibre* fibres[max_threads];
};

struct Launch {
    const astitch_kernel* kernel;
    void** arguments;
    u32 blocks, threads, shared_bytes;
    bool cooperative, check;
    Order order;
    u64 seed;
    u32 workers;
};

// ---- faults -----------------------------------------------------------------------------------------

std::mutex fault_lock;
std::string fault_text;
std::atomic<bool> faulted{false};
uintptr_t module_low, module_high;  // the kernel module's image, in check mode

u32 code_offset(const void* code) { return u32(reinterpret_cast<uintptr_t>(code) - module_low); }

// Keeps the first fault of a launch.
__attribute__((format(printf, 1, 2))) NOINLINE void report(const char* format, ...)
{
    std::lock_guard<std::mutex> guard(fault_lock);
    if (faulted.load()) return;
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fault_text = text;
    faulted.store(true);
}

// ---- switching stacks -------------------------------------------------------------------------------

thread_local Fibre* current __attribute__((tls_model("initial-exec"))) = nullptr;

}  // namespace

// Saves the callee-saved registers on the running stack, its pointer in *save, and goes on with another.
// It leaves by a jump: the processor predicts a return to the caller of this call, which is another fibre's
// business, but a jump to where the last one went.  For the same reason the functions that wait call it
// last, so that it leads straight back into the kernel.
extern "C" void astitch_switch_stack(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl astitch_switch_stack
.hidden astitch_switch_stack
.type astitch_switch_stack,@function
astitch_switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
)");
static void* prepare_stack(char* top, void (*entry)())
{
    void** stack = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15));
    stack[-1] = nullptr;  // the entry never returns
    stack[-2] = reinterpret_cast<void*>(entry);
    for (int k = 3; k <= 8; ++k) stack[-k] = nullptr;
    return stack - 8;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl astitch_switch_stack
.hidden astitch_switch_stack
.type astitch_switch_stack,%function
astitch_switch_stack:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, 16]
    stp x23, x24, [sp, 32]
    stp x25, x26, [sp, 48]
    stp x27, x28, [sp, 64]
    stp x29, x30, [sp, 80]
    stp d8, d9, [sp, 96]
    stp d10, d11, [sp, 112]
    stp d12, d13, [sp, 128]
    stp d14, d15, [sp, 144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, 16]
    ldp x23, x24, [sp, 32]
    ldp x25, x26, [sp, 48]
    ldp x27, x28, [sp, 64]
    ldp x29, x30, [sp, 80]
    ldp d8, d9, [sp, 96]
    ldp d10, d11, [sp, 112]
    ldp d12, d13, [sp, 128]
    ldp d14, d15, [sp, 144]
    add sp, sp, #160
    ret
)");
static void* prepare_stack(char* top, void (*entry)())
{
    u64* stack = reinterpret_cast<u64*>(reinterpret_cast<uintptr_t>(top) & ~uintptr_t(15)) - 20;
    memset(stack, 0, 160);
    stack[11] = reinterpret_cast<u64>(entry);  // x30
    return stack;
}
#else
#error "the host emulation knows how to switch stacks on x86-64 and aarch64 only"
#endif

namespace {

u32 lowest(u32 lanes) { return u32(__builtin_ctz(lanes)); }

// ---- the scheduler of one OS thread -------------------------------------------------------------------

class Worker {
public:
    const Launch* launch = nullptr;
    std::vector<Block*> resident;
    bool plain = true;    // forward order: the fast paths may choose the next thread themselves
    u32 phase = 0;        // grid barriers passed
    u32 blocks_at_grid = 0;
    u64 idle_yields = 0;

    void run(const Launch& what, std::atomic<u64>& next_block, const std::vector<u32>& block_order);
    // From a waiting thread: runs others, returns when it may go on.
    NOINLINE void switch_away(Fibre* fibre, bool polls = false);
    [[noreturn]] void abandon();
    [[noreturn]] void run_fibre();
    void complete_barrier(Block* block);
    void release_barrier(Block* block);
    u32 random()
    {
        random_state_ ^= random_state_ << 13;
        random_state_ ^= random_state_ >> 7;
        random_state_ ^= random_state_ << 17;
        return u32(random_state_ >> 11);
    }

private:
    struct Choice { Block* block; Warp* warp; u32 lane; };

    // The next thread to run, false if there is none.  from: a thread that polls, so that everybody else must
    // have a turn before its next one.
    bool choose(Choice& choice, const Fibre* from)
    {
        if (LIKELY(plain && !from && warp_ && warp_->ready)) {
            choice = {block_, warp_, lowest(warp_->ready)};
            return true;
        }
        return search(choice, from);
    }
    bool search(Choice& choice, const Fibre* from);
    u32 choose_lane(u32 ready);
    Fibre* claim(const Choice& choice);
    void bind(Fibre* fibre, const Choice& choice);
    Fibre* take_fibre();
    Block* take_block();
    void start_block(Block* block, u32 index);
    void drive();
    void explain_deadlock();
    void trim();

    void* main_stack_ = nullptr;
    Block* block_ = nullptr;  // of the thread that ran last
    Warp* warp_ = nullptr;
    u32 block_number_ = 0;
    u64 random_state_ = 1;
    Fibre* free_ = nullptr;
    std::vector<char*> slabs_;
    std::vector<Block*> pool_;
};

// A thread that faulted never goes on.
[[noreturn]] void die() { current->worker->abandon(); }

void fibre_entry() { current->worker->run_fibre(); }

Fibre* Worker::take_fibre()
{
    if (!free_) {
        void* memory = mmap(nullptr, stack_bytes * fibres_a_slab, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) {
            fprintf(stderr, "astitch: no memory for the stacks of %u more threads\n", fibres_a_slab);
            abort();
        }
        for (u32 i = fibres_a_slab; i-- > 0;) {
            Fibre* fibre = new Fibre();
            fibre->stack = static_cast<char*>(memory) + stack_bytes * i;
            fibre->number = u32(slabs_.size()) * fibres_a_slab + i;
            fibre->next_free = free_;
            free_ = fibre;
        }
        slabs_.push_back(static_cast<char*>(memory));
    }
    Fibre* fibre = free_;
    free_ = fibre->next_free;
    // Stacks that start at the same place of their page would all fall into the same few cache sets.
    char* top = fibre->stack + stack_bytes - 64 - (fibre->number * 320) % 4096;
    fibre->stack_pointer = prepare_stack(top, fibre_entry);
    return fibre;
}

// Gives the stacks' memory back after a launch with very many resident threads.
void Worker::trim()
{
    if (slabs_.size() * fibres_a_slab <= kept_fibres) return;
    for (char* slab : slabs_) madvise(slab, stack_bytes * fibres_a_slab, MADV_DONTNEED);
}

Block* Worker::take_block()
{
    Block* block;
    if (pool_.empty()) {
        block = new Block();
    } else {
        block = pool_.back();
        pool_.pop_back();
    }
    if (block->shared_capacity < launch->shared_bytes) {
        free(block->shared);
        block->shared_capacity = (launch->shared_bytes + 255) / 256 * 256;
        block->shared = static_cast<u8*>(aligned_alloc(256, block->shared_capacity));
    }
    return block;
}

void Worker::start_block(Block* block, u32 index)
{
    block->worker = this;
    block->index = index;
    block->threads = launch->threads;
    block->warps = (block->threads + 31) / 32;
    block->exited = block->arrived = 0;
    block->site = 0;
    block->grid_word = nullptr;
    block->at_grid = false;
    for (u32 i = 0; i < block->warps; ++i) {
        Warp& warp = block->warp[i];
        const u32 lanes = block->threads - i * 32;
        warp.live = warp.ready = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        warp.arrived = 0;
        warp.first_thread = i * 32;
        warp.fibres = block->fibres + i * 32;
    }
    memset(block->fibres, 0, block->threads * sizeof(Fibre*));
    // NaN bytes, so that forgotten initialisation shows in the results of a fast run too.
    if (launch->shared_bytes) memset(block->shared, 0xff, launch->shared_bytes);
    if (launch->check) {
        block->epoch = 1;
        block->acquired.clear();
        const uintptr_t low = reinterpret_cast<uintptr_t>(block->shared);
        block->shadow.cover(low, low + launch->shared_bytes);
    }
}

void Worker::bind(Fibre* fibre, const Choice& choice)
{
    const u32 thread = choice.warp->first_thread + choice.lane;
    fibre->position = {thread, choice.block->index, launch->threads, launch->blocks};
    fibre->lane = choice.lane;
    fibre->block = choice.block;
    fibre->warp = choice.warp;
    fibre->worker = this;
    fibre->waiting = Waiting::nothing;
    fibre->polled = nullptr;
    choice.block->fibres[thread] = fibre;
    if (launch->check) {
        if (fibre->check) *fibre->check = ThreadCheck();
        else fibre->check = new ThreadCheck();
    }
}

u32 Worker::choose_lane(u32 ready)
{
    switch (launch->order) {
    case Order::forward: return lowest(ready);
    case Order::reverse: return 31 - u32(__builtin_clz(ready));
    case Order::random: break;
    }
    for (u32 skip = random() % u32(__builtin_popcount(ready)); skip; --skip) ready &= ready - 1;
    return lowest(ready);
}

// The same warp first, then the same block: their stacks are still in the cache.
bool Worker::search(Choice& choice, const Fibre* from)
{
    const bool random_order = launch->order == Order::random;
    const u32 blocks = u32(resident.size());
    if (from && random_order) {
        block_number_ = random() % blocks;
    } else if (from) {
        const u32 later_lanes = from->lane == 31 ? 0 : warp_->ready & ~0u << (from->lane + 1);
        if (later_lanes) {
            choice = {block_, warp_, lowest(later_lanes)};
            return true;
        }
    } else if (warp_ && warp_->ready && !(random_order && random() % 4 == 0)) {
        choice = {block_, warp_, choose_lane(warp_->ready)};
        return true;
    }
    const bool down = launch->order == Order::reverse && !from;
    for (u32 k = 0; k <= blocks; ++k) {
        Block* block = resident[block_number_];
        const u32 warps = block->warps;
        u32 first = down ? warps - 1 : 0, count = warps;
        if (random_order) {
            first = random() % warps;
        } else if (warp_ && block == block_ && k == 0) {
            const u32 now = u32(warp_ - block->warp);
            first = down ? now + warps - 1 : now + 1;
            // A polling thread goes on to the next block after the last warp, else one block would starve all.
            if (from) count = warps - first;
        }
        for (u32 i = 0; i < count; ++i) {
            Warp* warp = &block->warp[(down ? first + warps - i : first + i) % warps];
            if (warp->ready) {
                // After a polling thread the lowest, then later ones: each gets its turn in either order.
                const bool fair = from && !random_order;
                choice = {block, warp, fair ? lowest(warp->ready) : choose_lane(warp->ready)};
                return true;
            }
        }
        block_number_ = block_number_ + 1 < blocks ? block_number_ + 1 : 0;
    }
    return false;
}

// Marks the chosen thread as running; null: it has no fibre yet.
Fibre* Worker::claim(const Choice& choice)
{
    block_ = choice.block;
    warp_ = choice.warp;
    warp_->ready &= ~(1u << choice.lane);
    return warp_->fibres[choice.lane];
}

void Worker::switch_away(Fibre* fibre, bool polls)
{
    Choice choice;
    if (faulted.load(std::memory_order_relaxed) || !choose(choice, polls ? fibre : nullptr)) {
        current = nullptr;
        astitch_switch_stack(&fibre->stack_pointer, main_stack_);
        return;
    }
    Fibre* next = claim(choice);
    if (next == fibre) return;
    if (!next) {
        next = take_fibre();
        bind(next, choice);
    }
    current = next;
    astitch_switch_stack(&fibre->stack_pointer, next->stack_pointer);
}

void Worker::abandon()
{
    void* never_used;
    current = nullptr;
    astitch_switch_stack(&never_used, main_stack_);
    abort();
}

// Runs a CUDA thread, and after it the threads that have not started yet, on the same stack: a thread that
// never waits costs no switch.
void Worker::run_fibre()
{
    for (;;) {
        Fibre* fibre = current;
        launch->kernel->call(launch->arguments);

        Block* block = fibre->block;
        Warp* warp = fibre->warp;
        const u32 bit = 1u << fibre->lane;
        warp->live &= ~bit;
        block->fibres[fibre->position.thread] = nullptr;
        block->exited++;
        idle_yields = 0;
        for (u32 lanes = warp->arrived; lanes; lanes &= lanes - 1) {
            const u32 lane = lowest(lanes);
            if (warp->mask[lane] & bit) {
                report("bad warp mask: block %u thread %u exited while lane %u of its warp waits for it "
                       "(mask 0x%08x) at @%x",
                       block->index, fibre->position.thread, lane, warp->mask[lane],
                       code_offset(warp->fibres[lane]->waits_at));
            }
        }
        if (block->arrived && block->arrived == block->threads - block->exited) complete_barrier(block);

        Choice choice;
        if (faulted.load(std::memory_order_relaxed) || !choose(choice, nullptr)) {
            fibre->next_free = free_;
            free_ = fibre;
            abandon();
        }
        Fibre* next = claim(choice);
        if (!next) {
            bind(fibre, choice);
            continue;
        }
        fibre->next_free = free_;
        free_ = fibre;
        current = next;
        void* never_used;
        astitch_switch_stack(&never_used, next->stack_pointer);
        abort();
    }
}

// Lets all threads of a block go on.
void Worker::release_barrier(Block* block)
{
    if (launch->check) {
        if (block->exited)
            report("barrier count mismatch: %u threads of block %u have exited while %u wait at the barrier "
                   "at @%x",
                   block->exited, block->index, block->arrived, code_offset(block->site_code));
        for (u32 t = 0; t < block->threads; ++t) {
            Fibre* fibre = block->fibres[t];
            if (!fibre) continue;
            if (!fibre->check->acquired.empty()) {
                block->acquired.join(fibre->check->acquired);
                fibre->check->acquired.clear();
            }
            for (SlotUse& use : fibre->check->uses) use = SlotUse();
        }
        block->epoch++;
    }
    for (u32 i = 0; i < block->warps; ++i) block->warp[i].ready = block->warp[i].live;
    block->arrived = 0;
    block->site = 0;
    block->grid_word = nullptr;
    block->at_grid = false;
    idle_yields = 0;
}

// All threads of the block have arrived.
void Worker::complete_barrier(Block* block)
{
    if (!block->grid_word) {
        release_barrier(block);
        return;
    }
    block->at_grid = true;
    if (++blocks_at_grid < resident.size()) return;
    blocks_at_grid = 0;
    phase++;
    unsigned* word = resident[0]->grid_word;
    for (Block* other : resident)
        if (other->grid_word != word)
            report("barrier mismatch: block %u waits at a global barrier with another word than block %u "
                   "at @%x",
                   other->index, resident[0]->index, code_offset(other->site_code));
    *word ^= 0x80000000u;  // as on the GPU
    for (Block* other : resident) release_barrier(other);
}

void Worker::explain_deadlock()
{
    std::string text = "deadlock: no thread can go on;";
    char line[256];
    u32 shown_blocks = 0;
    for (Block* block : resident) {
        u32 count[4] = {};
        for (u32 t = 0; t < block->threads; ++t)
            if (block->fibres[t]) count[int(block->fibres[t]->waiting)]++;
        if (block->exited == block->threads && ++shown_blocks > 8) continue;
        if (block->exited < block->threads && ++shown_blocks > 16) break;
        snprintf(line, sizeof line,
                 "\n  block %u: %u threads exited, %u at a block barrier, %u in a warp operation, %u at a "
                 "global barrier",
                 block->index, block->exited, count[int(Waiting::block_barrier)], count[int(Waiting::warp)],
                 count[int(Waiting::grid_barrier)]);
        text += line;
        const char* last = nullptr;
        u32 shown = 0;
        for (u32 t = 0; t < block->threads && shown < 4; ++t) {
            Fibre* fibre = block->fibres[t];
            if (!fibre || fibre->waiting == Waiting::nothing || fibre->waits_at == last) continue;
            last = fibre->waits_at;
            ++shown;
            snprintf(line, sizeof line, "\n    block %u thread %u waits at @%x", block->index, t,
                     code_offset(last));
            text += line;
        }
    }
    report("%s", text.c_str());
}

// Runs the resident blocks to their end.
void Worker::drive()
{
    block_number_ = 0;
    block_ = resident[0];
    warp_ = nullptr;
    Choice choice;
    if (!faulted.load() && choose(choice, nullptr)) {
        Fibre* first = claim(choice);
        if (!first) {
            first = take_fibre();
            bind(first, choice);
        }
        current = first;
        astitch_switch_stack(&main_stack_, first->stack_pointer);
        current = nullptr;
    }
    if (!faulted.load()) {
        for (Block* block : resident)
            if (block->exited != block->threads) {
                explain_deadlock();
                break;
            }
    }
    if (faulted.load())
        for (Block* block : resident)
            for (u32 t = 0; t < block->threads; ++t)
                if (Fibre* fibre = block->fibres[t]) {
                    fibre->next_free = free_;
                    free_ = fibre;
                    block->fibres[t] = nullptr;
                }
}

void Worker::run(const Launch& what, std::atomic<u64>& next_block, const std::vector<u32>& block_order)
{
    launch = &what;
    random_state_ = what.seed * 0x9E3779B97F4A7C15ull + 12345;
    plain = what.order == Order::forward;
    phase = blocks_at_grid = 0;
    idle_yields = 0;
    auto index_of = [&](u64 number) {
        return block_order.empty() ? u32(number) : block_order[number];
    };
    if (what.cooperative) {
        for (u32 i = 0; i < what.blocks; ++i) {
            resident.push_back(take_block());
            start_block(resident.back(), index_of(i));
        }
        drive();
    } else {
        resident.push_back(take_block());
        const u64 chunk = std::max<u64>(1, what.blocks / (what.workers * 8));
        for (;;) {
            const u64 first = next_block.fetch_add(chunk);
            if (first >= what.blocks) break;
            for (u64 i = first; i < std::min<u64>(first + chunk, what.blocks) && !faulted.load(); ++i) {
                start_block(resident[0], index_of(i));
                drive();
            }
        }
    }
    for (Block* block : resident) {
        if (what.check) block->shadow.forget();
        pool_.push_back(block);
    }
    resident.clear();
    trim();
}

// ---- waiting ----------------------------------------------------------------------------------------

// The running thread waits: go on with the next ready lane of its warp, or leave it to the scheduler.
inline __attribute__((always_inline)) void wait_here(Fibre* fibre)
{
    Warp* warp = fibre->warp;
    const u32 ready = warp->ready;
    if (LIKELY(ready && fibre->worker->plain)) {
        if (Fibre* next = warp->fibres[lowest(ready)]; LIKELY(next != nullptr)) {
            warp->ready = ready & (ready - 1);
            current = next;
            astitch_switch_stack(&fibre->stack_pointer, next->stack_pointer);
            return;
        }
    }
    fibre->worker->switch_away(fibre);
}

// The running thread arrives at a barrier of its block (grid_word null) or of the grid.
inline __attribute__((always_inline)) void arrive(
    Fibre* fibre, u32 site, unsigned* grid_word, const char* code, Waiting waiting)
{
    Block* block = fibre->block;
    Worker* worker = fibre->worker;
    fibre->waiting = waiting;
    fibre->waits_at = code;
    if (block->arrived && block->site != site) {
        report("divergent barrier: block %u thread %u waits at @%x while other threads of the block wait "
               "at @%x",
               block->index, fibre->position.thread, code_offset(code), code_offset(block->site_code));
        die();
    }
    block->site = site;
    block->site_code = code;
    block->grid_word = grid_word;
    if (++block->arrived != block->threads - block->exited) {
        wait_here(fibre);
    } else {
        worker->complete_barrier(block);
        const u32 bit = 1u << fibre->lane;
        if (worker->plain && (fibre->warp->ready & bit) && !faulted.load(std::memory_order_relaxed))
            fibre->warp->ready &= ~bit;  // released at once: the last to arrive goes on
        else
            worker->switch_away(fibre);
    }
}

NOINLINE u32 check_mask(Fibre* fibre, u32 mask)
{
    const Warp* warp = fibre->warp;
    const u32 lanes = fibre->block->threads - (fibre->position.thread & ~31u);
    const u32 existing = lanes >= 32 ? ~0u : (1u << lanes) - 1;
    const char* problem = !(mask & 1u << fibre->lane)         ? "does not name the calling lane"
                          : mask & existing & ~warp->live ? "names lanes that have exited"
                                                          : nullptr;
    if (problem) {
        report("bad warp mask: block %u thread %u: mask 0x%08x %s (live lanes 0x%08x) at @%x",
               fibre->block->index, fibre->position.thread, mask, problem, warp->live,
               code_offset(fibre->waits_at));
        die();
    }
    return mask & existing;
}

// All lanes of `mask` have arrived: do they mean the same operation?
NOINLINE void check_meeting(Fibre* fibre, u32 mask)
{
    const Warp* warp = fibre->warp;
    const u32 operation = warp->request[fibre->lane] >> 8;
    for (u32 lanes = mask; lanes; lanes &= lanes - 1) {
        const u32 lane = lowest(lanes);
        const Fibre* other = warp->fibres[lane];
        if (warp->mask[lane] != mask || warp->request[lane] >> 8 != operation) {
            report("bad warp mask: block %u: lanes %u and %u of warp %u meet in different warp operations or "
                   "with different masks (0x%08x at @%x, 0x%08x at @%x)",
                   fibre->block->index, fibre->lane, lane, fibre->position.thread / 32, mask,
                   code_offset(fibre->waits_at), warp->mask[lane], code_offset(other->waits_at));
            die();
        }
        const u32 source = warp->request[lane] & 31;
        if (operation < ASTITCH_BALLOT && !(mask >> source & 1)) {
            report("bad warp mask: block %u thread %u reads from lane %u, which is not in mask 0x%08x, at @%x",
                   fibre->block->index, other->position.thread, source, mask, code_offset(other->waits_at));
            die();
        }
    }
}

// __syncwarp: the lanes of the mask have seen each other's accesses.
void order_lanes(Warp* warp, u32 mask)
{
    u32 seen[32] = {};
    Clock acquired;
    for (u32 lanes = mask; lanes; lanes &= lanes - 1) {
        const u32 lane = lowest(lanes);
        ThreadCheck& check = *warp->fibres[lane]->check;
        check.seen[lane] = check.clock;
        for (u32 i = 0; i < 32; ++i) seen[i] = std::max(seen[i], check.seen[i]);
        if (!check.acquired.empty()) acquired.join(check.acquired);
    }
    for (u32 lanes = mask; lanes; lanes &= lanes - 1) {
        ThreadCheck& check = *warp->fibres[lowest(lanes)]->check;
        memcpy(check.seen, seen, sizeof seen);
        if (!acquired.empty()) check.acquired = acquired;
        check.clock++;
    }
}

// The last lane of a warp operation computes everybody's result.
inline __attribute__((always_inline)) void finish_warp_operation(Fibre* fibre, u32 mask, u32 operation)
{
    Warp* warp = fibre->warp;
    if (LIKELY(mask == ~0u && operation < ASTITCH_BALLOT)) {
        u32 different = 0;
        for (int i = 0; i < 32; ++i) different |= (warp->mask[i] ^ mask) | (warp->request[i] >> 8 ^ operation);
        if (different) check_meeting(fibre, mask);
        for (int i = 0; i < 32; ++i) warp->result[i] = warp->value[warp->request[i] & 31];
        return;
    }
    check_meeting(fibre, mask);
    u64 ballot = 0;
    for (u32 lanes = mask; lanes; lanes &= lanes - 1) {
        const u32 lane = lowest(lanes);
        ballot |= (warp->value[lane] & 1) << lane;
        warp->result[lane] = warp->value[warp->request[lane] & 31];
    }
    if (operation == ASTITCH_BALLOT)
        for (u32 lanes = mask; lanes; lanes &= lanes - 1) warp->result[lowest(lanes)] = ballot;
    if (operation == ASTITCH_SYNCWARP && fibre->worker->launch->check) order_lanes(warp, mask);
}

NOINLINE void give_way(Fibre* fibre, const char* code)
{
    Worker* worker = fibre->worker;
    if (++worker->idle_yields > max_idle_yields + u64(16) * worker->resident.size() * worker->launch->threads) {
        report("livelock: threads poll and nothing changes; block %u thread %u polls at @%x%s",
               fibre->block->index, fibre->position.thread, code_offset(code),
               worker->launch->cooperative ? ""
                                           : "\n  blocks are not resident together: the launch is not cooperative");
        die();
    }
    fibre->warp->ready |= 1u << fibre->lane;
    worker->switch_away(fibre, true);
}

// ---- ordering across threads (check mode) -------------------------------------------------------------

std::unordered_map<uintptr_t, Clock> published;  // what was released through an atomic's address

// A fence of the running thread: takes what relaxed atomics have read, offers what was done before.
void fence(Fibre* fibre)
{
    ThreadCheck& check = *fibre->check;
    Block* block = fibre->block;
    if (!check.pending.empty()) {
        check.acquired.join(check.pending);
        check.pending.clear();
    }
    check.released = block->acquired;
    check.released.join(check.acquired);
    check.released.cover_block(block->index, block->epoch);
    const u32 warp_key = fibre->thread_key() & ~31u;
    for (u32 lane = 0; lane < 32; ++lane)
        if (check.seen[lane]) check.released.cover_thread(warp_key | lane, check.seen[lane]);
    check.released.cover_thread(fibre->thread_key(), check.clock);
    check.clock++;
}

void order_atomic(Fibre* fibre, const void* address, bool reads, bool writes, u32 order)
{
    ThreadCheck& check = *fibre->check;
    if (order & ASTITCH_RELEASE) fence(fibre);
    const uintptr_t key = reinterpret_cast<uintptr_t>(address);
    if (reads)
        if (auto it = published.find(key); it != published.end())
            (order & ASTITCH_ACQUIRE ? check.acquired : check.pending).join(it->second);
    if (writes && !check.released.empty()) published[key].join(check.released);
}

bool covered_by(const Clock& clock, const Access& access)
{
    const u32 block = access.thread >> 10;
    if (block < clock.epoch_of_block.size() && clock.epoch_of_block[block] > access.epoch) return true;
    auto it = clock.clock_of_thread.find(access.thread);
    return it != clock.clock_of_thread.end() && it->second >= access.clock;
}

bool acquired(const Fibre* fibre, const Access& access)
{
    return covered_by(fibre->block->acquired, access) || covered_by(fibre->check->acquired, access);
}

// Is an earlier access ordered before what the running thread does now?
bool ordered(const Fibre* fibre, const Access& access)
{
    const u32 key = fibre->thread_key();
    if (access.thread == key || access.phase != fibre->worker->phase) return true;
    if ((access.thread ^ key) >> 10) return acquired(fibre, access);
    if (access.epoch != fibre->block->epoch) return true;
    if (!((access.thread ^ key) >> 5) && fibre->check->seen[access.thread & 31] >= access.clock) return true;
    return acquired(fibre, access);
}

// The same for all readers that a cell's kept one stands for.
bool readers_ordered(const Fibre* fibre, const Cell& cell)
{
    const Access& read = cell.read;
    if (!read.happened() || read.phase != fibre->worker->phase) return true;
    const Block* block = fibre->block;
    const u32 key = fibre->thread_key();
    const bool same_block = !((read.thread ^ key) >> 10);
    switch (cell.readers) {
    case Readers::lanes:
        for (u32 lanes = cell.read_lanes; lanes; lanes &= lanes - 1) {
            Access one = read;
            one.thread = (read.thread & ~31u) | lowest(lanes);
            if (!ordered(fibre, one)) return false;
        }
        return true;
    case Readers::warps:
        if (same_block) return read.epoch != block->epoch;
        for (const Clock* clock : {&block->acquired, const_cast<const Clock*>(&fibre->check->acquired)})
            if ((read.thread >> 10) < clock->epoch_of_block.size() &&
                clock->epoch_of_block[read.thread >> 10] > read.epoch)
                return true;
        return false;
    case Readers::blocks:
        // Which blocks is not recorded: demand that the thread has heard from all.
        for (u32 b = 0; b < fibre->position.blocks; ++b) {
            if (b == block->index) continue;
            const bool heard = (b < block->acquired.epoch_of_block.size() && block->acquired.epoch_of_block[b]) ||
                               (b < fibre->check->acquired.epoch_of_block.size() &&
                                fibre->check->acquired.epoch_of_block[b]);
            if (!heard) return false;
        }
        return !same_block || read.epoch != block->epoch || read.thread == key;
    }
    return true;
}

// ---- checking accesses ------------------------------------------------------------------------------

std::vector<Region*> regions;  // sorted by address
u64 launches = 0;

const char* verb(bool writes, bool atomic) { return atomic ? "atomic access" : writes ? "write" : "read"; }

[[noreturn]] NOINLINE void report_race(
    Fibre* fibre, const std::string& what, const Access& earlier, bool earlier_writes, bool writes, bool atomic,
    u32 code)
{
    report("race on %s: nothing orders these two\n  %s by block %u thread %u at @%x\n  %s by block %u thread %u "
           "at @%x",
           what.c_str(), verb(earlier_writes, earlier.atomic), earlier.thread >> 10, earlier.thread & 1023,
           earlier.code, verb(writes, atomic), fibre->block->index, fibre->position.thread, code);
    die();
}

[[noreturn]] NOINLINE void report_access(
    Fibre* fibre, const char* kind, const std::string& what, size_t bytes, bool writes, u32 code)
{
    report("%s: %s\n  %zu-byte %s by block %u thread %u at @%x", kind, what.c_str(), bytes,
           writes ? "write" : "read", fibre->block->index, fibre->position.thread, code);
    die();
}

// Makes `now` the kept reader of a cell, and widens what it stands for by readers not ordered before it.
void note_reader(const Fibre* fibre, Cell& cell, Access now)
{
    const Access& kept = cell.read;
    const u32 lane = 1u << fibre->lane;
    const bool same_block = !((kept.thread ^ now.thread) >> 10), same_warp = !((kept.thread ^ now.thread) >> 5);
    // Is every reader so far ordered before this one, so that it may stand alone?
    bool alone = !kept.happened() || kept.phase != now.phase;
    if (!alone && same_block) alone = cell.readers != Readers::blocks && kept.epoch != now.epoch;
    if (!alone && (!same_block || (same_warp && cell.readers == Readers::lanes)))
        alone = readers_ordered(fibre, cell);

    if (alone) {
        cell.readers = Readers::lanes;
        cell.read_lanes = lane;
    } else if (!same_block) {
        cell.readers = Readers::blocks;
    } else if (cell.readers == Readers::lanes && same_warp) {
        cell.read_lanes |= lane;
        // One clock stands for all lanes: the oldest, which may miss a race but invents none.
        now.clock = std::min(kept.clock, now.clock);
    } else if (cell.readers == Readers::lanes) {
        cell.readers = Readers::warps;
    }
    cell.read = now;
}

// Records an access to a cell; `what` names the place when a message needs it.
template <class Name>
void touch(Fibre* fibre, Cell& cell, bool writes, bool atomic, u32 code, Name&& what)
{
    const Access now = {fibre->thread_key(), fibre->block->epoch, fibre->check->clock, fibre->worker->phase, code,
                        atomic};
    if (cell.write.happened() && !(atomic && cell.write.atomic) && !ordered(fibre, cell.write))
        report_race(fibre, what(), cell.write, true, writes, atomic, code);
    if (writes) {
        if (!(atomic && cell.read.atomic) && !readers_ordered(fibre, cell))
            report_race(fibre, what(), cell.read, false, writes, atomic, code);
        cell.write = now;
        cell.read = Access();
        cell.read_lanes = 0;
        cell.readers = Readers::lanes;
        return;
    }
    note_reader(fibre, cell, now);
}

const astitch_slot* slot_of(const Fibre* fibre, uintptr_t address)
{
    const ThreadCheck& check = *fibre->check;
    for (u32 i = 1; i <= 8; ++i) {
        const SlotUse& use = check.uses[(check.next_use - i) & 7];
        if (use.low <= address && address < use.high) return use.slot;
    }
    return nullptr;
}

std::string name_shared(const Fibre* fibre, const astitch_slot* slot, uintptr_t address)
{
    const u64 offset = address - reinterpret_cast<uintptr_t>(fibre->block->shared);
    char text[256];
    if (slot && offset >= slot->offset && slot->element_bytes)
        snprintf(text, sizeof text, "shared '%s'[%llu]", slot->name,
                 (unsigned long long)(offset - slot->offset) / slot->element_bytes);
    else
        snprintf(text, sizeof text, "shared memory at byte %llu", (unsigned long long)offset);
    return text;
}

void check_shared(Fibre* fibre, uintptr_t address, size_t bytes, bool writes, bool atomic, u32 code)
{
    Block* block = fibre->block;
    const astitch_slot* slot = slot_of(fibre, address);
    block->shadow.visit(address, bytes, [&](Cell& cell, uintptr_t at) {
        auto name = [&] { return name_shared(fibre, slot, at); };
        if (!writes || atomic) {
            if (!cell.write.happened())
                report_access(fibre, "uninitialised read", name() + " was not written before by this block", bytes, false,
                              code);
            if (slot && cell.slot && slot != cell.slot && strcmp(slot->name, cell.slot->name)) {
                char text[512];
                snprintf(text, sizeof text,
                         "%s holds what was written through slot '%s' by block %u thread %u at @%x", name().c_str(),
                         cell.slot->name, cell.write.thread >> 10, cell.write.thread & 1023, cell.write.code);
                report_access(fibre, "overwritten slot", text, bytes, false, code);
            }
        }
        touch(fibre, cell, writes, atomic, code, name);
        if (writes) cell.slot = slot;
    });
}

void check_region(Fibre* fibre, Region& region, uintptr_t address, size_t bytes, bool writes, bool atomic, u32 code)
{
    auto name = [&](uintptr_t at) {
        return "'" + region.name + "'[" + std::to_string((at - region.low) / region.element_bytes) + "]";
    };
    if (address + bytes > region.high) {
        report_access(fibre, "out of bounds",
                      "the access reaches " + std::to_string(address + bytes - region.high) +
                          " bytes past the end of '" + region.name + "' (" +
                          std::to_string((region.high - region.low) / region.element_bytes) + " elements)",
                      bytes, writes, code);
    }
    if (region.is_const) {  // nobody can write it, so reads need no record
        if (writes)
            report_access(fibre, "write to const", name(address) + " is a parameter to const", bytes, true, code);
        return;
    }
    region.shadow.visit(address, bytes, [&](Cell& cell, uintptr_t at) {
        if (region.uninitialised && (!writes || atomic) && !cell.write.happened())
            report_access(fibre, "uninitialised read", name(at) + " has not been written", bytes, false, code);
        touch(fibre, cell, writes, atomic, code, [&] { return name(at); });
    });
}

[[noreturn]] NOINLINE void report_wild(Fibre* fibre, uintptr_t address, size_t bytes, bool writes, u32 code)
{
    const uintptr_t shared = reinterpret_cast<uintptr_t>(fibre->block->shared);
    const u32 shared_bytes = fibre->worker->launch->shared_bytes;
    std::string what;
    uintptr_t nearest = ~uintptr_t(0);
    auto consider = [&](uintptr_t low, uintptr_t high, u32 element_bytes, const std::string& name) {
        const uintptr_t distance = address < low ? low - address : address - high;
        if (distance >= nearest) return;
        nearest = distance;
        const std::string size = " (" + std::to_string((high - low) / element_bytes) + " elements)";
        what = address < low ? std::to_string(distance) + " bytes before the start of '" + name + "'" + size
                             : std::to_string(distance) + " bytes past the end of '" + name + "'" + size +
                                   ", element " + std::to_string((address - low) / element_bytes);
    };
    for (const Region* region : regions) consider(region->low, region->high, region->element_bytes, region->name);
    if (shared_bytes) consider(shared, shared + shared_bytes, 1, "shared memory");
    if (what.empty()) what = "the address belongs to no argument";
    report_access(fibre, "out of bounds", what, bytes, writes, code);
}

Region* find_region(uintptr_t address)
{
    static Region* last = nullptr;  // checking runs in one OS thread
    static u64 last_launch = 0;
    if (last_launch == launches && last && address >= last->low && address < last->high) return last;
    auto it = std::upper_bound(regions.begin(), regions.end(), address,
                               [](uintptr_t value, const Region* region) { return value < region->low; });
    if (it == regions.begin() || address >= (*--it)->high) return nullptr;
    last_launch = launches;
    return last = *it;
}

NOINLINE void check_access(
    const void* pointer, size_t bytes, bool writes, bool atomic, const void* caller, bool may_be_misaligned = false)
{
    Fibre* fibre = current;
    if (!fibre || !fibre->check || bytes == 0) return;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (address - reinterpret_cast<uintptr_t>(fibre->stack) < stack_bytes) return;  // the thread's own variables
    const u32 code = code_offset(caller);
    if (!may_be_misaligned && bytes > 1 && bytes <= 16 && !(bytes & (bytes - 1)) && (address & (bytes - 1)))
        report_access(fibre, "misaligned access", "the address is not a multiple of the size (a GPU faults)", bytes,
                      writes, code);
    const u64 offset = address - reinterpret_cast<uintptr_t>(fibre->block->shared);
    const u32 shared_bytes = fibre->worker->launch->shared_bytes;
    if (offset < shared_bytes) {
        if (offset + bytes > shared_bytes) report_wild(fibre, address + bytes - 1, bytes, writes, code);
        check_shared(fibre, address, bytes, writes, atomic, code);
    } else if (Region* region = find_region(address)) {
        check_region(fibre, *region, address, bytes, writes, atomic, code);
    } else if (address < module_low || address >= module_high || writes) {  // the module: constant tables
        report_wild(fibre, address, bytes, writes, code);
    }
}

// ---- atomics ----------------------------------------------------------------------------------------

// Before an atomic: the checks.  After it: has something changed, or does the thread poll?
void before_atomic(Fibre* fibre, const void* address, size_t bytes, bool writes, u32 order, const char* code)
{
    if (fibre->worker->launch->check) {
        check_access(address, bytes, writes, true, code);
        order_atomic(fibre, address, true, writes, order);
    }
}
void after_atomic(Fibre* fibre, const void* address, u64 before, u64 after, const char* code)
{
    if (before != after) {
        fibre->worker->idle_yields = 0;
        fibre->polled = nullptr;
        return;
    }
    const unsigned* word = static_cast<const unsigned*>(address);
    if (fibre->polled == word && fibre->polled_value == before) {
        give_way(fibre, code);
    }
    fibre->polled = word;
    fibre->polled_value = before;
}

// Bits: the unsigned type of T's size.
template <class T, class Bits, class Change>
T change_atomically(T* address, u32 order, const char* code, Change change)
{
    static_assert(sizeof(T) == sizeof(Bits));
    Fibre* fibre = current;
    before_atomic(fibre, address, sizeof(T), true, order, code);
    Bits* word = reinterpret_cast<Bits*>(address);
    Bits before = __atomic_load_n(word, __ATOMIC_SEQ_CST), after;
    T old_value, new_value;
    do {
        memcpy(&old_value, &before, sizeof(T));
        new_value = change(old_value);
        memcpy(&after, &new_value, sizeof(T));
    } while (!__atomic_compare_exchange_n(word, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    after_atomic(fibre, address, before, after, code);
    return old_value;
}

}  // namespace

// ---- what kernels call ------------------------------------------------------------------------------

extern "C" {

astitch_position astitch_where() { return current->position; }
unsigned char* astitch_shared_base() { return current->block->shared; }

void astitch_declare_arena(unsigned long bytes)
{
    Fibre* fibre = current;
    if (LIKELY(bytes <= fibre->worker->launch->shared_bytes)) return;
    report("too little shared memory: the kernel's arena has %lu bytes, the launch gives %u, at @%x", bytes,
           fibre->worker->launch->shared_bytes, code_offset(CALLER));
    die();
}

void astitch_block_barrier(unsigned site) { arrive(current, site, nullptr, CALLER, Waiting::block_barrier); }

void astitch_grid_barrier(unsigned* word, unsigned site)
{
    Fibre* fibre = current;
    const char* code = CALLER;
    const char* problem = nullptr;
    if (fibre->worker->launch->check && fibre->position.thread == 0)
        check_access(word, sizeof *word, true, true, code);
    if (!fibre->worker->launch->cooperative)
        problem = "in a launch that is not cooperative: its blocks may not be resident together";
    else if (*word & 0x7fffffffu)
        problem = "whose word does not start at zero";
    if (problem) {
        report("bad global barrier: block %u thread %u waits at a global barrier %s, at @%x", fibre->block->index,
               fibre->position.thread, problem, code_offset(code));
        die();
    }
    arrive(fibre, site, word, code, Waiting::grid_barrier);
}

const unsigned long long* astitch_warp_result()
{
    return reinterpret_cast<unsigned long long*>(&current->warp->result[current->lane]);
}

unsigned long long astitch_load_warp_result() { return *astitch_warp_result(); }

void astitch_warp_exchange(unsigned mask, unsigned long long value, unsigned source_lane, unsigned operation)
{
    Fibre* fibre = current;
    Warp* warp = fibre->warp;
    const u32 lane = fibre->lane, bit = 1u << lane;
    fibre->waits_at = CALLER;
    if (!LIKELY((mask & bit) && !(mask & ~warp->live))) mask = check_mask(fibre, mask);
    warp->value[lane] = value;
    warp->request[lane] = (source_lane & 31) | operation << 8;
    warp->mask[lane] = mask;
    const u32 arrived = warp->arrived | bit;
    if ((arrived & mask) != mask) {
        warp->arrived = arrived;
        fibre->waiting = Waiting::warp;
        wait_here(fibre);
    } else {
        finish_warp_operation(fibre, mask, operation);
        warp->arrived = arrived & ~mask;
        warp->ready |= mask & ~bit;
        if (fibre->worker->launch->order == Order::random) {
            warp->ready |= bit;
            fibre->worker->switch_away(fibre);
        }
    }
}

void astitch_fence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (current->worker->launch->check) fence(current);
}

void astitch_pause() { give_way(current, CALLER); }

void astitch_trap(const char* what)
{
    report("trap: %s by block %u thread %u at @%x", what, current->block->index, current->position.thread,
           code_offset(CALLER));
    die();
}

unsigned astitch_atomic_load(const unsigned* address, unsigned order)
{
    Fibre* fibre = current;
    const char* code = CALLER;
    before_atomic(fibre, address, sizeof *address, false, order, code);
    const unsigned value = __atomic_load_n(address, __ATOMIC_SEQ_CST);
    after_atomic(fibre, address, value, value, code);
    return value;
}
void astitch_atomic_store(unsigned* address, unsigned value, unsigned order)
{
    Fibre* fibre = current;
    if (fibre->worker->launch->check) {
        check_access(address, sizeof *address, true, true, CALLER);
        order_atomic(fibre, address, false, true, order);
    }
    __atomic_store_n(address, value, __ATOMIC_SEQ_CST);
    fibre->worker->idle_yields = 0;
}
unsigned astitch_atomic_add(unsigned* address, unsigned value, unsigned order)
{
    return change_atomically<u32, u32>(address, order, CALLER, [=](u32 old) { return old + value; });
}
unsigned long long astitch_atomic_add_long(unsigned long long* address, unsigned long long value)
{
    return change_atomically<unsigned long long, u64>(address, ASTITCH_RELAXED, CALLER,
                                                      [=](unsigned long long old) { return old + value; });
}
float astitch_atomic_add_float(float* address, float value)
{
    return change_atomically<float, u32>(address, ASTITCH_RELAXED, CALLER, [=](float old) { return old + value; });
}
double astitch_atomic_add_double(double* address, double value)
{
    return change_atomically<double, u64>(address, ASTITCH_RELAXED, CALLER, [=](double old) { return old + value; });
}
unsigned astitch_atomic_exchange(unsigned* address, unsigned value)
{
    return change_atomically<u32, u32>(address, ASTITCH_RELAXED, CALLER, [=](u32) { return value; });
}
unsigned astitch_atomic_compare_exchange(unsigned* address, unsigned expected, unsigned value)
{
    return change_atomically<u32, u32>(address, ASTITCH_RELAXED, CALLER,
                                       [=](u32 old) { return old == expected ? value : old; });
}
unsigned astitch_atomic_extreme(unsigned* address, unsigned value, unsigned is_max, unsigned is_signed)
{
    return change_atomically<u32, u32>(address, ASTITCH_RELAXED, CALLER, [=](u32 old) {
        const bool old_is_less = is_signed ? int(old) < int(value) : old < value;
        return old_is_less == bool(is_max) ? value : old;
    });
}

void* astitch_slot_address(const astitch_slot* slot, long index, unsigned count)
{
    Fibre* fibre = current;
    u8* address = fibre->block->shared + slot->offset + index * long(slot->element_bytes);
    if (index < 0 || index + long(count) > long(slot->count)) {
        report("out of bounds: shared '%s' has %u elements, access to element %ld%s\n  by block %u thread %u at @%x",
               slot->name, slot->count, index, count > 1 ? " and following" : "", fibre->block->index,
               fibre->position.thread, code_offset(CALLER));
        die();
    }
    const size_t bytes = size_t(count) * slot->element_bytes;
    if (count > 1 && reinterpret_cast<uintptr_t>(address) % bytes) {
        report("misaligned access: shared '%s'[%ld] is not aligned to %zu bytes (a GPU faults)\n  by block %u thread "
               "%u at @%x",
               slot->name, index, bytes, fibre->block->index, fibre->position.thread, code_offset(CALLER));
        die();
    }
    ThreadCheck& check = *fibre->check;
    const uintptr_t low = reinterpret_cast<uintptr_t>(address);
    check.uses[check.next_use++ & 7] = {low, low + bytes, slot};
    return address;
}

// ---- what emulate.py calls ----------------------------------------------------------------------------

struct astitch_argument {
    void* address;
    u64 bytes;
    u32 element_bytes, is_const, uninitialised;
    const char* name;
};

}  // extern "C"

namespace {

// OS threads that wait for launches.  Never destroyed: they sleep until the process ends.
struct Pool {
    std::mutex lock;
    std::condition_variable wake, done;
    u64 generation = 0;
    u32 wanted = 0, pending = 0, threads = 0;
    std::function<void(Worker&)> work;
    pid_t process = getpid();

    void serve(u32 number)
    {
        Worker worker;
        u64 seen = 0;
        for (;;) {
            {
                std::unique_lock<std::mutex> guard(lock);
                wake.wait(guard, [&] { return generation != seen; });
                seen = generation;
                if (number > wanted) continue;
            }
            work(worker);
            std::lock_guard<std::mutex> guard(lock);
            if (--pending == 0) done.notify_one();
        }
    }
};

std::mutex launch_lock;

void forget_arguments()
{
    for (Region* region : regions) delete region;
    regions.clear();
}

void describe_arguments(const astitch_argument* arguments, u32 count)
{
    std::vector<const astitch_argument*> sorted;
    for (u32 i = 0; i < count; ++i)
        if (arguments[i].bytes) sorted.push_back(&arguments[i]);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](auto* a, auto* b) { return a->address < b->address; });
    for (const astitch_argument* argument : sorted) {
        const uintptr_t low = reinterpret_cast<uintptr_t>(argument->address), high = low + argument->bytes;
        if (!regions.empty() && low < regions.back()->high) {  // two arguments in the same memory
            Region& region = *regions.back();
            region.high = std::max(region.high, high);
            region.is_const &= bool(argument->is_const);
            region.uninitialised &= bool(argument->uninitialised);
            region.name += std::string("/") + argument->name;
            continue;
        }
        Region* region = new Region{low, high, std::max(argument->element_bytes, 1u), bool(argument->is_const),
                                    bool(argument->uninitialised), argument->name, {}};
        regions.push_back(region);
    }
    for (Region* region : regions) region->shadow.cover(region->low, region->high);
}

void find_module(const astitch_kernel* kernel)
{
    Dl_info info;
    if (!dladdr(kernel, &info)) return;
    module_low = reinterpret_cast<uintptr_t>(info.dli_fbase);
    module_high = module_low;
    dl_iterate_phdr(
        [](dl_phdr_info* image, size_t, void*) {
            if (image->dlpi_addr != module_low) return 0;
            for (int i = 0; i < image->dlpi_phnum; ++i)
                if (image->dlpi_phdr[i].p_type == PT_LOAD)
                    module_high = std::max<uintptr_t>(
                        module_high, module_low + image->dlpi_phdr[i].p_vaddr + image->dlpi_phdr[i].p_memsz);
            return 1;
        },
        nullptr);
}

}  // namespace

// Runs one launch.  Returns 0, or 1 with the fault's text in `message`.
extern "C" int astitch_launch(
    const astitch_kernel* kernel, void** pointers, u32 blocks, u32 threads, u32 shared_bytes, u32 cooperative,
    u32 check, u32 order, u64 seed, u32 workers, const astitch_argument* arguments, u32 argument_count, char* message,
    u32 message_bytes)
{
    std::lock_guard<std::mutex> guard(launch_lock);
    static Worker* own_worker = new Worker();
    static Pool* pool = new Pool();

    Launch launch = {kernel, pointers, blocks, threads, shared_bytes, bool(cooperative), bool(check), Order(order),
                     seed, std::min(workers, blocks)};
    // The checker and the random order keep one history; a cooperative launch one set of resident blocks.
    if (launch.cooperative || launch.check || launch.order == Order::random) launch.workers = 1;
    std::vector<u32> block_order;
    if (launch.order != Order::forward) {
        for (u32 i = 0; i < blocks; ++i) block_order.push_back(blocks - 1 - i);
        u64 state = seed * 2 + 1;
        if (launch.order == Order::random)
            for (u32 i = blocks; i > 1; --i) {
                state = state * 6364136223846793005ull + 1442695040888963407ull;
                std::swap(block_order[i - 1], block_order[(state >> 33) % i]);
            }
    }
    faulted.store(false);
    published.clear();
    find_module(kernel);
    launches++;
    if (launch.check) describe_arguments(arguments, argument_count);

    std::atomic<u64> next_block{0};
    auto work = [&](Worker& worker) { worker.run(launch, next_block, block_order); };
    if (launch.workers > 1) {
        if (pool->process != getpid()) pool = new Pool();  // after a fork the threads are gone
        while (pool->threads < launch.workers - 1) std::thread(&Pool::serve, pool, ++pool->threads).detach();
        {
            std::lock_guard<std::mutex> pool_guard(pool->lock);
            pool->work = work;
            pool->wanted = pool->pending = launch.workers - 1;
            pool->generation++;
        }
        pool->wake.notify_all();
    }
    work(*own_worker);
    if (launch.workers > 1) {
        std::unique_lock<std::mutex> pool_guard(pool->lock);
        pool->done.wait(pool_guard, [&] { return pool->pending == 0; });
    }
    if (launch.check) forget_arguments();
    if (!faulted.load()) return 0;
    snprintf(message, message_bytes, "%s", fault_text.c_str());
    return 1;
}

// ---- the sanitizers' hooks ----------------------------------------------------------------------------

extern "C" {

#define HOOKS(bytes) \
    void __tsan_read##bytes(void* p) { check_access(p, bytes, false, false, CALLER); } \
    void __tsan_write##bytes(void* p) { check_access(p, bytes, true, false, CALLER); } \
    void __tsan_volatile_read##bytes(void* p) { check_access(p, bytes, false, true, CALLER); } \
    void __tsan_volatile_write##bytes(void* p) { check_access(p, bytes, true, true, CALLER); } \
    void __tsan_unaligned_read##bytes(void* p) { check_access(p, bytes, false, false, CALLER, true); } \
    void __tsan_unaligned_write##bytes(void* p) { check_access(p, bytes, true, false, CALLER, true); } \
    void __tsan_unaligned_volatile_read##bytes(void* p) { check_access(p, bytes, false, true, CALLER, true); } \
    void __tsan_unaligned_volatile_write##bytes(void* p) { check_access(p, bytes, true, true, CALLER, true); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, unsigned long bytes) { check_access(p, bytes, false, false, CALLER, true); }
void __tsan_write_range(void* p, unsigned long bytes) { check_access(p, bytes, true, false, CALLER, true); }
void __tsan_vptr_update(void**, void*) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}

// What -fsanitize=bounds,alignment,.. calls and expects not to return.
#define UNDEFINED(name, kind, text) \
    void __ubsan_handle_##name##_abort(void*, u64, u64) \
    { \
        if (!current) abort(); \
        report(kind ": " text "\n  by block %u thread %u at @%x", current->block->index, current->position.thread, \
               code_offset(CALLER)); \
        die(); \
    }
UNDEFINED(out_of_bounds, "out of bounds", "index outside a local array")
UNDEFINED(type_mismatch_v1, "misaligned access", "the address is not a multiple of the type's alignment (a GPU faults)")
UNDEFINED(shift_out_of_bounds, "bad shift", "shift by a negative count or by the width of the type and more")
UNDEFINED(divrem_overflow, "division", "integer division by zero, or of the smallest integer by -1")

}  // extern "C"
