// CUDA C++, as far as emitted text uses it, for the host compiler (forced in before the kernel text).
//
// One kernel text has one meaning: this file gives g++ the words that NVRTC knows by itself.  Everything
// that waits, and every atomic, is a function of host_runtime.cpp, which runs each CUDA thread as a fibre;
// here are only thin inline wrappers.  No standard header: they would cost more than the kernel itself.
//
// ASTITCH_CHECK: compiled for check mode; slots of shared memory carry their bounds.
// ASTITCH_HOST_RUNTIME: included by the runtime, which needs only the first section.
#pragma once

// ---- what kernel modules and the runtime agree on -----------------------------------------------------

// Where the running thread is.  Two registers, so asking for it costs one call a function.
struct astitch_position { unsigned thread, block, threads, blocks; };

// A declared slot of shared memory.
struct astitch_slot { const char* name; unsigned offset, count, element_bytes; };

// What a kernel module exports for each kernel: how to call it, and which parameters point to const.
struct astitch_kernel {
    void (*call)(void** arguments);
    unsigned parameters;
    const bool* parameter_is_const;
};

enum astitch_warp_operation : unsigned {
    ASTITCH_SHUFFLE_XOR, ASTITCH_SHUFFLE_DOWN, ASTITCH_SHUFFLE_UP, ASTITCH_SHUFFLE_INDEX,
    ASTITCH_BALLOT, ASTITCH_SYNCWARP,
};
enum astitch_memory_order : unsigned { ASTITCH_RELAXED = 0, ASTITCH_ACQUIRE = 1, ASTITCH_RELEASE = 2 };

extern "C" {
// "const": a thread stays where it is while a kernel function runs, so g++ may ask once and keep the answer.
astitch_position astitch_where() __attribute__((const));
unsigned char* astitch_shared_base() __attribute__((const));
// Where an exchange leaves its result.  The exchange itself returns nothing, because a switch of stacks is
// cheapest as the last thing that it does.
const unsigned long long* astitch_warp_result() __attribute__((const));
unsigned long long astitch_load_warp_result();

void astitch_declare_arena(unsigned long bytes);
void astitch_block_barrier(unsigned site);
void astitch_grid_barrier(unsigned* word, unsigned site);
void astitch_warp_exchange(unsigned mask, unsigned long long value, unsigned source_lane, unsigned operation);
void astitch_fence();
void astitch_pause();
void astitch_trap(const char* what);

unsigned astitch_atomic_load(const unsigned* address, unsigned order);
void astitch_atomic_store(unsigned* address, unsigned value, unsigned order);
unsigned astitch_atomic_add(unsigned* address, unsigned value, unsigned order);
unsigned long long astitch_atomic_add_long(unsigned long long* address, unsigned long long value);
float astitch_atomic_add_float(float* address, float value);
double astitch_atomic_add_double(double* address, double value);
unsigned astitch_atomic_exchange(unsigned* address, unsigned value);
unsigned astitch_atomic_compare_exchange(unsigned* address, unsigned expected, unsigned value);
unsigned astitch_atomic_extreme(unsigned* address, unsigned value, unsigned is_max, unsigned is_signed);

// Check mode: the address of elements [index, index + count) of a slot, after checking that they exist.
void* astitch_slot_address(const astitch_slot* slot, long index, unsigned count);
}

#ifndef ASTITCH_HOST_RUNTIME

#define ASTITCH_HOST 1

// ---- language ---------------------------------------------------------------------------------------

typedef __SIZE_TYPE__ size_t;

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) alignas(bytes)
#define __shared__ _Pragma("GCC error \"__shared__ is not emulated: declare slots with ASTITCH_SHARED\"")
#define warpSize 32

#define ASTITCH_INLINE static inline __attribute__((always_inline, unused))

struct astitch_index { unsigned x, y, z; };
#define threadIdx (astitch_index{astitch_where().thread, 0u, 0u})
#define blockIdx (astitch_index{astitch_where().block, 0u, 0u})
#define blockDim (astitch_index{astitch_where().threads, 1u, 1u})
#define gridDim (astitch_index{astitch_where().blocks, 1u, 1u})

#define __trap() astitch_trap("__trap()")
#define assert(condition) ((condition) ? (void)0 : astitch_trap("assert(" #condition ")"))

// ---- shared memory ------------------------------------------------------------------------------------

#ifdef ASTITCH_CHECK
// Stands for the pointer that a slot is in fast mode and on the GPU.
template <class T> struct astitch_checked_slot {
    const astitch_slot* slot;
    long first;

    template <class Index> __forceinline__ T& operator[](Index i) const
    {
        return *static_cast<T*>(astitch_slot_address(slot, first + long(i), 1));
    }
    template <class Index> __forceinline__ astitch_checked_slot operator+(Index i) const
    {
        return {slot, first + long(i)};
    }
    // A plain pointer: from here on only the arena's bounds are checked.
    __forceinline__ operator T*() const
    {
        return reinterpret_cast<T*>(astitch_shared_base() + slot->offset) + first;
    }
};
template <class T, class Index>
ASTITCH_INLINE T* astitch_vector_address(astitch_checked_slot<T> slot, Index i, unsigned count)
{
    return static_cast<T*>(astitch_slot_address(slot.slot, slot.first + long(i), count));
}
#define ASTITCH_SLOT_VALUE(T, name) \
    const astitch_checked_slot<T> name = {&astitch_slot_of_##name, 0}
#else
#define ASTITCH_SLOT_VALUE(T, name) \
    T* const name = reinterpret_cast<T*>(astitch_shared_base() + astitch_slot_of_##name.offset)
#endif

#define ASTITCH_SHARED_ARENA(bytes) \
    static constexpr unsigned long astitch_arena_bytes = (bytes); \
    astitch_declare_arena(astitch_arena_bytes)

#define ASTITCH_STATIC_ARENA(bytes) ASTITCH_SHARED_ARENA(bytes)

#define ASTITCH_SHARED(T, name, offset_bytes, elements) \
    static constexpr astitch_slot astitch_slot_of_##name = { \
        #name, unsigned(offset_bytes), unsigned(elements), unsigned(sizeof(T))}; \
    static_assert((offset_bytes) % alignof(T) == 0, "shared slot " #name " is misaligned"); \
    static_assert((unsigned long)(offset_bytes) + (unsigned long)(elements) * sizeof(T) \
                      <= astitch_arena_bytes, \
                  "shared slot " #name " does not fit in the arena"); \
    ASTITCH_SLOT_VALUE(T, name)

// ---- barriers and warps ---------------------------------------------------------------------------------

// A textual barrier keeps one number through inlining and unrolling; threads that meet must agree on it.
#define ASTITCH_SITE (unsigned(__COUNTER__) << 16 | (__LINE__ & 0xffff))
#define __syncthreads() astitch_block_barrier(ASTITCH_SITE)
#define ASTITCH_GLOBAL_BARRIER(word) astitch_grid_barrier((word), ASTITCH_SITE)
#define ASTITCH_CLUSTER_BARRIER(word) astitch_grid_barrier((word), ASTITCH_SITE)

#ifdef ASTITCH_CHECK
#define ASTITCH_WARP_RESULT astitch_load_warp_result()  // out of the watched text
#else
#define ASTITCH_WARP_RESULT *astitch_warp_result()
#endif
template <class T> ASTITCH_INLINE T astitch_shuffle(unsigned mask, T value, int source, unsigned operation)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    astitch_warp_exchange(mask, bits, unsigned(source), operation);
    bits = ASTITCH_WARP_RESULT;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}
// A source outside the lane's segment of `width` lanes gives the lane its own value, as in CUDA.
template <class T> ASTITCH_INLINE T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    const int lane = int(astitch_where().thread & 31), source = lane ^ lanes;
    const bool beyond = (source & ~(width - 1)) > (lane & ~(width - 1));
    return astitch_shuffle(mask, value, beyond ? lane : source, ASTITCH_SHUFFLE_XOR);
}
template <class T> ASTITCH_INLINE T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const int lane = int(astitch_where().thread & 31), source = lane + int(by);
    const bool beyond = source >= (lane & ~(width - 1)) + width;
    return astitch_shuffle(mask, value, beyond ? lane : source, ASTITCH_SHUFFLE_DOWN);
}
template <class T> ASTITCH_INLINE T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32)
{
    const int lane = int(astitch_where().thread & 31), source = lane - int(by);
    const bool beyond = source < (lane & ~(width - 1));
    return astitch_shuffle(mask, value, beyond ? lane : source, ASTITCH_SHUFFLE_UP);
}
template <class T> ASTITCH_INLINE T __shfl_sync(unsigned mask, T value, int index, int width = 32)
{
    const int lane = int(astitch_where().thread & 31);
    const int source = (lane & ~(width - 1)) + (index & (width - 1));
    return astitch_shuffle(mask, value, source, ASTITCH_SHUFFLE_INDEX);
}
ASTITCH_INLINE unsigned __ballot_sync(unsigned mask, int predicate)
{
    astitch_warp_exchange(mask, predicate != 0, 0, ASTITCH_BALLOT);
    return unsigned(ASTITCH_WARP_RESULT);
}
ASTITCH_INLINE int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
ASTITCH_INLINE int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
ASTITCH_INLINE void __syncwarp(unsigned mask = 0xffffffffu)
{
    astitch_warp_exchange(mask, 0, astitch_where().thread & 31, ASTITCH_SYNCWARP);
}

// ---- memory -----------------------------------------------------------------------------------------

ASTITCH_INLINE void __threadfence() { astitch_fence(); }
ASTITCH_INLINE void __threadfence_block() { astitch_fence(); }
ASTITCH_INLINE void __nanosleep(unsigned) { astitch_pause(); }

ASTITCH_INLINE unsigned astitch_load_acquire(const unsigned* word)
{
    return astitch_atomic_load(word, ASTITCH_ACQUIRE);
}
ASTITCH_INLINE unsigned astitch_load_relaxed(const unsigned* word)
{
    return astitch_atomic_load(word, ASTITCH_RELAXED);
}
// Two words here, in an order that says the same; taking waits, since only who polls one word lets other threads run.
ASTITCH_INLINE int clamped(int index, int last) { return index < last ? index : last; }
ASTITCH_INLINE long long clamped(long long index, long long last) { return index < last ? index : last; }
ASTITCH_INLINE void astitch_publish_word(unsigned long long* to, unsigned value, unsigned tag)
{
    unsigned* const word = reinterpret_cast<unsigned*>(to);
    word[0] = value;
    astitch_atomic_store(word + 1, tag, ASTITCH_RELEASE);
}
ASTITCH_INLINE bool astitch_take_word(const unsigned long long* from, unsigned tag, unsigned& value)
{
    const unsigned* const word = reinterpret_cast<const unsigned*>(from);
    while (astitch_atomic_load(word + 1, ASTITCH_ACQUIRE) != tag) {
    }
    value = word[0];
    return true;
}
// Who waits for a word here has it: there is no second round, and no lane need wait for its warp.
struct astitch_patience { void wait() {} };
ASTITCH_INLINE bool astitch_all_of_warp(bool what) { return what; }
ASTITCH_INLINE void astitch_publish_three(unsigned long long* to, unsigned a, unsigned b, unsigned c, unsigned tag)
{
    to[1] = (unsigned long long)c << 32 | b;
    astitch_publish_word(to, a, tag);
}
ASTITCH_INLINE bool astitch_take_three(const unsigned long long* from, unsigned tag, unsigned (&words)[3])
{
    astitch_take_word(from, tag, words[0]);
    words[1] = unsigned(from[1]);
    words[2] = unsigned(from[1] >> 32);
    return true;
}
ASTITCH_INLINE void astitch_store_release(unsigned* word, unsigned value)
{
    astitch_atomic_store(word, value, ASTITCH_RELEASE);
}
ASTITCH_INLINE unsigned astitch_add_release(unsigned* word, unsigned value)
{
    return astitch_atomic_add(word, value, ASTITCH_RELEASE);
}
ASTITCH_INLINE void astitch_store_relaxed(unsigned* word, unsigned value)
{
    astitch_atomic_store(word, value, ASTITCH_RELAXED);
}
ASTITCH_INLINE unsigned astitch_add_relaxed(unsigned* word, unsigned value)
{
    return astitch_atomic_add(word, value, ASTITCH_RELAXED);
}

ASTITCH_INLINE unsigned atomicAdd(unsigned* address, unsigned value)
{
    return astitch_atomic_add(address, value, ASTITCH_RELAXED);
}
ASTITCH_INLINE int atomicAdd(int* address, int value)
{
    return int(astitch_atomic_add(reinterpret_cast<unsigned*>(address), unsigned(value), ASTITCH_RELAXED));
}
ASTITCH_INLINE unsigned long long atomicAdd(unsigned long long* address, unsigned long long value)
{
    return astitch_atomic_add_long(address, value);
}
ASTITCH_INLINE float atomicAdd(float* address, float value) { return astitch_atomic_add_float(address, value); }
ASTITCH_INLINE double atomicAdd(double* address, double value)
{
    return astitch_atomic_add_double(address, value);
}
ASTITCH_INLINE unsigned atomicMax(unsigned* address, unsigned value)
{
    return astitch_atomic_extreme(address, value, 1, 0);
}
ASTITCH_INLINE unsigned atomicMin(unsigned* address, unsigned value)
{
    return astitch_atomic_extreme(address, value, 0, 0);
}
ASTITCH_INLINE int atomicMax(int* address, int value)
{
    return int(astitch_atomic_extreme(reinterpret_cast<unsigned*>(address), unsigned(value), 1, 1));
}
ASTITCH_INLINE int atomicMin(int* address, int value)
{
    return int(astitch_atomic_extreme(reinterpret_cast<unsigned*>(address), unsigned(value), 0, 1));
}
ASTITCH_INLINE unsigned atomicExch(unsigned* address, unsigned value)
{
    return astitch_atomic_exchange(address, value);
}
ASTITCH_INLINE unsigned atomicCAS(unsigned* address, unsigned expected, unsigned value)
{
    return astitch_atomic_compare_exchange(address, expected, value);
}

// Cache hints: plain accesses here.  Do not poll with them: only atomics let other threads run.
template <class T> ASTITCH_INLINE T __ldg(const T* p) { return *p; }
template <class T> ASTITCH_INLINE T __ldca(const T* p) { return *p; }
template <class T> ASTITCH_INLINE T __ldcg(const T* p) { return *p; }
template <class T> ASTITCH_INLINE T __ldcs(const T* p) { return *p; }
template <class T> ASTITCH_INLINE void __stcs(T* p, T value) { *p = value; }
template <class T> ASTITCH_INLINE void __stcg(T* p, T value) { *p = value; }

// ---- arithmetic -------------------------------------------------------------------------------------

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

// The C library's functions, and the float overloads that CUDA has of the double names.
#define ASTITCH_UNARY(name) \
    extern "C" float name##f(float) noexcept; \
    extern "C" double name(double) noexcept; \
    ASTITCH_INLINE float name(float x) { return __builtin_##name##f(x); }
#define ASTITCH_BINARY(name) \
    extern "C" float name##f(float, float) noexcept; \
    extern "C" double name(double, double) noexcept; \
    ASTITCH_INLINE float name(float x, float y) { return __builtin_##name##f(x, y); }
ASTITCH_UNARY(exp) ASTITCH_UNARY(exp2) ASTITCH_UNARY(expm1) ASTITCH_UNARY(log) ASTITCH_UNARY(log2)
ASTITCH_UNARY(log10) ASTITCH_UNARY(log1p) ASTITCH_UNARY(sqrt) ASTITCH_UNARY(cbrt) ASTITCH_UNARY(sin)
ASTITCH_UNARY(cos) ASTITCH_UNARY(tan) ASTITCH_UNARY(asin) ASTITCH_UNARY(acos) ASTITCH_UNARY(atan)
ASTITCH_UNARY(sinh) ASTITCH_UNARY(cosh) ASTITCH_UNARY(tanh) ASTITCH_UNARY(asinh) ASTITCH_UNARY(acosh)
ASTITCH_UNARY(atanh) ASTITCH_UNARY(erf) ASTITCH_UNARY(erfc) ASTITCH_UNARY(tgamma) ASTITCH_UNARY(lgamma)
ASTITCH_UNARY(fabs) ASTITCH_UNARY(floor) ASTITCH_UNARY(ceil) ASTITCH_UNARY(round) ASTITCH_UNARY(rint)
ASTITCH_UNARY(nearbyint) ASTITCH_UNARY(trunc) ASTITCH_BINARY(pow) ASTITCH_BINARY(fmod)
ASTITCH_BINARY(remainder) ASTITCH_BINARY(atan2) ASTITCH_BINARY(hypot) ASTITCH_BINARY(copysign)
ASTITCH_BINARY(fmin) ASTITCH_BINARY(fmax) ASTITCH_BINARY(nextafter) ASTITCH_BINARY(fdim)
#undef ASTITCH_UNARY
#undef ASTITCH_BINARY
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double fma(double, double, double) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long long llabs(long long) noexcept;
ASTITCH_INLINE float rsqrtf(float x) { return 1.0f / __builtin_sqrtf(x); }
ASTITCH_INLINE double rsqrt(double x) { return 1.0 / __builtin_sqrt(x); }

// Fast approximations of the GPU: the exact function here (GNU libc has __expf and its like as own names).
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf((x), (y))
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __fdividef(x, y) ((x) / (y))

// One rounding each; the whole text is compiled without contraction to fused multiply-add.
ASTITCH_INLINE float __fadd_rn(float a, float b) { return a + b; }
ASTITCH_INLINE float __fsub_rn(float a, float b) { return a - b; }
ASTITCH_INLINE float __fmul_rn(float a, float b) { return a * b; }
ASTITCH_INLINE float __fdiv_rn(float a, float b) { return a / b; }
ASTITCH_INLINE float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
ASTITCH_INLINE float __frcp_rn(float a) { return 1.0f / a; }
ASTITCH_INLINE float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ASTITCH_INLINE double __dadd_rn(double a, double b) { return a + b; }
ASTITCH_INLINE double __dsub_rn(double a, double b) { return a - b; }
ASTITCH_INLINE double __dmul_rn(double a, double b) { return a * b; }
ASTITCH_INLINE double __ddiv_rn(double a, double b) { return a / b; }
ASTITCH_INLINE double __dsqrt_rn(double a) { return __builtin_sqrt(a); }
ASTITCH_INLINE double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class To, class From> ASTITCH_INLINE To astitch_bits(From x)
{
    static_assert(sizeof(To) == sizeof(From), "the sizes differ");
    To result;
    __builtin_memcpy(&result, &x, sizeof(To));
    return result;
}
ASTITCH_INLINE int __float_as_int(float x) { return astitch_bits<int>(x); }
ASTITCH_INLINE unsigned __float_as_uint(float x) { return astitch_bits<unsigned>(x); }
ASTITCH_INLINE float __int_as_float(int x) { return astitch_bits<float>(x); }
ASTITCH_INLINE float __uint_as_float(unsigned x) { return astitch_bits<float>(x); }
ASTITCH_INLINE long long __double_as_longlong(double x) { return astitch_bits<long long>(x); }
ASTITCH_INLINE double __longlong_as_double(long long x) { return astitch_bits<double>(x); }

#define ASTITCH_MIN_MAX(T) \
    ASTITCH_INLINE T min(T a, T b) { return b < a ? b : a; } \
    ASTITCH_INLINE T max(T a, T b) { return a < b ? b : a; }
ASTITCH_MIN_MAX(int) ASTITCH_MIN_MAX(unsigned) ASTITCH_MIN_MAX(long) ASTITCH_MIN_MAX(unsigned long)
ASTITCH_MIN_MAX(long long) ASTITCH_MIN_MAX(unsigned long long)
#undef ASTITCH_MIN_MAX
ASTITCH_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
ASTITCH_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
ASTITCH_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
ASTITCH_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }

ASTITCH_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
ASTITCH_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
ASTITCH_INLINE int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
ASTITCH_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
ASTITCH_INLINE int __ffs(int x) { return __builtin_ffs(x); }
ASTITCH_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
ASTITCH_INLINE unsigned __umulhi(unsigned a, unsigned b)
{
    return unsigned((unsigned long long)a * b >> 32);
}
ASTITCH_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
ASTITCH_INLINE int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
ASTITCH_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by)
{
    return unsigned((((unsigned long long)high << 32 | low) << (by & 31)) >> 32);
}
ASTITCH_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by)
{
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}
ASTITCH_INLINE unsigned __brev(unsigned x)
{
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}

// ---- calling a kernel by its name ---------------------------------------------------------------------

template <class P> struct astitch_parameter {
    static_assert(sizeof(P) == 0, "kernel parameters are pointers only");
};
template <class T> struct astitch_parameter<T*> { static constexpr bool is_const = false; };
template <class T> struct astitch_parameter<const T*> { static constexpr bool is_const = true; };

template <class Kernel> struct astitch_signature;
template <class... P> struct astitch_signature<void (*)(P...)> {
    static constexpr unsigned parameters = sizeof...(P);
    static constexpr bool is_const[sizeof...(P) + 1] = {astitch_parameter<P>::is_const..., false};

    // Braces, because they evaluate from left to right.
    struct in_order {
        __attribute__((always_inline)) inline in_order(void (*kernel)(P...), P... p) { kernel(p...); }
    };
    __attribute__((always_inline)) static inline void call(void (*kernel)(P...), void** arguments)
    {
        (void)in_order{kernel, static_cast<P>(*arguments++)...};
    }
};

struct astitch_words {
    const void* address;
    unsigned long long bytes;
};

// emulate.py writes one of these for each kernel after the text.
#define ASTITCH_EXPORT_KERNEL(name) \
    __attribute__((no_sanitize("thread"))) static void astitch_call_##name(void** arguments) \
    { \
        astitch_signature<decltype(&name)>::call(&name, arguments); \
    } \
    extern "C" __attribute__((visibility("default"))) const astitch_kernel astitch_kernel_##name; \
    const astitch_kernel astitch_kernel_##name = { \
        astitch_call_##name, astitch_signature<decltype(&name)>::parameters, \
        astitch_signature<decltype(&name)>::is_const};

// And one of these for each array of barrier words that the text has.
#define ASTITCH_EXPORT_WORDS(name) \
    extern "C" __attribute__((visibility("default"))) const astitch_words astitch_words_##name; \
    const astitch_words astitch_words_##name = {name##_words, sizeof name##_words};

#endif  // ASTITCH_HOST_RUNTIME
