#include "astitch.cuh"
// stitch_0: grid 96 x 128 threads, 0 B shared
//   ge
//   select_n
//   jit(causal_mask_softmax)/mul
//   broadcast_in_dim
//   jit(causal_mask_softmax)/reduce_max
//   jit(causal_mask_softmax)/sub
//   jit(causal_mask_softmax)/exp
//   jit(causal_mask_softmax)/reduce_sum
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
extern "C" __global__ void __launch_bounds__(128, 1) stitch_0(
    const float* __restrict__ p_scores_1,
    float* __restrict__ p_div_7) {
  assume_threads<128>();
  {  // loop 0: outer 4x96 / 4 threads, row 1 / 1 threads x 1, col 96 / 32 threads x 1 x 4; 96 tasks; row-reduce: 4 rows a block, 32 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 32;
    const int ty = 0;
    const int to = threadIdx.x / 32;
    const int first = blockIdx.x;
    float select_n_3_kept_0[4];
    float exp_1_kept_0[4];
    {
      const int task = first;
      const int outer = task * 4 + to;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      const int outer_1 = ((outer) % 96);
      const int iota_4 = hlo_convert<int>(outer_1);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4;
          if (col < 96) {
            const int at_0 = outer * 96 + col;
            const Vec<float, 4> scores_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_scores_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const int iota_4__1 = hlo_convert<int>(col + lane);
              const bool ge_1 = hlo_compare_ge(iota_4, iota_4__1);
              const bool select_n_1 = (ge_1 ? true : false);
              const float scores_1 = load_as<float>(scores_1_v_0.v[lane]);
              const float mul_3 = hlo_multiply(scores_1, 0.125f);
              const float select_n_3 = (select_n_1 ? mul_3 : same_bits<float>(0xff800000u));
              select_n_3_kept_0[k * 4 + l * 4 + lane] = select_n_3;
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{select_n_3});
            }
          }
        }
      }
      reduce_lanes<Reduce0, 32, 1>(reduce_max_7_state_0);
      Reduce1::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce1::identity();
      const float reduce_max_7 = reduce_max_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4;
          if (col < 96) {
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float select_n_3__1 = select_n_3_kept_0[k * 4 + l * 4 + lane];
              const float sub_7 = hlo_subtract(select_n_3__1, reduce_max_7);
              const float exp_1 = hlo_exp(sub_7);
              exp_1_kept_0[k * 4 + l * 4 + lane] = exp_1;
              reduce_sum_7_state_0[0] = Reduce1::combine(reduce_sum_7_state_0[0], Reduce1::State{exp_1});
            }
          }
        }
      }
      reduce_lanes<Reduce1, 32, 1>(reduce_sum_7_state_0);
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 128 + tx * 4;
          if (col < 96) {
            const int at_0__1 = outer * 96 + col;
            Vec<float, 4> div_7_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float exp_1__1 = exp_1_kept_0[k * 4 + l * 4 + lane];
              const float div_7 = hlo_divide_shared(exp_1__1, reduce_sum_7);
              div_7_w_0.v[lane] = store_as<float>(div_7);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_div_7 + (at_0__1)) = div_7_w_0;
          }
        }
      }
    }
  }
}
