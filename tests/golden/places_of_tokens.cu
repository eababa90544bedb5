#include "astitch.cuh"
// stitch_0: grid 11 x 512 threads, 512 B shared
//   reduce
//   eq
//   convert_element_type
//   reduce_window_sum
//   jit(places_of_tokens)/mul
//   jit(places_of_tokens)/reduce_sum
//   jit(places_of_tokens)/sub
//   jit(places_of_tokens)/lt
//   and 2 more
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; int f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u), 0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const bool v4 = hlo_compare_gt(a.f0, b.f0);
    const bool v5 = hlo_compare_ne(a.f0, a.f0);
    const bool v6 = hlo_or(v4, v5);
    const float v7 = (v6 ? a.f0 : b.f0);
    const bool v8 = hlo_compare_eq(a.f0, b.f0);
    const bool v9 = hlo_compare_lt(a.f1, b.f1);
    const bool v10 = hlo_and(v8, v9);
    const bool v11 = hlo_or(v6, v10);
    const int v12 = (v11 ? a.f1 : b.f1);
    return State{v7, v12};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
struct Reduce1 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
struct Reduce2 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { int f0; };
  static __device__ __forceinline__ State identity() { return State{0}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const int v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_scores_1,
    int* __restrict__ p_sub_3,
    float* __restrict__ p_select_n_5,
    unsigned char* scratch,
    unsigned int* barrier) {
  int* const p_reduce_11_1 = reinterpret_cast<int*>(scratch + 0);
  float* const p_reduce_max_7 = reinterpret_cast<float*>(scratch + 2816);
  int* const p_reduce_sum_7_partial0_0 = reinterpret_cast<int*>(scratch + 5632);
  int* const p_reduce_sum_7 = reinterpret_cast<int*>(scratch + 14080);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(512);
  ASTITCH_SHARED(Reduce2::State, exchange_2_0, 0, 128);
  {  // loop 0: outer 700 / 64 threads, row 1 / 1 threads x 1, col 24 / 8 threads x 1 x 4; 11 tasks; row-reduce: 64 rows a block, 8 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = 0;
    const int to = threadIdx.x / 8;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer_raw = task * 64 + to;
      const int outer = clamped(outer_raw, 699);
      Reduce0::State reduce_11_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_11_state_0[i] = Reduce0::identity();
      Reduce1::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce1::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 32 + tx * 4;
          if (col < 24) {
            const int at_0 = outer * 24 + col;
            const Vec<float, 4> scores_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_scores_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float scores_1 = load_as<float>(scores_1_v_0.v[lane]);
              const int iota_2 = hlo_convert<int>(col + lane);
              reduce_11_state_0[0] = Reduce0::combine(reduce_11_state_0[0], Reduce0::State{scores_1, iota_2});
              reduce_max_7_state_0[0] = Reduce1::combine(reduce_max_7_state_0[0], Reduce1::State{scores_1});
            }
          }
        }
      }
      reduce_lanes<Reduce0, 8, 1>(reduce_11_state_0);
      reduce_lanes<Reduce1, 8, 1>(reduce_max_7_state_0);
      const int reduce_11 = reduce_11_state_0[0].f1;
      if (outer_raw < 700 && tx < 1) {
        p_reduce_11_1[outer] = store_as<int>(reduce_11);
      }
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      if (outer_raw < 700 && tx < 1) {
        p_reduce_max_7[outer] = store_as<float>(reduce_max_7);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce.11, %reduce_max.7 before level 1
  {  // loop 1: outer 1 / 1 threads, row 700 / 128 threads x 8, col 24 / 4 threads x 1 x 2; 3 tasks; running reduction: 128 x 8 rows, 4 threads wide
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 4;
    const int ty = threadIdx.x / 4;
    const int to = 0;
    const int first = blockIdx.x;
    int reduce_13_kept_0[8];
    Reduce2::State reduce_sum_7_state_0[8];
    #pragma unroll
    for (int i = 0; i < 8; ++i) reduce_sum_7_state_0[i] = Reduce2::identity();
    if (first < 3) {
      const int task = first;
      const int col_tile = task;
      Reduce2::State reduce_window_sum_7_state_0[16];
      #pragma unroll
      for (int i = 0; i < 16; ++i) reduce_window_sum_7_state_0[i] = Reduce2::identity();
      #pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int row = ty * 8 + k;
        if (row < 700) {
          const int reduce_13 = load_as<int>(p_reduce_11_1[row]);
          reduce_13_kept_0[k] = store_as<int>(reduce_13);
          {
            const int l = 0;
            const int col = l * 8 + tx * 2 + col_tile * 8;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int iota_2__1 = hlo_convert<int>(col + lane);
              const bool eq_15 = hlo_compare_eq(reduce_13, iota_2__1);
              const int convert_element_type_1 = hlo_convert<int, bool>(eq_15);
              reduce_window_sum_7_state_0[k * 2 + l * 2 + lane] = Reduce2::combine(reduce_window_sum_7_state_0[k * 2 + l * 2 + lane], Reduce2::State{convert_element_type_1});
            }
          }
        }
      }
      scan_columns<Reduce2, 8, 2, 128, 4, false>(reduce_window_sum_7_state_0, exchange_2_0, no_carry());
      #pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int row = ty * 8 + k;
        if (row < 700) {
          const int reduce_13__1 = load_as<int>(reduce_13_kept_0[k]);
          {
            const int l = 0;
            const int col = l * 8 + tx * 2 + col_tile * 8;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const int reduce_window_sum_7 = reduce_window_sum_7_state_0[k * 2 + l * 2 + lane].f0;
              const int iota_2__2 = hlo_convert<int>(col + lane);
              const bool eq_15__1 = hlo_compare_eq(reduce_13__1, iota_2__2);
              const int convert_element_type_1__1 = hlo_convert<int, bool>(eq_15__1);
              const int mul_1 = hlo_multiply(reduce_window_sum_7, convert_element_type_1__1);
              reduce_sum_7_state_0[k] = Reduce2::combine(reduce_sum_7_state_0[k], Reduce2::State{mul_1});
            }
          }
        }
      }
    }
    reduce_lanes<Reduce2, 4, 1>(reduce_sum_7_state_0);
    if (first < 3) {
      #pragma unroll
      for (int k = 0; k < 8; ++k) {
        const int row = ty * 8 + k;
        if (row < 700) {
          if (tx < 1) {
            p_reduce_sum_7_partial0_0[first * 700 + row] = store_as<int>(reduce_sum_7_state_0[k].f0);
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce.11, %reduce_max.7, %reduce_sum.7 before level 2
  {  // loop 2: outer 1 / 1 threads, row 3 / 1 threads x 3, col 700 / 512 threads x 1 x 1; 2 tasks; column-reduce: 1 rows x 512 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 2) {
      const int task = first;
      const int col_tile = task;
      Reduce2::State reduce_sum_7_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0__1[i] = Reduce2::identity();
      #pragma unroll
      for (int turn = 0; turn < 3; ++turn) {
        const int k = turn;
        const int row = k + ty;
        {
          const int l = 0;
          const int col_raw = l * 512 + tx + col_tile * 512;
          const int col = clamped(col_raw, 699);
          const int at_0__1 = row * 700 + col;
          reduce_sum_7_state_0__1[l] = Reduce2::combine(reduce_sum_7_state_0__1[l], Reduce2::State{load_as<int>(p_reduce_sum_7_partial0_0[at_0__1])});
        }
      }
      {
        const int l = 0;
        const int col = l * 512 + tx + col_tile * 512;
        if (col < 700) {
          const int reduce_sum_7 = reduce_sum_7_state_0__1[l].f0;
          p_reduce_sum_7[col] = store_as<int>(reduce_sum_7);
        }
      }
      #pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int row = k + ty;
        {
          const int l = 0;
          const int col = l * 512 + tx + col_tile * 512;
          if (col < 700) {
            const int reduce_sum_7__1 = reduce_sum_7_state_0__1[l].f0;
            const int sub_3 = hlo_subtract(reduce_sum_7__1, 1);
            if (row < 1) {
              p_sub_3[col] = store_as<int>(sub_3);
            }
            const bool lt_5 = hlo_compare_lt(sub_3, 40);
            const float reduce_max_7__1 = load_as<float>(p_reduce_max_7[col]);
            const float select_n_5 = (lt_5 ? reduce_max_7__1 : 0.0f);
            if (row < 1) {
              p_select_n_5[col] = store_as<float>(select_n_5);
            }
          }
        }
      }
    }
  }
}
