#include "astitch.cuh"
// stitch_0: grid 33 x 256 threads, 64 B shared
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/reduce_sum
//   jit(softmax)/div
struct Reduce0 {
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
struct Reduce1 {
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
    float* __restrict__ p_div_7) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 32, 8);
  {  // loop 0: outer 33 / 1 threads, row 1 / 1 threads x 1, col 257 / 256 threads x 2 x 1; 33 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    float x_1_kept_0[2];
    float exp_1_kept_0[2];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 256 + tx;
          if (col < 257) {
            const int at_0 = outer * 257 + col;
            const float x_1 = load_as<float>(p_x_1[at_0]);
            x_1_kept_0[k * 2 + l] = store_as<float>(x_1);
            reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{x_1});
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_max_7_state_0, exchange_0_0);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 256 + tx;
          if (col < 257) {
            const float x_1__1 = load_as<float>(x_1_kept_0[k * 2 + l]);
            const float sub_7 = hlo_subtract(x_1__1, reduce_max_7);
            const float exp_1 = hlo_exp(sub_7);
            exp_1_kept_0[k * 2 + l] = exp_1;
            reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
          }
        }
      }
      reduce_warps<Reduce1>(reduce_sum_7_state_0, exchange_1_1);
      __syncthreads();
      combine_warps<Reduce1, 256, false>(reduce_sum_7_state_0, exchange_1_1);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 256 + tx;
          if (col < 257) {
            const float exp_1__1 = exp_1_kept_0[k * 2 + l];
            const float div_7 = hlo_divide_shared(exp_1__1, reduce_sum_7);
            const int at_0__1 = outer * 257 + col;
            p_div_7[at_0__1] = store_as<float>(div_7);
          }
        }
      }
    }
  }
}
