#include "astitch.cuh"
// stitch_0: grid 64 x 256 threads, 96 B shared
//   reduce_max
//   sub
//   exp
//   reduce_sum
//   neg
//   div
//   broadcast_in_dim
//   mul
//   and 1 more
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
    const float* __restrict__ p_dy_1,
    float* __restrict__ p_add_any_1) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(96);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  ASTITCH_SHARED(Reduce1::State, exchange_1_0, 32, 8);
  ASTITCH_SHARED(Reduce1::State, exchange_1_1, 64, 8);
  {  // loop 0: outer 64 / 1 threads, row 1 / 1 threads x 1, col 700 / 256 threads x 1 x 4; 64 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    float exp_1_kept_0[4];
    words_of<Vec<float, 4>>::type dy_1_kept_0[1];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      Reduce1::State reduce_sum_22_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_22_state_0[i] = Reduce1::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 700) {
            const int at_0 = outer * 700 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            const Vec<float, 4> dy_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_dy_1 + (at_0));
            dy_1_kept_0[k + l] = to_words(dy_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{x_1});
              const float dy_1 = load_as<float>(dy_1_v_0.v[lane]);
              const float neg_1 = hlo_negate(dy_1);
              reduce_sum_22_state_0[0] = Reduce1::combine(reduce_sum_22_state_0[0], Reduce1::State{neg_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      reduce_warps<Reduce1>(reduce_sum_22_state_0, exchange_1_0);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_max_7_state_0, exchange_0_0);
      combine_warps<Reduce1, 256, false>(reduce_sum_22_state_0, exchange_1_0);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 700) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_11 = hlo_subtract(x_1__1, reduce_max_7);
              const float exp_1 = hlo_exp(sub_11);
              exp_1_kept_0[k * 4 + l * 4 + lane] = exp_1;
              reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
            }
          }
        }
      }
      reduce_warps<Reduce1>(reduce_sum_7_state_0, exchange_1_1);
      __syncthreads();
      combine_warps<Reduce1, 256, false>(reduce_sum_7_state_0, exchange_1_1);
      const float reduce_sum_22 = reduce_sum_22_state_0[0].f0;
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      const float div_1_divide_0 = hlo_divide(reduce_sum_22, reduce_sum_7);
      const float reduce_sum_23 = hlo_add(0.0f, div_1_divide_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 1024 + tx * 4;
          if (col < 700) {
            const Vec<float, 4> dy_1_v_0__1 = from_words<Vec<float, 4>>(dy_1_kept_0[k + l]);
            const int at_0__1 = outer * 700 + col;
            Vec<float, 4> add_any_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float dy_1__1 = load_as<float>(dy_1_v_0__1.v[lane]);
              const float exp_1__1 = exp_1_kept_0[k * 4 + l * 4 + lane];
              const float mul_1 = hlo_multiply(reduce_sum_23, exp_1__1);
              const float add_any_1 = hlo_add(dy_1__1, mul_1);
              add_any_1_w_0.v[lane] = store_as<float>(add_any_1);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_1 + (at_0__1)) = add_any_1_w_0;
          }
        }
      }
    }
  }
}
