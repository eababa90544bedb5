// A loop in one kernel: products by matrices that stay on chip, and whole rows that blocks of a group tell each other.
// Included by kernels of loops only (astitch/loops/emit.py), after astitch.cuh.
//
// A team of LANES lanes has WIDTH units; lane l has of each part of k the vectors LANES * i + l of four.  What a product
// gives a unit are PARTS numbers, so a team sums ROWS * WIDTH pairs of them, and the pairs end in its lanes.
#pragma once

// A lane's share of a matrix: w[vector * 4 + e][unit][part].  What lies beyond the matrix is zero; EXACT: nothing does.
template <int FIRST, int VECTORS, int EXTENT, int LANES, int WIDTH, int PARTS, bool EXACT, class Put, class T>
__device__ __forceinline__ void load_matrix(
    Put put, const T* __restrict__ from, int first_k, int k_stride, int column_stride, int first_part, int unit, int end, int lane)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int v = 0; v < WIDTH; ++v)
#pragma unroll
                for (int p = 0; p < PARTS; ++p) {
                    const int k = 4 * (LANES * (FIRST + i) + lane) + e;
                    const bool inside = EXACT || (k < EXTENT && unit + v < end);
                    const float w = inside ? load_as<float>(from[(first_k + k) * k_stride + ((first_part + p) * EXTENT + unit + v) * column_stride]) : 0.0f;
                    put(i, e, v * PARTS + p, w);
                }
}

// sum[row][column] += rows of `left` times the vectors FIRST ... of the lane's share, which is in registers from vector
// KEPT of w on.
template <int KEPT, int FIRST, int VECTORS, int ROWS, int COLUMNS, int LANES, int STRIDE, int WEIGHTS, class Slot>
__device__ __forceinline__ void add_product(
    float (&sum)[ROWS * COLUMNS], const float (&w)[WEIGHTS], const Slot& left, int start, int lane)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        Vec<float, 4> x[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) x[r] = shared_vec<float, 4>(left, start + r * STRIDE + 4 * (LANES * (FIRST + i) + lane));
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < COLUMNS; ++c)
                    sum[r * COLUMNS + c] = fmaf(w[((KEPT + i) * 4 + e) * COLUMNS + c], x[r].v[e], sum[r * COLUMNS + c]);
    }
}

// The same for a share in shared memory: a thread's vectors of four k lie THREADS vectors apart.
template <int FIRST, int VECTORS, int ROWS, int COLUMNS, int LANES, int STRIDE, int THREADS, class Weights, class Slot>
__device__ __forceinline__ void add_shared_product(
    float (&sum)[ROWS * COLUMNS], const Weights& w, int from, const Slot& left, int start, int lane)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        Vec<float, 4> x[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) x[r] = shared_vec<float, 4>(left, start + r * STRIDE + 4 * (LANES * (FIRST + i) + lane));
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) {
            const Vec<float, 4> y = shared_vec<float, 4>(w, from + 4 * ((i * COLUMNS + c) * THREADS + int(threadIdx.x)));
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[r * COLUMNS + c] = fmaf(y.v[e], x[r].v[e], sum[r * COLUMNS + c]);
        }
    }
}

// Adds what the lanes of a team have; while a lane has several pairs, each half of the lanes goes on with half of them.
// In the end lane l has the pairs l * (PAIRS / LANES) ..., or pair l / (LANES / PAIRS), which its neighbours have too.
template <int LANES, int PAIRS, int PARTS, int COUNT>
__device__ __forceinline__ void share_pairs(float (&sum)[COUNT], int lane)
{
    if constexpr (LANES > 1) {
        constexpr int OTHER = LANES / 2;
        if constexpr (PAIRS > 1) {
            const bool upper = lane & OTHER;
#pragma unroll
            for (int i = 0; i < PAIRS / 2 * PARTS; ++i) {
                const float kept = upper ? sum[i + PAIRS / 2 * PARTS] : sum[i];
                const float sent = upper ? sum[i] : sum[i + PAIRS / 2 * PARTS];
                sum[i] = kept + __shfl_xor_sync(0xffffffffu, sent, OTHER);
            }
        } else {
#pragma unroll
            for (int i = 0; i < PARTS; ++i) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], OTHER);
        }
        share_pairs<OTHER, PAIRS == 1 ? 1 : PAIRS / 2, PARTS>(sum, lane);
    }
}

// Waits for up to WORDS tagged words in one line, of which `count` come (ALL: all of them), and hands each to
// put(its number, the word).  A thread asks for all of its words (of up to CHUNK) in each round: asking for one after the
// other would be a way to the L2 for each.
template <int WORDS, int THREADS, int CHUNK, bool ALL, class Put>
__device__ __forceinline__ void receive(const unsigned long long* from, int count, unsigned tag, Put put)
{
    constexpr int EACH = (WORDS + THREADS - 1) / THREADS;
#pragma unroll(ALL ? EACH : 1)
    for (int first = 0; first < EACH; first += CHUNK) {
        unsigned word[CHUNK];
        const auto comes = [&](int i, int at) {
            if constexpr (ALL) return first + i < EACH && (WORDS % THREADS == 0 || at < WORDS);
            else return at < count;
        };
        astitch_patience patience;
        while (true) {
            bool fresh = true;
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                const int at = (first + i) * THREADS + int(threadIdx.x);
                if (comes(i, at)) fresh &= astitch_take_word(from + at, tag, word[i]);
            }
            // The lanes leave together: one that left alone could pass the block's barrier before its warp.
            if (astitch_all_of_warp(fresh)) break;
            patience.wait();
        }
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            const int at = (first + i) * THREADS + int(threadIdx.x);
            if (comes(i, at)) put(at, same_bits<float>(word[i]));
        }
    }
}

// COUNT rows of EXTENT words, which go into rows STRIDE apart.
template <int COUNT, int EXTENT, int STRIDE, int THREADS, int CHUNK, class Slot>
__device__ __forceinline__ void receive_rows(
    const Slot& to, int start, const unsigned long long* from, unsigned tag)
{
    receive<COUNT * EXTENT, THREADS, CHUNK, true>(from, COUNT * EXTENT, tag, [&](int at, float value) {
        to[start + at / EXTENT * STRIDE + at % EXTENT] = value;
    });
}

// Up to WORDS words, of which `count` come, side by side.
template <int WORDS, int THREADS, int CHUNK, class Slot>
__device__ __forceinline__ void receive_words(
    const Slot& to, int start, const unsigned long long* from, int count, unsigned tag)
{
    receive<WORDS, THREADS, CHUNK, false>(from, count, tag, [&](int at, float value) { to[start + at] = value; });
}

// Adds up lines of MEMBERS parts, a warp a line, in a fixed order, and tells everyone the sums.
template <int MEMBERS, int THREADS, class Slot>
__device__ __forceinline__ void add_parts(
    const Slot& parts, int start, unsigned long long* to, int count, unsigned tag)
{
    const int lane = int(threadIdx.x) % 32;
    for (int line = int(threadIdx.x) / 32; line < count; line += THREADS / 32) {
        float sum = 0.0f;
        for (int i = lane; i < MEMBERS; i += 32) sum += parts[start + line * MEMBERS + i];
#pragma unroll
        for (int mask = 16; mask; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
        if (lane == 0) astitch_publish_word(to + line, same_bits<unsigned>(sum), tag);
    }
}

// The sum of a value over the COPIES lanes that have the same pair.
template <int COPIES> __device__ __forceinline__ float add_copies(float value)
{
#pragma unroll
    for (int mask = COPIES / 2; mask; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
    return value;
}

// A reduction over the WIDTH lanes that have the small columns of a row.
template <int WIDTH, class Combine> __device__ __forceinline__ float reduce_row(float value, Combine combine)
{
#pragma unroll
    for (int mask = WIDTH / 2; mask; mask /= 2) value = combine(value, __shfl_xor_sync(0xffffffffu, value, mask));
    return value;
}

// The element BY places before, of the EXTENT that the WIDTH lanes of a row have, or the edge beyond them.
template <int WIDTH, int BY, int EXTENT, class T> __device__ __forceinline__ T shift_row(T value, T edge)
{
    const int from = int(threadIdx.x) % WIDTH - BY;
    T moved;
    if constexpr (sizeof(T) < 4) moved = T(__shfl_sync(0xffffffffu, int(value), from & (WIDTH - 1), WIDTH));
    else moved = __shfl_sync(0xffffffffu, value, from & (WIDTH - 1), WIDTH);
    return from >= 0 && from < EXTENT ? moved : edge;
}

// Rows of COUNT numbers, as many as a warp has lanes or fewer, into shared memory: neighbours read neighbours.  There a
// row begins at an odd element.
template <int COUNT, class Slot, class T>
__device__ __forceinline__ void stage_rows(const Slot& staged, int start, const T* __restrict__ rows, int count)
{
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = 32 * i + lane, padding = COUNT % 2 ? 0 : at / COUNT;
        if (at < count * COUNT) staged[start + at + padding] = rows[at];
    }
}

// And back.
template <int COUNT, class Slot, class T>
__device__ __forceinline__ void give_rows(T* __restrict__ rows, const Slot& staged, int start, int count)
{
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const int at = 32 * i + lane, padding = COUNT % 2 ? 0 : at / COUNT;
        if (at < count * COUNT) rows[at] = staged[start + at + padding];
    }
}
