#include "astitch.cuh"
// stitch_0: grid 8 x 512 threads, 64 B shared
//   jit(transformer_reduce)/mul
//   jit(transformer_reduce)/reduce_sum
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
    const float* __restrict__ p_y_1,
    float* __restrict__ p_reduce_sum_7) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  {  // loop 0: outer 8 / 1 threads, row 1 / 1 threads x 1, col 15000 / 512 threads x 8 x 4; 8 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 8; ++l) {
          const int col = l * 2048 + tx * 4;
          if (col < 15000) {
            const int at_0 = outer * 15000 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            const Vec<float, 4> y_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_y_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float y_1 = load_as<float>(y_1_v_0.v[lane]);
              const float mul_7 = hlo_multiply(x_1, y_1);
              reduce_sum_7_state_0[0].f0 = hlo_multiply_add(x_1, y_1, reduce_sum_7_state_0[0].f0);
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_7_state_0, exchange_0_0); }
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_7[outer] = store_as<float>(reduce_sum_7);
      }
    }
  }
}
