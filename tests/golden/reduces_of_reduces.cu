#include "astitch.cuh"
// stitch_0: grid 15 x 512 threads, 2368 B shared
//   jit(reduces_of_reduces)/exp
//   jit(reduces_of_reduces)/reduce_sum
//   jit(reduces_of_reduces)/reduce_max
//   jit(reduces_of_reduces)/sqrt
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
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    float* p_reduce_sum_21,
    float* __restrict__ p_reduce_max_14,
    float* __restrict__ p_reduce_sum_23,
    float* __restrict__ p_reduce_sum_22,
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(2368);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 576);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 2304, 16);
  {  // loop 0: outer 24x20 / 32 threads, row 1 / 1 threads x 1, col 36 / 16 threads x 1 x 4; 15 tasks; row-reduce: 32 rows a block, 16 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 16;
    const int ty = 0;
    const int to = threadIdx.x / 16;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer = task * 32 + to;
      Reduce0::State reduce_sum_21_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_21_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 64 + tx * 4;
          if (col < 36) {
            const int at_0 = outer * 36 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float exp_1 = hlo_exp(x_1);
              reduce_sum_21_state_0[0] = Reduce0::combine(reduce_sum_21_state_0[0], Reduce0::State{exp_1});
            }
          }
        }
      }
      reduce_lanes<Reduce0, 16, 1>(reduce_sum_21_state_0);
      const float reduce_sum_21 = reduce_sum_21_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_21[outer] = store_as<float>(reduce_sum_21);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.21 before level 1
  {  // loop 1: outer 24 / 64 threads, row 1 / 1 threads x 1, col 20 / 8 threads x 1 x 4; 1 tasks; row-reduce: 64 rows a block, 8 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = 0;
    const int to = threadIdx.x / 8;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      const int outer_raw = task * 64 + to;
      const int outer = clamped(outer_raw, 23);
      Reduce1::State reduce_max_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_14_state_0[i] = Reduce1::identity();
      Reduce0::State reduce_sum_23_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_sum_23_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 32 + tx * 4;
          if (col < 20) {
            const int at_0__1 = outer * 20 + col;
            const Vec<float, 4> reduce_sum_21_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_reduce_sum_21 + (at_0__1));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float reduce_sum_21__1 = load_as<float>(reduce_sum_21_v_0.v[lane]);
              reduce_max_14_state_0[0] = Reduce1::combine(reduce_max_14_state_0[0], Reduce1::State{reduce_sum_21__1});
              const float sqrt_1 = hlo_sqrt(reduce_sum_21__1);
              if (outer_raw < 24) {
                reduce_sum_23_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_23_state_0[l * 4 + lane], Reduce0::State{sqrt_1});
              }
            }
          }
        }
      }
      reduce_lanes<Reduce1, 8, 1>(reduce_max_14_state_0);
      reduce_strided<Reduce0, 64, 8, 512, 4, false, false>(reduce_sum_23_state_0, exchange_0_0);
      const float reduce_max_14 = reduce_max_14_state_0[0].f0;
      if (outer_raw < 24 && tx < 1) {
        p_reduce_max_14[outer] = store_as<float>(reduce_max_14);
      }
      {
        const int l = 0;
        const int col = l * 32 + tx * 4;
        if (col < 20) {
          Vec<float, 4> reduce_sum_23_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float reduce_sum_23 = reduce_sum_23_state_0[l * 4 + lane].f0;
            reduce_sum_23_w_0.v[lane] = store_as<float>(reduce_sum_23);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_23 + (col)) = reduce_sum_23_w_0;
          }
        }
      }
      Reduce0::State reduce_sum_22_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_22_state_0[i] = Reduce0::identity();
      const float reduce_max_14__1 = reduce_max_14_state_0[0].f0;
      if (outer_raw < 24 && tx < 1) {
        reduce_sum_22_state_0[0] = Reduce0::combine(reduce_sum_22_state_0[0], Reduce0::State{reduce_max_14__1});
      }
      reduce_warps<Reduce0>(reduce_sum_22_state_0, exchange_0_1);
      __syncthreads();
      combine_warps<Reduce0, 512, false>(reduce_sum_22_state_0, exchange_0_1);
      const float reduce_sum_22 = reduce_sum_22_state_0[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_22[0] = store_as<float>(reduce_sum_22);
      }
    }
  }
}
