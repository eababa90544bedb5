// Reductions over threads, in a fixed order.  A reducer R has a State, identity(), combine(a, b) and
// shuffle(state, mask) and take(state, lane); every thread of a set ends with the set's total.
#pragma once

// __shfl_xor_sync knows words of 4 and 8 bytes; narrower values travel as int.
template <class T> __device__ __forceinline__ T shuffle_value(T value, int mask)
{
    if constexpr (sizeof(T) < 4) {
        return T(__shfl_xor_sync(0xffffffffu, int(value), mask));
    } else {
        return __shfl_xor_sync(0xffffffffu, value, mask);
    }
}

template <class R> __device__ __forceinline__ Complex<R> shuffle_value(Complex<R> value, int mask)
{
    return Complex<R>{shuffle_value(value.re, mask), shuffle_value(value.im, mask)};
}

// ---- joint reductions (astitch/graph/joint_regions.py) ------------------------------------------------------

enum Joint { JOINT_NONE, JOINT_MOMENTS, JOINT_EXPONENTIALS };

// What a + b lost when it was rounded to `sum` (Knuth): exact, unless something is infinite.
template <class T> __device__ __forceinline__ T lost_in_sum(T a, T b, T sum)
{
    const T second = sum - a;
    return (a - (sum - second)) + (b - second);
}

// The same where b is no larger than a (Dekker); elsewhere off by no more than b's own last place.
template <class T> __device__ __forceinline__ T lost_in_small_sum(T a, T b, T sum) { return b - (sum - a); }

// A mean as two numbers.  The rest is as exact as it can be: sets of equal elements have equal means.
template <class T> struct Mean { T most, rest; };
template <class T> __device__ __forceinline__ Mean<T> mean_of(T count, T sum, T lost)
{
    const T filled = count < 1 ? T(1) : count, inverse = reciprocal(filled), most = sum * inverse;
    const T left = hlo_multiply_add(-most, filled, sum) + lost, rest = left * inverse;
    return Mean<T>{most, hlo_multiply_add(hlo_multiply_add(-rest, filled, left), inverse, rest)};
}

// (count, sum, lost, M2) of two sets: the sum is sum + lost, of which infinite and NaN elements leave `sum` only.  An empty
// set has zeros.
template <class State> __device__ __forceinline__ State join_moments(const State a, const State b)
{
    const auto count = a.f0 + b.f0, sum = a.f1 + b.f1;
    const auto lost = (a.f2 + b.f2) + lost_in_sum(a.f1, b.f1, sum);
    const auto left = mean_of(a.f0, a.f1, a.f2), right = mean_of(b.f0, b.f1, b.f2);
    const auto gap = (right.most - left.most) + (right.rest - left.rest);
    const auto weight = a.f0 * (b.f0 * reciprocal(count < 1 ? 1 : count));
    return State{count, sum, lost, hlo_multiply_add(weight * gap, gap, a.f3 + b.f3)};
}

// (max, sum of exp(x - max)) of two sets.  An infinite max is not subtracted: infinite and empty sums stay what they are.
template <class State> __device__ __forceinline__ State join_exponentials(const State a, const State b)
{
    const auto largest = hlo_maximum(a.f0, b.f0);
    const auto center = hlo_is_finite(largest) ? largest : 0;
    return State{largest, a.f1 * summand_exp(a.f0 - center) + b.f1 * summand_exp(b.f0 - center)};
}

// One more element (Youngs and Cramer): its distance from the mean, times the count, by one rounding.
template <class State, class T> __device__ __forceinline__ void add_to_moments(State& state, T x)
{
    const T count = state.f0 + T(1), sum = state.f1 + x, product = state.f0 * count;
    const T gap = hlo_multiply_add(state.f0, x, -state.f1) - state.f2;
    state.f3 = hlo_multiply_add(gap * reciprocal(product < 1 ? T(1) : product), gap, state.f3);
    state.f2 += lost_in_small_sum(state.f1, x, sum);
    state.f0 = count;
    state.f1 = sum;
}

// Several more elements at once: their deviations from the first, of which none is far from their mean; then their mean
// as one more element.
template <int N, class State, class T> __device__ __forceinline__ void add_batch_to_moments(State& state, const T (&x)[N])
{
    const T origin = hlo_is_finite(x[0]) ? x[0] : T(0);
    T total = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const T gap = x[i] - origin;
        total += gap;
        squares = hlo_multiply_add(gap, gap, squares);
    }
    const T offset = total * (T(1) / T(N)), mean = origin + offset, rest = lost_in_small_sum(origin, offset, mean);
    const T count = state.f0 + T(N), added = T(N) * mean, sum = state.f1 + added, product = state.f0 * count;
    T lost = T(N) * rest;
    if constexpr ((N & (N - 1)) != 0) lost += hlo_multiply_add(T(N), mean, -added);
    const T gap = hlo_multiply_add(state.f0, rest, hlo_multiply_add(state.f0, mean, -state.f1)) - state.f2;
    const T weight = T(N) * reciprocal(product < 1 ? T(1) : product);
    state.f3 = hlo_multiply_add(weight * gap, gap, state.f3 + hlo_multiply_add(-total, offset, squares));
    state.f2 += lost + lost_in_small_sum(state.f1, added, sum);
    state.f0 = count;
    state.f1 = sum;
}

template <int N, class State, class T> __device__ __forceinline__ void add_batch_to_exponentials(State& state, const T (&x)[N])
{
    T largest = x[0];
#pragma unroll
    for (int i = 1; i < N; ++i) largest = hlo_maximum(largest, x[i]);
    const T center = hlo_is_finite(largest) ? largest : T(0);
    T sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += summand_exp(x[i] - center);
    state = join_exponentials(state, State{largest, sum});
}
template <class State, class T> __device__ __forceinline__ void add_to_exponentials(State& state, T x)
{
    const T largest = hlo_maximum(state.f0, x);
    const T center = hlo_is_finite(largest) ? largest : T(0);
    state.f1 = state.f1 * summand_exp(state.f0 - center) + summand_exp(x - center);
    state.f0 = largest;
}

// The same over THREADS lanes that are STRIDE apart: the max first, so that each sum is rescaled once.
template <class State, int THREADS, int STRIDE> __device__ __forceinline__ State lanes_of_exponentials(const State state)
{
    auto largest = state.f0;
#pragma unroll
    for (int mask = STRIDE; mask < STRIDE * THREADS; mask <<= 1)
        largest = hlo_maximum(largest, shuffle_value(largest, mask));
    const auto center = hlo_is_finite(largest) ? largest : 0;
    auto sum = state.f1 * summand_exp(state.f0 - center);
#pragma unroll
    for (int mask = STRIDE; mask < STRIDE * THREADS; mask <<= 1) sum += shuffle_value(sum, mask);
    return State{largest, sum};
}

// ---- reductions -----------------------------------------------------------------------------------------

template <class T> __device__ __forceinline__ T value_of_lane(T value, int lane)
{
    if constexpr (sizeof(T) < 4) {
        return T(__shfl_sync(0xffffffffu, int(value), lane));
    } else {
        return __shfl_sync(0xffffffffu, value, lane);
    }
}
template <class R> __device__ __forceinline__ Complex<R> value_of_lane(Complex<R> value, int lane)
{
    return Complex<R>{value_of_lane(value.re, lane), value_of_lane(value.im, lane)};
}

// Count and sum first, so that each M2 is moved to the common mean once.
template <class State, int THREADS, int STRIDE> __device__ __forceinline__ State lanes_of_moments(const State state)
{
    auto count = state.f0, total = state.f1, lost = state.f2;
#pragma unroll
    for (int mask = STRIDE; mask < STRIDE * THREADS; mask <<= 1) {
        const auto other = shuffle_value(total, mask), sum = total + other;
        lost = (lost + shuffle_value(lost, mask)) + lost_in_sum(total, other, sum);
        count += shuffle_value(count, mask);
        total = sum;
    }
    const auto own = mean_of(state.f0, state.f1, state.f2), all = mean_of(count, total, lost);
    const auto gap = (own.most - all.most) + (own.rest - all.rest);
    auto spread = hlo_multiply_add(state.f0 * gap, gap, state.f3);
#pragma unroll
    for (int mask = STRIDE; mask < STRIDE * THREADS; mask <<= 1) spread += shuffle_value(spread, mask);
    return State{count, total, lost, spread};
}

// Sets of THREADS lanes that are STRIDE apart, within one warp: a butterfly.  The lower lane's state always
// comes first, so that all lanes compute the same bits even where combine(a, b) and combine(b, a) differ.
template <class R, int THREADS, int STRIDE, int COUNT>
__device__ __forceinline__ void reduce_lanes(typename R::State (&states)[COUNT])
{
    using State = typename R::State;
    if constexpr (R::joint == JOINT_EXPONENTIALS || R::joint == JOINT_MOMENTS) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if constexpr (R::joint == JOINT_MOMENTS) states[i] = lanes_of_moments<State, THREADS, STRIDE>(states[i]);
            else states[i] = lanes_of_exponentials<State, THREADS, STRIDE>(states[i]);
        return;
    }
#pragma unroll
    for (int mask = STRIDE; mask < STRIDE * THREADS; mask <<= 1) {
        const bool upper = !R::commutative && (threadIdx.x & mask);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const typename R::State other = R::shuffle(states[i], mask);
            states[i] = upper ? R::combine(other, states[i]) : R::combine(states[i], other);
        }
    }
}

// Sets of THREADS > 32 consecutive threads, in two halves with a block barrier between them, which several
// reductions may share: warps first ...
// slot: COUNT states for each warp of the block.
template <class R, int COUNT, class Slot>
__device__ __forceinline__ void reduce_warps(typename R::State (&states)[COUNT], Slot slot)
{
    reduce_lanes<R, 32, 1>(states);
    if (threadIdx.x % 32 == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) slot[threadIdx.x / 32 * COUNT + i] = states[i];
    }
}
// ... then the states of a set's warps: every thread combines all of them itself, or (BUTTERFLY, better where they are
// many) the lanes of each warp do it together.
template <class R, int THREADS, bool BUTTERFLY, int COUNT, class Slot>
__device__ __forceinline__ void combine_warps(typename R::State (&states)[COUNT], Slot slot)
{
    constexpr int warps = THREADS / 32;
    static_assert((warps & (warps - 1)) == 0, "combine_warps: pairs of warps");
    const int first = threadIdx.x / THREADS * warps * COUNT;
    if constexpr (BUTTERFLY) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) states[i] = slot[first + threadIdx.x % warps * COUNT + i];
        reduce_lanes<R, warps, 1>(states);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            typename R::State totals[warps];
#pragma unroll
            for (int warp = 0; warp < warps; ++warp) totals[warp] = slot[first + warp * COUNT + i];
            // In pairs: as many combinations, of which few wait for each other.
#pragma unroll
            for (int reach = 1; reach < warps; reach *= 2)
#pragma unroll
                for (int warp = 0; warp < warps; warp += 2 * reach)
                    totals[warp] = R::combine(totals[warp], totals[warp + reach]);
            states[i] = totals[0];
        }
    }
}

// The same for two to four simple reductions R at once.  In the first steps of the butterfly each half of the lanes goes
// on with half of the values, so that N values take N - 1 + log2(32 / N) exchanges and not N log2(32).
// slot: N states for each warp of the block.
template <class R, class Slot, class... States>
__device__ __forceinline__ void reduce_warps_together(Slot slot, States&... states)
{
    using State = typename R::State;
    constexpr int N = sizeof...(States), PLACES = N == 2 ? 2 : 4, LANES = 32 / PLACES;
    State values[PLACES] = {states[0]...};
#pragma unroll
    for (int i = N; i < PLACES; ++i) values[i] = R::identity();
#pragma unroll
    for (int half = PLACES / 2, mask = 16; half >= 1; half /= 2, mask /= 2) {
        const bool upper = threadIdx.x & mask;
#pragma unroll
        for (int i = 0; i < half; ++i) {
            const State kept = upper ? values[i + half] : values[i], sent = upper ? values[i] : values[i + half];
            values[i] = R::combine(kept, R::shuffle(sent, mask));
        }
    }
#pragma unroll
    for (int mask = LANES / 2; mask >= 1; mask /= 2) values[0] = R::combine(values[0], R::shuffle(values[0], mask));
    const int lane = threadIdx.x % 32;
    if (lane % LANES == 0 && lane / LANES < N) slot[threadIdx.x / 32 * N + lane / LANES] = values[0];
}
template <class R, int THREADS, class Slot, class... States>
__device__ __forceinline__ void combine_warps_together(Slot slot, States&... states)
{
    using State = typename R::State;
    constexpr int N = sizeof...(States), WARPS = THREADS / 32, SHARE = 32 / WARPS;
    const int lane = threadIdx.x % 32, first = threadIdx.x / THREADS * WARPS;
    State totals[N];
#pragma unroll
    for (int base = 0; base < N; base += SHARE) {
        const int number = base + lane / WARPS;
        State total = number < N ? slot[(first + lane % WARPS) * N + number] : R::identity();
#pragma unroll
        for (int mask = 1; mask < WARPS; mask *= 2) total = R::combine(total, R::shuffle(total, mask));
#pragma unroll
        for (int i = 0; i < SHARE; ++i)
            if (base + i < N) totals[base + i] = R::take(total, i * WARPS);
    }
    int i = 0;
    ((states[0] = totals[i++]), ...);
}

// Sets of THREADS threads that are STRIDE apart and span warps: threads that own the same columns.  Where a warp holds
// several of a set, its lanes combine theirs first.
// slot: CHUNK states for each column of each line of the block, a line being a warp (STRIDE < 32) or STRIDE threads, and
// one place more for each line; more states than that take turns.
// LANES: the lanes of a warp combine the lines' states together, where combining two takes long.
// ALONE: only the first warp needs the totals.
template <class R, int THREADS, int STRIDE, int BLOCK, int CHUNK, bool LANES, bool ALONE, int COUNT, class Slot>
__device__ __forceinline__ void reduce_strided(typename R::State (&states)[COUNT], Slot slot)
{
    constexpr int LINE = STRIDE < 32 ? 32 : STRIDE, LINES = BLOCK / LINE, MEMBERS = THREADS * STRIDE / LINE;
    constexpr int PITCH = STRIDE + 1, ALL = LINES * PITCH, SETS = LINES * STRIDE / MEMBERS;
    if constexpr (STRIDE < 32) reduce_lanes<R, 32 / STRIDE, STRIDE>(states);
    const int column = threadIdx.x % STRIDE, line = threadIdx.x / LINE, group = line / MEMBERS;
    const bool writes = threadIdx.x % LINE < STRIDE;
    if constexpr (LANES) {
        const int set = threadIdx.x / MEMBERS % SETS, member = threadIdx.x % MEMBERS;
        const int from = (set / STRIDE * MEMBERS + member) * PITCH + set % STRIDE;
#pragma unroll
        for (int base = 0; base < COUNT; base += CHUNK) {
            if (base) __syncthreads();
            typename R::State taken[CHUNK < COUNT ? CHUNK : COUNT];
#pragma unroll
            for (int i = 0; i < CHUNK; ++i)
                if (base + i < COUNT && writes) slot[i * ALL + line * PITCH + column] = states[base + i];
            __syncthreads();
#pragma unroll
            for (int i = 0; i < CHUNK; ++i)
                if (base + i < COUNT) taken[i] = slot[i * ALL + from];
            reduce_lanes<R, MEMBERS, 1>(taken);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < CHUNK; ++i)
                if (base + i < COUNT && member == 0 && threadIdx.x < SETS * MEMBERS) slot[i * ALL + set] = taken[i];
            __syncthreads();
#pragma unroll
            for (int i = 0; i < CHUNK; ++i)
                if (base + i < COUNT) states[base + i] = slot[i * ALL + group * STRIDE + column];
        }
        return;
    }
    const int first = group * MEMBERS * PITCH + column;
#pragma unroll
    for (int base = 0; base < COUNT; base += CHUNK) {
        if (base) __syncthreads();
#pragma unroll
        for (int i = 0; i < CHUNK; ++i)
            if (base + i < COUNT && writes) slot[i * ALL + line * PITCH + column] = states[base + i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            if (base + i < COUNT && (!ALONE || threadIdx.x < 32)) {
                typename R::State total = slot[i * ALL + first];
#pragma unroll 8
                for (int j = 1; j < MEMBERS; ++j) total = R::combine(total, slot[i * ALL + first + j * PITCH]);
                states[base + i] = total;
            }
        }
    }
}

// ---- scans: each state becomes the combination of itself and all that come before it in a fixed order -----------

struct no_carry {};
template <class T> struct no_reference { using type = T; };
template <class T> struct no_reference<T&> { using type = T; };

// BACKWARD: those that "come before" are the later ones.
template <class R, bool BACKWARD>
__device__ __forceinline__ typename R::State join_in_order(const typename R::State before, const typename R::State own)
{
    return BACKWARD ? R::combine(own, before) : R::combine(before, own);
}

// Over sets of LANES lanes that are STRIDE apart within a warp, each with COUNT states of their own: `before` becomes
// what the lanes before have, `totals` that and the lane's own.
template <class R, int LANES, int STRIDE, bool BACKWARD, int COUNT>
__device__ __forceinline__ void scan_lanes(typename R::State (&before)[COUNT], typename R::State (&totals)[COUNT])
{
    const int lane = threadIdx.x / STRIDE % LANES, place = BACKWARD ? LANES - 1 - lane : lane;
#pragma unroll
    for (int reach = 1; reach < LANES; reach <<= 1) {
        const int source = (threadIdx.x + (BACKWARD ? reach : -reach) * STRIDE) & 31;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const typename R::State other = R::take(totals[i], source);
            if (place >= reach) totals[i] = join_in_order<R, BACKWARD>(other, totals[i]);
        }
    }
    const int neighbour = (threadIdx.x + (BACKWARD ? STRIDE : -STRIDE)) & 31;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const typename R::State other = R::take(totals[i], neighbour);
        before[i] = place ? other : R::identity();
    }
}

// A row in the order (step, thread, number) over THREADS consecutive threads with STEPS vectors of WIDTH states each:
// within each vector, what comes before it in the row, and the row's total.
// slot: STEPS states for each warp of the block, where a row has several.
template <class R, int STEPS, int WIDTH, int THREADS, bool BACKWARD, int COUNT, class Slot>
__device__ __forceinline__ void scan_vectors(
    typename R::State (&states)[COUNT], Slot slot, typename R::State (&before)[STEPS], typename R::State& total)
{
    using State = typename R::State;
    constexpr int LANES = THREADS < 32 ? THREADS : 32;
    State totals[STEPS];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
#pragma unroll
        for (int i = 1; i < WIDTH; ++i) {
            const int at = s * WIDTH + (BACKWARD ? WIDTH - 1 - i : i);
            states[at] = join_in_order<R, BACKWARD>(states[BACKWARD ? at + 1 : at - 1], states[at]);
        }
        totals[s] = states[s * WIDTH + (BACKWARD ? 0 : WIDTH - 1)];
    }
    scan_lanes<R, LANES, 1, BACKWARD>(before, totals);
    const int last = BACKWARD ? 0 : LANES - 1;
    if constexpr (THREADS <= 32) {
        const int source = (threadIdx.x & 31 & -LANES) + last;
#pragma unroll
        for (int j = 0; j < STEPS; ++j) {
            const int s = BACKWARD ? STEPS - 1 - j : j;
            if (j) before[s] = join_in_order<R, BACKWARD>(total, before[s]);
            const State own = R::take(totals[s], source);
            total = j ? join_in_order<R, BACKWARD>(total, own) : own;
        }
    } else {
        // The totals of all (step, warp), in their order.
        constexpr int WARPS = THREADS / 32, ALL = STEPS * WARPS, TURNS = (ALL + 31) / 32;
        const int first = threadIdx.x / THREADS * ALL, warp = threadIdx.x % THREADS / 32, lane = threadIdx.x % 32;
        if (lane == last) {
#pragma unroll
            for (int s = 0; s < STEPS; ++s) slot[first + s * WARPS + warp] = totals[s];
        }
        __syncthreads();
        if constexpr (ALL <= 8) {  // few: each thread goes through all of them
            State up_to[STEPS];
#pragma unroll
            for (int j = 0; j < ALL; ++j) {
                const int number = BACKWARD ? ALL - 1 - j : j, s = number / WARPS;
                if (j % WARPS == 0 || number % WARPS == warp) up_to[s] = j ? total : R::identity();
                const State own = slot[first + number];
                total = j ? join_in_order<R, BACKWARD>(total, own) : own;
            }
#pragma unroll
            for (int s = 0; s < STEPS; ++s) before[s] = join_in_order<R, BACKWARD>(up_to[s], before[s]);
        } else {  // the lanes of each warp scan 32 of them at a time
            State found[TURNS], ahead[TURNS];
#pragma unroll
            for (int turn = 0; turn < TURNS; ++turn) {
                const int number = turn * 32 + lane;
                found[turn] = number < ALL ? slot[first + number] : R::identity();
            }
            scan_lanes<R, 32, 1, BACKWARD>(ahead, found);
#pragma unroll
            for (int j = 0; j < TURNS; ++j) {
                const int turn = BACKWARD ? TURNS - 1 - j : j;
                if (j) ahead[turn] = join_in_order<R, BACKWARD>(total, ahead[turn]);
                const State own = R::take(found[turn], BACKWARD ? 0 : 31);
                total = j ? join_in_order<R, BACKWARD>(total, own) : own;
            }
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const State up_to = R::take(ahead[s * WARPS / 32], s * WARPS % 32 + warp);
                before[s] = join_in_order<R, BACKWARD>(up_to, before[s]);
            }
        }
    }
}

// carry: what came before the row, and then what came up to its end.
template <class R, int STEPS, int WIDTH, int THREADS, bool BACKWARD, int COUNT, class Slot, class Carry>
__device__ __forceinline__ void scan_row(typename R::State (&states)[COUNT], Slot slot, Carry&& carry)
{
    constexpr bool CARRIED = !is_same<typename no_reference<Carry>::type, no_carry>;
    typename R::State before[STEPS], total;
    scan_vectors<R, STEPS, WIDTH, THREADS, BACKWARD>(states, slot, before, total);
    if constexpr (CARRIED) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) before[s] = join_in_order<R, BACKWARD>(carry[0], before[s]);
        carry[0] = join_in_order<R, BACKWARD>(carry[0], total);
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) states[i] = join_in_order<R, BACKWARD>(before[i / WIDTH], states[i]);
}

// ---- sorts -------------------------------------------------------------------------------------------------

// The same states of the thread whose number differs by mask: by the lanes of a warp, or CHUNK at a time through shared
// memory.
template <class R, int THREADS, int CHUNK, int COUNT, class Slot>
__device__ __forceinline__ void fetch_sorted(typename R::State (&states)[COUNT], Slot slot, int mask)
{
    if (THREADS <= 32 || mask < 32) {
#pragma unroll
        for (int r = 0; r < COUNT; ++r) states[r].f0 = shuffle_value(states[r].f0, mask);
        return;
    }
    if constexpr (THREADS > 32) {
        constexpr int TOGETHER = COUNT < CHUNK ? COUNT : CHUNK;
#pragma unroll
        for (int begin = 0; begin < COUNT; begin += TOGETHER) {
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) slot[i * blockDim.x + threadIdx.x] = states[begin + i];
            __syncthreads();
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) states[begin + i] = slot[i * blockDim.x + (threadIdx.x ^ mask)];
            __syncthreads();
        }
    }
}
// Each state r and the other thread's r ^ FLIP: the first thread of both keeps the less.
template <class R, int THREADS, int CHUNK, int FLIP, int COUNT, class Slot>
__device__ __forceinline__ void exchange_sorted(
    typename R::State (&states)[COUNT], Slot slot, int mask, bool is_first)
{
    typename R::State others[COUNT];
#pragma unroll
    for (int r = 0; r < COUNT; ++r) others[r] = states[r ^ FLIP];
    fetch_sorted<R, THREADS, CHUNK>(others, slot, mask);
#pragma unroll
    for (int r = 0; r < COUNT; ++r)
        if ((others[r].f0 < states[r].f0) == is_first) states[r].f0 = others[r].f0;
}

// The states of one thread whose numbers differ by MASK.
template <class R, int MASK, int COUNT>
__device__ __forceinline__ void order_states(typename R::State (&states)[COUNT])
{
#pragma unroll
    for (int r = 0; r < COUNT; ++r) {
        const int other = r ^ MASK;
        if (other < r || !(states[other].f0 < states[r].f0)) continue;
        const auto least = states[other].f0;
        states[other].f0 = states[r].f0;
        states[r].f0 = least;
    }
}
template <class R, int FROM, int TO, int COUNT>
__device__ __forceinline__ void order_strides(typename R::State (&states)[COUNT])
{
    if constexpr (FROM >= TO && FROM > 0) {
        order_states<R, FROM>(states);
        order_strides<R, FROM / 2, TO>(states);
    }
}
// Pairs of ordered runs within a thread, from SIZE elements of both on.
template <class R, int SIZE, int MOST, int COUNT>
__device__ __forceinline__ void merge_in_thread(typename R::State (&states)[COUNT])
{
    if constexpr (SIZE <= MOST) {
        order_states<R, SIZE - 1>(states);
        order_strides<R, SIZE / 4, 1>(states);
        merge_in_thread<R, SIZE * 2, MOST>(states);
    }
}
// Runs of the threads' steps: number (step, thread, width).
template <class R, int STEPS, int MOST, int WIDTH, int THREADS, int CHUNK, int COUNT, class Slot>
__device__ __forceinline__ void merge_steps(typename R::State (&states)[COUNT], Slot slot)
{
    if constexpr (STEPS <= MOST) {
        constexpr int FLIP = STEPS * WIDTH - 1;
        // The other half of the run is in later steps, from the last thread to the first.
        typename R::State mirrored[COUNT];
#pragma unroll
        for (int r = 0; r < COUNT; ++r) mirrored[r] = states[r ^ FLIP];
        fetch_sorted<R, THREADS, CHUNK>(mirrored, slot, THREADS - 1);
#pragma unroll
        for (int r = 0; r < COUNT; ++r)
            if ((mirrored[r].f0 < states[r].f0) == ((r & (STEPS / 2 * WIDTH)) == 0)) states[r].f0 = mirrored[r].f0;
        order_strides<R, STEPS * WIDTH / 4, WIDTH>(states);
#pragma unroll 1
        for (int mask = THREADS / 2; mask > 0; mask >>= 1)
            exchange_sorted<R, THREADS, CHUNK, 0>(states, slot, mask, (threadIdx.x & mask) == 0);
        order_strides<R, WIDTH / 2, 1>(states);
        merge_steps<R, STEPS * 2, MOST, WIDTH, THREADS, CHUNK>(states, slot);
    }
}

// A row in the order of scan_row, the least first: a bitonic network whose runs all ascend.  What a thread has beyond its
// states is the identity, which is the largest.
// slot: CHUNK states for each thread of the block, where a row has more threads than a warp.
template <class R, int STEPS, int WIDTH, int THREADS, int CHUNK, int COUNT, class Slot>
__device__ __forceinline__ void sort_row(typename R::State (&given)[COUNT], Slot slot)
{
    constexpr int MOST = STEPS <= 1 ? 1 : STEPS <= 2 ? 2 : STEPS <= 4 ? 4 : STEPS <= 8 ? 8 : 16;
    typename R::State states[MOST * WIDTH];
#pragma unroll
    for (int r = 0; r < MOST * WIDTH; ++r) states[r] = r < COUNT ? given[r < COUNT ? r : 0] : R::identity();
    merge_in_thread<R, 2, WIDTH>(states);
#pragma unroll 1
    for (int size = 2; size <= THREADS; size *= 2) {
        exchange_sorted<R, THREADS, CHUNK, WIDTH - 1>(states, slot, size - 1, (threadIdx.x & (size / 2)) == 0);
#pragma unroll 1
        for (int mask = size / 4; mask > 0; mask >>= 1)
            exchange_sorted<R, THREADS, CHUNK, 0>(states, slot, mask, (threadIdx.x & mask) == 0);
        order_strides<R, WIDTH / 2, 1>(states);
    }
    merge_steps<R, 2, MOST, WIDTH, THREADS, CHUNK>(states, slot);
#pragma unroll
    for (int r = 0; r < COUNT; ++r) given[r] = states[r];
}

// WIDTH columns in the order (thread, step) over THREADS threads that are STRIDE apart: within each thread, what comes
// before it in the column, and the columns' totals.  The lanes of a warp that share a column first, then the warps or
// threads that do.
// slot: WIDTH states for each column of each line of the block, a line being a warp (STRIDE < 32) or STRIDE threads, where
// columns span lines.
template <class R, int STEPS, int WIDTH, int THREADS, int STRIDE, bool BACKWARD, int COUNT, class Slot>
__device__ __forceinline__ void scan_steps(
    typename R::State (&states)[COUNT], Slot slot, typename R::State (&before)[WIDTH], typename R::State (&totals)[WIDTH])
{
    using State = typename R::State;
    constexpr int SET = THREADS * STRIDE, LINE = STRIDE < 32 ? 32 : STRIDE;
    constexpr int LANES = STRIDE < 32 ? (SET < 32 ? THREADS : 32 / STRIDE) : 1, LINES = SET < 32 ? 1 : SET / LINE;
    constexpr int LAST = BACKWARD ? 0 : STEPS - 1;
#pragma unroll
    for (int s = 1; s < STEPS; ++s) {
        const int at = BACKWARD ? STEPS - 1 - s : s;
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            State& own = states[at * WIDTH + c];
            own = join_in_order<R, BACKWARD>(states[(BACKWARD ? at + 1 : at - 1) * WIDTH + c], own);
        }
    }
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
        before[c] = R::identity();
        totals[c] = states[LAST * WIDTH + c];
    }
    const int column = threadIdx.x % STRIDE, lane = threadIdx.x / STRIDE % LANES, last = BACKWARD ? 0 : LANES - 1;
    if constexpr (LANES > 1) scan_lanes<R, LANES, STRIDE, BACKWARD>(before, totals);
    if constexpr (LINES > 1) {
        const int line = threadIdx.x / LINE, first = line / LINES * LINES;
        if (lane == last) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) slot[(line * WIDTH + c) * STRIDE + column] = totals[c];
        }
        __syncthreads();
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            State run = R::identity(), up_to = run;
#pragma unroll
            for (int j = 0; j < LINES; ++j) {
                const int other = first + (BACKWARD ? LINES - 1 - j : j);
                if (other == line) up_to = run;
                run = join_in_order<R, BACKWARD>(run, slot[(other * WIDTH + c) * STRIDE + column]);
            }
            before[c] = join_in_order<R, BACKWARD>(up_to, before[c]);
            totals[c] = run;
        }
    } else if constexpr (LANES > 1) {
        const int source = (threadIdx.x & 31 & -(LANES * STRIDE)) + last * STRIDE + column;
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) totals[c] = R::take(totals[c], source);
    }
}

// carry: of each column.
template <class R, int STEPS, int WIDTH, int THREADS, int STRIDE, bool BACKWARD, int COUNT, class Slot, class Carry>
__device__ __forceinline__ void scan_columns(typename R::State (&states)[COUNT], Slot slot, Carry&& carry)
{
    constexpr bool CARRIED = !is_same<typename no_reference<Carry>::type, no_carry>;
    typename R::State before[WIDTH], totals[WIDTH];
    scan_steps<R, STEPS, WIDTH, THREADS, STRIDE, BACKWARD>(states, slot, before, totals);
    if constexpr (CARRIED) {
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            before[c] = join_in_order<R, BACKWARD>(carry[c], before[c]);
            carry[c] = join_in_order<R, BACKWARD>(carry[c], totals[c]);
        }
    }
    if constexpr (CARRIED || THREADS > 1) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) states[i] = join_in_order<R, BACKWARD>(before[i % WIDTH], states[i]);
    }
}

// ---- states of the members of a block group --------------------------------------------------------------
// A field is one or two words.  A state of one travels as a tagged word; of more, three beside each tag.

template <class T> __device__ __forceinline__ void words_of_field(unsigned*& words, T value)
{
    if constexpr (sizeof(T) == 8) {
        const unsigned long long bits = same_bits<unsigned long long>(value);
        *words++ = unsigned(bits);
        *words++ = unsigned(bits >> 32);
    } else if constexpr (is_same<T, float>) {
        *words++ = same_bits<unsigned>(value);
    } else {
        *words++ = unsigned(value);
    }
}
template <class R> __device__ __forceinline__ void words_of_field(unsigned*& words, Complex<R> value)
{
    words_of_field(words, value.re);
    words_of_field(words, value.im);
}
template <int COUNT>
__device__ __forceinline__ void publish_words(unsigned long long* to, const unsigned (&words)[COUNT], unsigned tag)
{
    if constexpr (COUNT == 1) {
        astitch_publish_word(to, words[0], tag);
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; i += 3) {
            const unsigned second = i + 1 < COUNT ? words[i + 1] : 0, third = i + 2 < COUNT ? words[i + 2] : 0;
            astitch_publish_three(to + i / 3 * 2, words[i], second, third, tag);
        }
    }
}
// Is all of it there?
template <int COUNT>
__device__ __forceinline__ bool take_words(const unsigned long long* from, unsigned tag, unsigned (&words)[COUNT])
{
    if constexpr (COUNT == 1) {
        return astitch_take_word(from, tag, words[0]);
    } else {
        bool ready = true;
#pragma unroll
        for (int i = 0; i < COUNT; i += 3) {
            unsigned three[3];
            ready &= astitch_take_three(from + i / 3 * 2, tag, three);
#pragma unroll
            for (int j = 0; j < 3; ++j)
                if (i + j < COUNT) words[i + j] = three[j];
        }
        return ready;
    }
}
template <class T> __device__ __forceinline__ T field_of_words(const unsigned*& words)
{
    if constexpr (is_complex<T>) {
        const auto re = field_of_words<part_of<T>>(words), im = field_of_words<part_of<T>>(words);
        return T{re, im};
    } else if constexpr (sizeof(T) == 8) {
        const unsigned long long low = *words++, high = *words++;
        return same_bits<T>(high << 32 | low);
    } else if constexpr (is_same<T, float>) {
        return same_bits<float>(*words++);
    } else {
        return T(*words++);
    }
}

// This thread's share of the parts of one result joins its state: parts rank, rank + MEMBERS ..., in this order.  Several
// are asked for at once.  STRIDE: tagged words from part to part.
template <class R, int MEMBERS, int PARTS, int STRIDE>
__device__ __forceinline__ void collect_parts(
    typename R::State& state, const unsigned long long* parts, int rank, unsigned tag)
{
    constexpr int TURNS = (PARTS + MEMBERS - 1) / MEMBERS, TOGETHER = TURNS < 4 ? TURNS : 4;
#pragma unroll 1
    for (int turn = 0; turn < TURNS; turn += TOGETHER) {
        unsigned found[TOGETHER][R::payload];
        astitch_patience patience;
        while (true) {
            bool ready = true;
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                const int part = (turn + i) * MEMBERS + rank;
                if (part < PARTS) ready &= take_words(parts + part * STRIDE, tag, found[i]);
            }
            if (ready) break;
            patience.wait();
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i)
            if ((turn + i) * MEMBERS + rank < PARTS) state = R::combine(state, R::state_of(found[i]));
    }
}

// The parts from `low` on and below `high` that are this thread's: rank, rank + MEMBERS .., in this order.
template <class R, int MEMBERS, int STRIDE>
__device__ __forceinline__ void collect_range(
    typename R::State& state, const unsigned long long* parts, int rank, int low, int high, unsigned tag)
{
    constexpr int TOGETHER = 4;
#pragma unroll 1
    for (int first = rank; first < high; first += MEMBERS * TOGETHER) {
        unsigned found[TOGETHER][R::payload];
        astitch_patience patience;
        while (true) {
            bool ready = true;
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) {
                const int part = first + i * MEMBERS;
                if (part >= low && part < high) ready &= take_words(parts + part * STRIDE, tag, found[i]);
            }
            if (ready) break;
            patience.wait();
        }
#pragma unroll
        for (int i = 0; i < TOGETHER; ++i) {
            const int part = first + i * MEMBERS;
            if (part >= low && part < high) state = R::combine(state, R::state_of(found[i]));
        }
    }
}

// A row of which this block has one of PARTS parts, all worked on at the same time, each by a block: a simple reduction.
// parts: where they publish their totals, R::words tagged words each.  handed: two shared states.
template <class R, int STEPS, int WIDTH, int THREADS, bool BACKWARD, int PARTS, int COUNT, class Slot, class Handed>
__device__ __forceinline__ void scan_row_of_team(
    typename R::State (&states)[COUNT], Slot slot, typename R::State (&carry)[1], unsigned long long* parts, int part,
    Handed handed, unsigned tag)
{
    using State = typename R::State;
    State before[STEPS], total;
    scan_vectors<R, STEPS, WIDTH, THREADS, BACKWARD>(states, slot, before, total);
    if (threadIdx.x == 0) R::publish(total, parts + part * R::words, tag);
    if (threadIdx.x < 32) {
        State ahead[1] = {R::identity()}, others[1] = {R::identity()};
        const int lane = threadIdx.x;
        // Parts lane, lane + 32 ..: those that come before, and the rest.
        collect_range<R, 32, R::words>(ahead[0], parts, lane, BACKWARD ? part + 1 : 0, BACKWARD ? PARTS : part, tag);
        collect_range<R, 32, R::words>(others[0], parts, lane, BACKWARD ? 0 : part, BACKWARD ? part + 1 : PARTS, tag);
        reduce_lanes<R, 32, 1>(ahead);
        reduce_lanes<R, 32, 1>(others);
        if (lane == 0) {
            handed[0] = join_in_order<R, BACKWARD>(carry[0], ahead[0]);
            handed[1] = R::combine(handed[0], others[0]);
        }
    }
    __syncthreads();
    const State start = handed[0];
    carry[0] = handed[1];
#pragma unroll
    for (int s = 0; s < STEPS; ++s) before[s] = join_in_order<R, BACKWARD>(start, before[s]);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) states[i] = join_in_order<R, BACKWARD>(before[i / WIDTH], states[i]);
}

// The same for all columns of a block, each with its parts one after the other.  handed: two shared states for each.
template <
    class R, int STEPS, int WIDTH, int THREADS, int STRIDE, bool BACKWARD, int PARTS, int COUNT, class Slot, class Handed>
__device__ __forceinline__ void scan_columns_of_team(
    typename R::State (&states)[COUNT], Slot slot, typename R::State (&carry)[WIDTH], unsigned long long* parts, int part,
    Handed handed, unsigned tag)
{
    using State = typename R::State;
    constexpr int LINE = STRIDE < 32 ? 32 : STRIDE, LANES = LINE / STRIDE;
    State before[WIDTH], totals[WIDTH];
    scan_steps<R, STEPS, WIDTH, THREADS, STRIDE, BACKWARD>(states, slot, before, totals);
    const int column = threadIdx.x % STRIDE, lane = threadIdx.x / STRIDE % LANES;
    if (threadIdx.x < LINE) {
        State ahead[WIDTH], others[WIDTH];
        unsigned long long* const own = parts + column * WIDTH * PARTS * R::words;
        if (lane == 0) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) R::publish(totals[c], own + (c * PARTS + part) * R::words, tag);
        }
#pragma unroll
        for (int c = 0; c < WIDTH; ++c) {
            ahead[c] = others[c] = R::identity();
            const unsigned long long* const from = own + c * PARTS * R::words;
            collect_range<R, LANES, R::words>(ahead[c], from, lane, BACKWARD ? part + 1 : 0, BACKWARD ? PARTS : part, tag);
            collect_range<R, LANES, R::words>(others[c], from, lane, BACKWARD ? 0 : part, BACKWARD ? part + 1 : PARTS, tag);
        }
        if constexpr (LANES > 1) {
            reduce_lanes<R, LANES, STRIDE>(ahead);
            reduce_lanes<R, LANES, STRIDE>(others);
        }
        if (lane == 0) {
#pragma unroll
            for (int c = 0; c < WIDTH; ++c) {
                const State start = join_in_order<R, BACKWARD>(carry[c], ahead[c]);
                handed[2 * c * STRIDE + column] = start;
                handed[(2 * c + 1) * STRIDE + column] = R::combine(start, others[c]);
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int c = 0; c < WIDTH; ++c) {
        before[c] = join_in_order<R, BACKWARD>(handed[2 * c * STRIDE + column], before[c]);
        carry[c] = handed[(2 * c + 1) * STRIDE + column];
    }
#pragma unroll
    for (int i = 0; i < COUNT; ++i) states[i] = join_in_order<R, BACKWARD>(before[i % WIDTH], states[i]);
}
