#include "astitch.cuh"
// stitch_0: grid 1 x 256 threads, 160 B shared
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
extern "C" __global__ void __launch_bounds__(256, 1) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_reduce_sum_7) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(160);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 40);
  {  // loop 0: outer 1 / 1 threads, row 3000 / 256 threads x 12, col 5 / 1 threads x 5 x 1; 1 tasks; column-reduce: 256 rows x 1 threads a block
    const int thread = threadIdx.x;
    const int tx = 0;
    const int ty = threadIdx.x;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      Reduce0::State reduce_sum_7_state_0[5];
      #pragma unroll
      for (int i = 0; i < 5; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      #pragma unroll 6
      for (int k = 0; k < 6; ++k) {
        const int row = k * 256 + ty;
        #pragma unroll 8
        for (int l = 0; l < 5; ++l) {
          const int col = l + tx;
          const int at_0 = row * 5 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
        }
      }
      #pragma unroll
      for (int turn = 0; turn < 5; ++turn) {
        const int k = turn + 6;
        const int row = k * 256 + ty;
        #pragma unroll 8
        for (int l = 0; l < 5; ++l) {
          const int col = l + tx;
          const int at_0 = row * 5 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
        }
      }
      {
        const int turn = 0;
        const int k = 11;
        const int row_raw = k * 256 + ty;
        const int row = clamped(row_raw, 2999);
        #pragma unroll 8
        for (int l = 0; l < 5; ++l) {
          const int col = l + tx;
          const int at_0 = row * 5 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          if (row_raw < 3000) {
            reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 256, true>(reduce_sum_7_state_0, exchange_0_0); }
      #pragma unroll 8
      for (int l = 0; l < 5; ++l) {
        const int col = l + tx;
        const float reduce_sum_7 = reduce_sum_7_state_0[l].f0;
        if (ty < 1) {
          p_reduce_sum_7[col] = store_as<float>(reduce_sum_7);
        }
      }
    }
  }
}
