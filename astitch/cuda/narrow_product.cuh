// Products of few rows by tensor cores, of weights of 8 and 4 bits (astitch/tile/narrow_fragments.py).
//
// A weight goes from memory to the registers of the thread that multiplies it, in loads of 16 bytes, without shared memory:
// a sum over the depth may take its elements in any order, and columns may lie in any row of a fragment.  So the elements
// that a load brings are made those of the lane's own fragments.  Integers become 16-bit floats on the way.
//
// The weights are the left factor, so that 8 rows of x fill the instruction.  The warps of a block divide the depth among
// them, and add their sums in shared memory in the order of their numbers.
#pragma once

// ---- fragments -------------------------------------------------------------------------------------------------

// One of two 16-bit floats in a word.
template <class X> __device__ __forceinline__ float half_of_pair(unsigned pair, int half)
{
    return to_float(X{(unsigned short)(pair >> 16 * half)});
}

// sums += left right, by the 32 lanes of a warp: left [16, 16], right [16, 8], of 16-bit floats; sums in f32.
// Lane 4 g + t has of left rows g and g + 8, columns 2 t, 2 t + 1, then 2 t + 8, 2 t + 9: (g, 2 t), (g + 8, 2 t), (g, 2 t + 8),
// (g + 8, 2 t + 8); of right column g, rows likewise; of sums (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1).
template <class X>
__device__ __forceinline__ void multiply_fragments(float (&sums)[4], const unsigned (&left)[4], const unsigned (&right)[2])
{
#ifdef ASTITCH_HOST
    const int g = (threadIdx.x & 31) / 4, t = threadIdx.x & 3;
    for (int k = 0; k < 8; ++k) {  // pairs of the inner dimension
        const int part = k / 4, from = k % 4;
        unsigned rows[2], columns[2];
        for (int half = 0; half < 2; ++half) {
            rows[half] = __shfl_sync(0xffffffffu, left[2 * part + half], 4 * g + from);
            columns[half] = __shfl_sync(0xffffffffu, right[part], 4 * (2 * t + half) + from);
        }
        for (int which = 0; which < 4; ++which)
            for (int half = 0; half < 2; ++half)
                sums[which] += half_of_pair<X>(rows[which / 2], half) * half_of_pair<X>(columns[which % 2], half);
    }
#else
    if constexpr (is_same<X, bf16>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
#endif
}

// ---- integers as 16-bit floats ----------------------------------------------------------------------------------

// Bytes of two words, in the order of the selector's digits.
__device__ __forceinline__ unsigned choose_bytes(unsigned low, unsigned high, unsigned selector)
{
#ifdef ASTITCH_HOST
    unsigned made = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i & 7;
        made |= ((digit < 4 ? low : high) >> 8 * (digit & 3) & 0xff) << 8 * i;
    }
    return made;
#else
    return __byte_perm(low, high, selector);
#endif
}

// (word & mask) | set, for which the compiler would take two instructions.
__device__ __forceinline__ unsigned mask_and_set(unsigned word, unsigned mask, unsigned set)
{
#ifdef ASTITCH_HOST
    return (word & mask) | set;
#else
    unsigned made;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(made) : "r"(word), "r"(mask), "r"(set));
    return made;
#endif
}

// a b + c of each half of the words.
template <class X> __device__ __forceinline__ unsigned multiply_add_pair(unsigned a, unsigned b, unsigned c)
{
#ifdef ASTITCH_HOST
    float made[2];
    for (int half = 0; half < 2; ++half)
        made[half] = half_of_pair<X>(a, half) * half_of_pair<X>(b, half) + half_of_pair<X>(c, half);
    return encode_pair<X>(made[0], made[1]);
#else
    unsigned made;
    if constexpr (is_same<X, bf16>) asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(c));
    else asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(made) : "r"(a), "r"(b), "r"(c));
    return made;
#endif
}

// The bits of an integer, as a 16-bit float that holds it exactly, in both halves of a word.
template <class X> __device__ constexpr unsigned both_halves(int number)
{
    constexpr int mantissa = is_same<X, bf16> ? 7 : 10, bias = is_same<X, bf16> ? 127 : 15;
    const unsigned size = unsigned(number < 0 ? -number : number);
    int exponent = 0;
    while (size >> exponent > 1) ++exponent;
    const unsigned rest = (size << mantissa >> exponent) & ((1u << mantissa) - 1);
    const unsigned code = (number < 0 ? 0x8000u : 0u) | unsigned(exponent + bias) << mantissa | rest;
    return code | code << 16;
}

// What integers need before they are taken apart: those with a sign are read without one, as n + 8 of 4 bits, n + 128 of 8.
// In bf16 bytes keep theirs.
template <class X, class S> __device__ __forceinline__ unsigned drop_signs(unsigned word)
{
    if constexpr (!S::is_signed || (S::bits == 8 && is_same<X, bf16>)) return word;
    else return word ^ (S::bits == 8 ? 0x80808080u : 0x88888888u);
}

// Bytes `first` of one word and `second` of another.  0x6400 | n are the bits of 1024 + n in f16.  bf16 has 7 bits behind
// the point: 0x4300 | n are those of 128 + n for n < 128, and of a byte the highest bit makes 0x4300, which is 128, 256.
template <class X, class S> __device__ __forceinline__ unsigned bytes_as_pair(unsigned low, int first, unsigned high, int second)
{
    const unsigned bytes = choose_bytes(low, high, unsigned(first) | unsigned(second + 4) << 8);
    constexpr unsigned minus_one = both_halves<X>(-1), one = both_halves<X>(1);
    if constexpr (is_same<X, f16>) {
        constexpr unsigned above = both_halves<X>(S::is_signed ? -1152 : -1024);
        return multiply_add_pair<X>(mask_and_set(bytes, 0x00ff00ffu, 0x64006400u), one, above);
    } else {
        const unsigned seven = mask_and_set(bytes, 0x007f007fu, 0x43004300u), last = mask_and_set(bytes, 0x00800080u, 0x43004300u);
        constexpr unsigned below = both_halves<X>(-256);
        if constexpr (S::is_signed) return multiply_add_pair<X>(last, minus_one, seven);
        else return multiply_add_pair<X>(seven, one, multiply_add_pair<X>(last, one, below));
    }
}

// Of a word with one integer of 4 bits in the lowest bits of each half.
template <class X, class S> __device__ __forceinline__ unsigned nibbles_as_pair(unsigned word)
{
    constexpr bool is_bf16 = is_same<X, bf16>;
    const unsigned raised = mask_and_set(word, 0x000f000fu, is_bf16 ? 0x43004300u : 0x64006400u);
    constexpr unsigned one = both_halves<X>(1), above = both_halves<X>((is_bf16 ? -128 : -1024) - (S::is_signed ? 8 : 0));
    return multiply_add_pair<X>(raised, one, above);
}

// ---- what a warp loads and multiplies ------------------------------------------------------------------------------

// What S says of a product: see tile/narrow_fragments.py.  A step is what a warp takes of the depth at once.
template <class S> struct NarrowStep {
    static constexpr int per_byte = 8 / S::bits;
    static constexpr int tiles = (S::rows + 7) / 8;              // of the rows of x
    static constexpr int words = S::vector_bytes / 4;            // of one load of weights
    static constexpr int columns = S::transposed ? 2 * S::pairs : S::vector_bytes * per_byte;   // of a lane
    static constexpr int pairs = columns / 2;
    static constexpr int loads = S::transposed ? columns : 4;
    static constexpr int depth = S::transposed ? 4 * S::vector_bytes * per_byte : 16;
    static constexpr int along = depth / 4;                      // of the depth, of a lane
    static constexpr int block_columns = 8 * columns;
    static constexpr int given = along / 2;                      // words of x for each tile of rows
    static constexpr int piece = given < 4 ? given : 4;          // of them, of one load

    Words<S::vector_bytes> weights[loads];
    unsigned x[tiles][given];
};

// Weights, which nobody reads again; the L2 fetches their neighbours along with them, which another warp reads.
template <int BYTES> __device__ __forceinline__ Words<BYTES> load_once(const unsigned char* from)
{
#ifdef ASTITCH_HOST
    return *reinterpret_cast<const Words<BYTES>*>(from);
#else
    static_assert(BYTES == 8 || BYTES == 16, "a load of weights has 8 or 16 bytes");
    Words<BYTES> made;
    if constexpr (BYTES == 16)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(made.v[0]), "=r"(made.v[1]), "=r"(made.v[2]), "=r"(made.v[3]) : "l"(from));
    else
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];" : "=r"(made.v[0]), "=r"(made.v[1]) : "l"(from));
    return made;
#endif
}

// The column of number i of a lane, from the first one of the block's tile.
template <class S> __device__ __forceinline__ int lane_column(int g, int i)
{
    return S::transposed ? 8 * i + g : NarrowStep<S>::columns * g + i;
}

// Where a lane's weights and its x begin.  A column that the matrix has not is read as its last ones.
template <class S, class X> struct NarrowSource {
    using Step = NarrowStep<S>;
    const unsigned char* weights[S::transposed && S::ragged ? Step::loads : 1];
    const X* x[Step::tiles];
    int width;

    __device__ __forceinline__ NarrowSource(const X* all_x, const unsigned char* all, int column, int columns, int g, int t)
        : width(columns)
    {
        constexpr int count = int(sizeof(weights) / sizeof(weights[0]));
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const int mine = clamped(column + lane_column<S>(g, i), width - (S::transposed ? 1 : Step::columns));
            const long long place = S::transposed ? (long long)mine * S::depth + Step::along * t
                                                  : (long long)(Step::along * t) * width + mine;
            weights[i] = all + place / Step::per_byte;
        }
#pragma unroll
        for (int r = 0; r < Step::tiles; ++r) {
            const int row = clamped(8 * r + g, S::rows - 1);  // what a row that there is not gives is not stored
            x[r] = all_x + (long long)row * (S::depth / halves) + Step::along * t / halves;
        }
    }

    // Of x the even elements of the depth come first, where two of them are in a byte of weights.
    static constexpr int halves = S::transposed && S::bits == 4 ? 2 : 1;

    // What the lane multiplies in a step.
    __device__ __forceinline__ void load(NarrowStep<S>& step, int number) const
    {
        const int k = number * Step::depth;
#pragma unroll
        for (int i = 0; i < Step::loads; ++i) {
            const unsigned char* from;
            if constexpr (!S::transposed) from = weights[0] + (long long)(k + i) * (width / Step::per_byte);
            else if constexpr (S::ragged) from = weights[i] + k / Step::per_byte;
            else from = weights[0] + (8LL * i * S::depth + k) / Step::per_byte;
            step.weights[i] = load_once<S::vector_bytes>(from);
        }
        constexpr int words = Step::given / halves;
#pragma unroll
        for (int r = 0; r < Step::tiles; ++r)
#pragma unroll
            for (int i = 0; i < Step::given; i += Step::piece) {
                const X* const from = x[r] + i / words * S::odd_stride + k / halves + i % words * 2;
                const auto loaded = *reinterpret_cast<const Words<4 * Step::piece>*>(from);
#pragma unroll
                for (int j = 0; j < Step::piece; ++j) step.x[r][i + j] = loaded.v[j];
            }
    }
};

// A lane's offsets or scales of one group, as they lie in memory: they are converted where they are used, so that no thread
// waits for them before.
template <class S, class T> struct NarrowBeside {
    using Step = NarrowStep<S>;
    static constexpr bool whole = !S::transposed && !S::scales_transposed;  // neighbours in memory
    static constexpr int lanes = whole ? 16 / int(sizeof(T)) : 1;
    choose<whole, Words<16>, T> held[Step::columns / lanes];

    __device__ __forceinline__ void read(const T* all, int group, int column, int width, int g)
    {
#pragma unroll
        for (int i = 0; i < Step::columns; i += lanes) {
            const int mine = clamped(column + lane_column<S>(g, i), width - lanes);
            const long long place = S::scales_transposed ? (long long)mine * S::groups + group : (long long)group * width + mine;
            held[i / lanes] = *reinterpret_cast<const choose<whole, Words<16>, T>*>(all + place);
        }
    }
    __device__ __forceinline__ float operator[](int i) const
    {
        if constexpr (!whole) return to_float(held[i]);
        else if constexpr (sizeof(T) == 4) return same_bits<float>(held[i / lanes].v[i % lanes]);
        else return half_of_pair<T>(held[i / lanes].v[i % lanes / 2], i % 2);
    }
};

// Adds a step's products to the sums of each pair of columns and each tile of rows, and x itself to x_sums.
template <class S, class X>
__device__ __forceinline__ void add_step(
    float (&sums)[NarrowStep<S>::pairs][NarrowStep<S>::tiles][4], float (&x_sums)[NarrowStep<S>::tiles][4],
    const NarrowStep<S>& step)
{
    using Step = NarrowStep<S>;
    constexpr unsigned one = both_halves<X>(1);
#pragma unroll
    for (int q = 0; q < Step::depth / 16; ++q) {
        unsigned right[Step::tiles][2];
#pragma unroll
        for (int r = 0; r < Step::tiles; ++r) {
            if constexpr (S::transposed && S::bits == 4) {
                // Elements i and i + 4 of eight are in one word of weights: see below.
                constexpr int half = Step::given / 2;
                const unsigned selector = q % 2 ? 0x7632u : 0x5410u;
#pragma unroll
                for (int odd = 0; odd < 2; ++odd) {
                    const int at = odd * half + q / 2 * 2;
                    right[r][odd] = choose_bytes(step.x[r][at], step.x[r][at + 1], selector);
                }
            } else {
                right[r][0] = step.x[r][2 * q];
                right[r][1] = step.x[r][2 * q + 1];
            }
            if constexpr (S::offset) multiply_fragments<X>(x_sums[r], {one, one, one, one}, right[r]);
        }
#pragma unroll
        for (int p = 0; p < Step::pairs; ++p) {
            unsigned left[4];
            if constexpr (S::transposed) {
#pragma unroll
                for (int column = 0; column < 2; ++column) {
                    const auto& vector = step.weights[2 * p + column];
                    if constexpr (S::bits == 8) {
                        const unsigned word = drop_signs<X, S>(vector.v[q]);
                        left[column] = bytes_as_pair<X, S>(word, 0, word, 1);
                        left[2 + column] = bytes_as_pair<X, S>(word, 2, word, 3);
                    } else {
                        // A word has eight elements: (0, 4) and (1, 5) at first, then (2, 6) and (3, 7).
                        const unsigned word = drop_signs<X, S>(vector.v[q / 2]) >> (q % 2 * 8);
                        left[column] = nibbles_as_pair<X, S>(word);
                        left[2 + column] = nibbles_as_pair<X, S>(word >> 4);
                    }
                }
            } else {
                unsigned word[4];
                constexpr int per_word = 2 * Step::per_byte;  // pairs of columns
#pragma unroll
                for (int i = 0; i < 4; ++i) word[i] = drop_signs<X, S>(step.weights[i].v[p / per_word]);
                if constexpr (S::bits == 8) {
                    const int first = 2 * p % 4;
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        left[i] = bytes_as_pair<X, S>(word[i / 2 * 2], first + i % 2, word[i / 2 * 2 + 1], first + i % 2);
                } else {
                    // The same byte of two words, in one half each; a byte has two columns.
                    const unsigned byte = unsigned(p % 4);
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const unsigned both = choose_bytes(word[2 * i], word[2 * i + 1], byte | (byte + 4) << 8);
                        left[2 * i] = nibbles_as_pair<X, S>(both);
                        left[2 * i + 1] = nibbles_as_pair<X, S>(both >> 4);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < Step::tiles; ++r) multiply_fragments<X>(sums[p][r], left, right[r]);
        }
    }
}

// ---- the product of a block -----------------------------------------------------------------------------------------

// parts[rows, columns] of this part and this element of the batch, of the matrix whose columns are those of the result from
// `left` on.  x, weights, offsets and scales are those of this element and of this layer; tile: which of the matrix, width: its
// columns.  shared: of a block, [warp][rows and columns of a lane][lane].
template <class S, class X, class Scale, class Out>
__device__ __forceinline__ void narrow_product(
    const X* x, const unsigned char* weights, const X* offsets, const Scale* scales, Out* parts, float* shared, int part,
    int tile, int width, int left)
{
    using Step = NarrowStep<S>;
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, g = lane / 4, t = lane & 3;
    const int column = tile * Step::block_columns;
    // The steps of this part, then of this warp.
    constexpr int all = S::depth / Step::depth, share = S::share / Step::depth;
    const int from = part * share, count = clamped(share, all - from);
    const int first = from + count * warp / S::warps, last = from + count * (warp + 1) / S::warps;
    float sums[Step::pairs][Step::tiles][4] = {}, x_sums[Step::tiles][4] = {};
    float totals[S::groups > 1 ? Step::pairs : 1][Step::tiles][4] = {};
    constexpr int per_group = S::depth / S::groups / Step::depth;

    NarrowBeside<S, Scale> scale;  // of the group of a step
    NarrowBeside<S, X> offset;
    const auto read_group = [&](int step) {
        const int group = S::groups > 1 ? step / per_group : 0;
        if constexpr (S::scale) scale.read(scales, group, column, width, g);
        if constexpr (S::offset) offset.read(offsets, group, column, width, g);
    };
    // What the sums of a group are, with its offsets and scales: sum x (w - o) s = s (sum x w - o sum x).
    const auto finish = [&](int p, int r, int which) {
        float sum = sums[p][r][which];
        if constexpr (S::offset) sum -= offset[2 * p + which / 2] * x_sums[r][which % 2];
        if constexpr (S::scale) sum *= scale[2 * p + which / 2];
        return sum;
    };
    const auto end_group = [&](int next) {
#pragma unroll
        for (int r = 0; r < Step::tiles; ++r)
#pragma unroll
            for (int which = 0; which < 4; ++which) {
#pragma unroll
                for (int p = 0; p < Step::pairs; ++p) {
                    totals[p][r][which] += finish(p, r, which);
                    sums[p][r][which] = 0;
                }
            }
#pragma unroll
        for (int r = 0; r < Step::tiles; ++r)
#pragma unroll
            for (int which = 0; which < 4; ++which) x_sums[r][which] = 0;
        read_group(next);
    };

    read_group(clamped(first, all - 1));
    if (first < last) {
        const NarrowSource<S, X> source(x, weights, column, width, g, t);
        NarrowStep<S> ahead[S::ahead];
#pragma unroll
        for (int i = 0; i < S::ahead; ++i) source.load(ahead[i], clamped(first + i, last - 1));
        for (int start = first; start < last; start += S::ahead) {
#pragma unroll
            for (int i = 0; i < S::ahead; ++i) {
                const int step = start + i;
                if (step < last) add_step<S, X>(sums, x_sums, ahead[i]);
                if (step + S::ahead < last) source.load(ahead[i], step + S::ahead);
                if constexpr (S::groups > 1)
                    if (step < last && (step + 1 == last || (step + 1) % per_group == 0)) end_group(clamped(step + 1, last - 1));
            }
        }
    }

    // The warps' sums, in the order of the warps, a tile of rows after the other.
    constexpr int held = 2 * Step::columns, taken = held / S::warps;
    static_assert(held % S::warps == 0, "each warp adds up as many numbers of a lane");
    static_assert(Step::columns % taken == 0, "those of a warp are of one row");
#pragma unroll
    for (int r = 0; r < Step::tiles; ++r) {
        if (r) __syncthreads();
#pragma unroll
        for (int i = 0; i < held; ++i) {
            const int p = i % Step::columns / 2, which = i % 2 * 2 + i / Step::columns;
            float sum;
            if constexpr (S::groups > 1) sum = totals[p][r][which];
            else sum = finish(p, r, which);
            shared[(warp * held + i) * 32 + lane] = sum;
        }
        __syncthreads();
        const int row = 8 * r + 2 * t + warp * taken / Step::columns;
#pragma unroll
        for (int i = 0; i < taken; ++i) {
            const int number = warp * taken + i, mine = column + lane_column<S>(g, number % Step::columns);
            float sum = shared[number * 32 + lane];
#pragma unroll
            for (int other = 1; other < S::warps; ++other) sum += shared[(other * held + number) * 32 + lane];
            if (row < S::rows && mine < width)
                parts[(long long)row * S::all_columns + left + mine] = store_as<Out>(sum);
        }
    }
}
