#include "astitch.cuh"
// stitch_0: grid 125 x 256 threads, 0 B shared
//   jit(dien_reduce)/exp
//   jit(dien_reduce)/reduce_sum
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
  {  // loop 0: outer 4000 / 32 threads, row 1 / 1 threads x 1, col 32 / 8 threads x 1 x 4; 125 tasks; row-reduce: 32 rows a block, 8 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = 0;
    const int to = threadIdx.x / 8;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer = task * 32 + to;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 32 + tx * 4;
          const int at_0 = outer * 32 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            const float exp_1 = hlo_exp(x_1);
            reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{exp_1});
          }
        }
      }
      reduce_lanes<Reduce0, 8, 1>(reduce_sum_7_state_0);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_7[outer] = store_as<float>(reduce_sum_7);
      }
    }
  }
}
