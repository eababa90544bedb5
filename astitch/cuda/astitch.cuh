// What every emitted kernel includes: the words that differ between the GPU and the host, then the parts
// of the device library.  On the host (ASTITCH_HOST) host.h, forced in before, has defined the same words.
//
//   ASTITCH_SHARED_ARENA(bytes);                   once, at the top of a kernel with shared memory; or
//   ASTITCH_STATIC_ARENA(bytes);                   the same, of up to 48 KB that the launch does not give
//   ASTITCH_SHARED(T, name, offset_bytes, count);  a slot of it, used as name[i]; slots may overlap
//   ASTITCH_GLOBAL_BARRIER(word);                  all threads of all (resident) blocks; orders all memory
//   ASTITCH_CLUSTER_BARRIER(word);                 the same of a grid that is one cluster (sm_90)
//   shared_vec<T, N>(name, i)                      elements i .. i + N - 1 of a slot as one access
//   clamped(index, last)                           at most `last`
//   astitch_load_acquire, astitch_load_relaxed, astitch_store_release, astitch_store_relaxed, astitch_add_release,
//   astitch_add_relaxed   on unsigned words, device scope
//   astitch_publish_word(to, value, tag), astitch_take_word(from, tag, value)    a tagged word; taking may fail
//   astitch_patience, astitch_all_of_warp(what)    for loops that wait (see below)
//   astitch_publish_three(to, a, b, c, tag), astitch_take_three(from, tag, words)    the same of three words beside one tag
#pragma once

#ifndef ASTITCH_HOST

#define ASTITCH_SHARED_ARENA(bytes) extern __shared__ __align__(16) unsigned char astitch_shared[]
#define ASTITCH_STATIC_ARENA(bytes) __shared__ __align__(16) unsigned char astitch_shared[bytes]
#define ASTITCH_SHARED(T, name, offset_bytes, count) \
    T* const name = reinterpret_cast<T*>(astitch_shared + (offset_bytes))

__device__ __forceinline__ int clamped(int index, int last) { return index < last ? index : last; }
__device__ __forceinline__ long long clamped(long long index, long long last) { return index < last ? index : last; }

__device__ __forceinline__ unsigned astitch_load_acquire(const unsigned* word)
{
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
__device__ __forceinline__ unsigned astitch_load_relaxed(const unsigned* word)
{
    unsigned value;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}
__device__ __forceinline__ void astitch_publish_word(unsigned long long* to, unsigned value, unsigned tag)
{
    const unsigned long long both = (unsigned long long)tag << 32 | value;
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" : : "l"(to), "l"(both) : "memory");
}
__device__ __forceinline__ bool astitch_take_word(const unsigned long long* from, unsigned tag, unsigned& value)
{
    unsigned long long both;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(both) : "l"(from) : "memory");
    value = unsigned(both);
    return unsigned(both >> 32) == tag;
}
// Accesses of 128 bits that name their size, .b128, are one to the memory; those of vectors need not be.
__device__ __forceinline__ void astitch_publish_three(
    unsigned long long* to, unsigned a, unsigned b, unsigned c, unsigned tag)
{
    const unsigned long long low = (unsigned long long)tag << 32 | a, high = (unsigned long long)c << 32 | b;
    asm volatile("{ .reg .b128 all; mov.b128 all, {%1, %2}; st.relaxed.gpu.global.b128 [%0], all; }"
                 : : "l"(to), "l"(low), "l"(high) : "memory");
}
__device__ __forceinline__ bool astitch_take_three(const unsigned long long* from, unsigned tag, unsigned (&words)[3])
{
    unsigned long long low, high;
    asm volatile("{ .reg .b128 all; ld.relaxed.gpu.global.b128 all, [%2]; mov.b128 {%0, %1}, all; }"
                 : "=l"(low), "=l"(high) : "l"(from) : "memory");
    words[0] = unsigned(low);
    words[1] = unsigned(high);
    words[2] = unsigned(high >> 32);
    return unsigned(low >> 32) == tag;
}
__device__ __forceinline__ void astitch_store_release(unsigned* word, unsigned value)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned astitch_add_release(unsigned* word, unsigned value)
{
    unsigned old;
    asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(old) : "l"(word), "r"(value) : "memory");
    return old;
}

__device__ __forceinline__ void astitch_store_relaxed(unsigned* word, unsigned value)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" : : "l"(word), "r"(value) : "memory");
}
__device__ __forceinline__ unsigned astitch_add_relaxed(unsigned* word, unsigned value)
{
    unsigned old;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(old) : "l"(word), "r"(value) : "memory");
    return old;
}

// How long a thread waits for another block: each round that finds something missing is counted.  After about 30 s it
// traps, where it would hang for good: a block that is not resident, a word that nobody sends.  Nothing less than that is
// sure to be a fault, for what else the device runs (a kernel of another process, a debugger) may hold a block off its SM
// that long.  A trap is the end of the process's CUDA context.  The clock is asked once in 512 rounds.
struct astitch_patience {
    unsigned rounds = 0, since = 0;
    __device__ __forceinline__ void wait()
    {
        if (++rounds % 512 == 0) {
            unsigned long long ns;
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
            const unsigned now = unsigned(ns >> 20);
            if (rounds == 512) since = now;
            else if (now - since > 28610) __trap();
        }
    }
};
__device__ __forceinline__ bool astitch_all_of_warp(bool what) { return __all_sync(0xffffffffu, what); }

// The first block adds 2^31 - (blocks - 1) and every other block 1, so the top bit flips when the last one
// has come while the rest returns to zero: no reset between launches.  One thread speaks for its block;
// the block barriers around it make its release and its acquire hold for all of them.
__device__ __forceinline__ void astitch_global_barrier(unsigned* word)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned arrive = blockIdx.x == 0 ? 0x80000000u - (gridDim.x - 1) : 1u;
        const unsigned before = astitch_add_release(word, arrive);
        astitch_patience patience;
        while (!((astitch_load_acquire(word) ^ before) & 0x80000000u)) patience.wait();
    }
    __syncthreads();
}
#define ASTITCH_GLOBAL_BARRIER(word) astitch_global_barrier(word)

// The blocks of a cluster meet by a barrier of the hardware, which needs no word in memory.  For a GPU without clusters a
// kernel with it does not compile.
__device__ __forceinline__ void astitch_cluster_barrier()
{
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
#define ASTITCH_CLUSTER_BARRIER(word) astitch_cluster_barrier()

#endif  // ASTITCH_HOST

// ---- exchange between the members of a block group -------------------------------------------------------
// A word of 32 bits travels beside the tag of its launch, in one store: who finds the tag has the word.  That needs no
// fence, no counter and no reset.  Launches are numbered by the second line of barrier words.

__device__ __forceinline__ unsigned astitch_launch_tag(const unsigned* words)
{
    return astitch_load_relaxed(words + 64) + 1;
}
// The last block of a launch ends its number, which is read by the next launch only: nothing need wait for what the
// blocks have written.
__device__ __forceinline__ void astitch_end_launch(unsigned* words)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned number = astitch_load_relaxed(words + 64) + 1;
        if (astitch_add_relaxed(words + 65, 1) == gridDim.x - 1) {
            astitch_store_relaxed(words + 65, 0);
            astitch_store_relaxed(words + 64, number);
        }
    }
}
__device__ __forceinline__ unsigned long long* astitch_tagged_words(unsigned* words)
{
    return reinterpret_cast<unsigned long long*>(words + 128);
}

// How many threads a block has, for the compiler: it then knows which steps over a row need no test for the row's end,
// and has the loads of all of them under way at once.
template <int THREADS> __device__ __forceinline__ void assume_threads()
{
#ifndef ASTITCH_HOST
    __builtin_assume(threadIdx.x < THREADS);
#endif
}

// Loads below are not begun above: of a hundred scalars that are added up one by one, the compiler would have all under
// way at once, and no registers left.
__device__ __forceinline__ void part_loads()
{
#ifndef ASTITCH_HOST
    asm volatile("" ::: "memory");
#endif
}

// N elements moved by one instruction; the address must be a multiple of the whole size.
template <class T, int N> struct alignas(sizeof(T) * N) Vec { T v[N]; };

// A vector of any type as whole words, for vectors that wait in registers: of a vector of 16-bit elements the compiler
// would give each element a register of its own.
template <int BYTES> struct alignas(BYTES) Words { unsigned v[BYTES / 4]; };
template <class V> __device__ __forceinline__ auto to_words(const V& vector)
{
    if constexpr (sizeof(V) % 4 == 0) {
        Words<int(sizeof(V))> words;
#ifdef ASTITCH_HOST
        __builtin_memcpy(&words, &vector, sizeof(V));
#else
        memcpy(&words, &vector, sizeof(V));
#endif
        return words;
    } else {
        return vector;
    }
}
template <class V> struct words_of { using type = decltype(to_words(V())); };
template <class V, class W> __device__ __forceinline__ V from_words(const W& words)
{
    V vector;
#ifdef ASTITCH_HOST
    __builtin_memcpy(&vector, &words, sizeof(V));
#else
    memcpy(&vector, &words, sizeof(V));
#endif
    return vector;
}

// Where the host's check mode hangs its own overload, for slots that know their bounds.
template <class T, class Index>
__device__ __forceinline__ T* astitch_vector_address(T* slot, Index i, unsigned)
{
    return slot + i;
}
template <class T, int N, class Slot, class Index>
__device__ __forceinline__ Vec<T, N>& shared_vec(const Slot& slot, Index i)
{
    return *reinterpret_cast<Vec<T, N>*>(astitch_vector_address(slot, i, N));
}

// A vector from global to shared memory that arrives later; what a thread copies it reads itself, after copy_wait.
// copy_commit ends a batch of copies, copy_wait<N> waits for all but the last N batches of this thread.
template <class V, class T> __device__ __forceinline__ void copy_async(V* to, const T* source)
{
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
    const unsigned address = unsigned(__cvta_generic_to_shared(to));
    if constexpr (sizeof(V) == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(address), "l"(source) : "memory");
        return;
    } else if constexpr (sizeof(V) == 8 || sizeof(V) == 4) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                     : : "r"(address), "l"(source), "n"(int(sizeof(V))) : "memory");
        return;
    }
#endif
    *to = *reinterpret_cast<const V*>(source);
}
__device__ __forceinline__ void copy_commit()
{
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" : : : "memory");
#endif
}
template <int PENDING> __device__ __forceinline__ void copy_wait()
{
#if !defined(ASTITCH_HOST) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" : : "n"(PENDING) : "memory");
#endif
}

#include "types.cuh"

// An element of a vector of bf16 as a float.  Of a pair each half is one instruction away from its float; taken out of the
// word first it would be two or three.
template <int N> __device__ __forceinline__ float bf16_lane(const Vec<bf16, N>& vector, int lane)
{
    if constexpr (N % 2 == 0) {
        const unsigned word = to_words(vector).v[lane / 2];
        return same_bits<float>(lane % 2 ? word & 0xffff0000u : word << 16);
    } else {
        return to_float(vector.v[lane]);
    }
}

// A vector of a narrow type that is being filled: its lanes wait as floats, since one instruction converts two of them,
// and go to memory as whole words, which the compiler would take apart if they became a Vec.
template <class T, int N> struct Lanes { float v[N]; };
template <class T, int N> __device__ __forceinline__ void store_lanes(T* to, const Lanes<T, N>& lanes)
{
    if constexpr (sizeof(T) == 2) {
        Vec<unsigned, N / 2> words;
#pragma unroll
        for (int i = 0; i < N; i += 2) words.v[i / 2] = encode_pair<T>(lanes.v[i], lanes.v[i + 1]);
        *reinterpret_cast<decltype(words)*>(to) = words;
    } else {
        constexpr int bytes = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
        Vec<typename unsigned_type<bytes>::type, N / bytes> words;
#pragma unroll
        for (int i = 0; i < N; i += bytes) {
            float part[bytes];
            for (int j = 0; j < bytes; ++j) part[j] = lanes.v[i + j];
            words.v[i / bytes] = encode_f8<T>(part);
        }
        *reinterpret_cast<decltype(words)*>(to) = words;
    }
}

#include "hlo_math.cuh"
#include "collectives.cuh"
