#include "astitch.cuh"
// stitch_0: grid 1 x 512 threads, 576 B shared
//   jit(column_sum_narrow)/reduce_sum
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 1) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_reduce_sum_7) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(576);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 144);
  {  // loop 0: outer 1 / 1 threads, row 3000 / 64 threads x 47, col 5 / 8 threads x 1 x 1; 1 tasks; column-reduce: 64 rows x 8 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = threadIdx.x / 8;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      #pragma unroll 24
      for (int k = 0; k < 24; ++k) {
        const int row = k * 64 + ty;
        {
          const int l = 0;
          const int col_raw = l * 8 + tx;
          const int col = clamped(col_raw, 4);
          const int at_0 = row * 5 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
        }
      }
      #pragma unroll
      for (int turn = 0; turn < 22; ++turn) {
        const int k = turn + 24;
        const int row = k * 64 + ty;
        {
          const int l = 0;
          const int col_raw = l * 8 + tx;
          const int col = clamped(col_raw, 4);
          const int at_0 = row * 5 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
        }
      }
      {
        const int turn = 0;
        const int k = 46;
        const int row_raw = k * 64 + ty;
        const int row = clamped(row_raw, 2999);
        {
          const int l = 0;
          const int col_raw = l * 8 + tx;
          const int col = clamped(col_raw, 4);
          const int at_0 = row * 5 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          if (row_raw < 3000) {
            reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
          }
        }
      }
      reduce_strided<Reduce0, 64, 8, 512, 4, false, true>(reduce_sum_7_state_0, exchange_0_0);
      {
        const int l = 0;
        const int col = l * 8 + tx;
        if (col < 5) {
          const float reduce_sum_7 = reduce_sum_7_state_0[l].f0;
          if (ty < 1) {
            p_reduce_sum_7[col] = store_as<float>(reduce_sum_7);
          }
        }
      }
    }
  }
}
