#include "astitch.cuh"
// stitch_0: grid 6 x 512 threads, 2304 B shared
//   jit(train)/reduce_sum
//   jit(train)/div
//   jit(train)/sub
//   jit(train)/add
//   jit(train)/rsqrt
//   jit(train)/mul
//   max
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_MOMENTS;
  struct State { float f0; float f1; float f2; float f3; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane), value_of_lane(s.f3, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask), shuffle_value(s.f3, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 1) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_beta_1,
    const float* __restrict__ p_running_mean_1,
    const float* __restrict__ p_running_variance_1,
    float* __restrict__ p_div_2,
    float* __restrict__ p_div_3,
    float* __restrict__ p_max_3,
    float* __restrict__ p_add_14,
    float* __restrict__ p_add_15) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(2304);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 144);
  {  // loop 0: outer 1 / 1 threads, row 8x10x10 / 64 threads x 13, col 48 / 8 threads x 1 x 1; 6 tasks; column-reduce: 64 rows x 8 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = threadIdx.x / 8;
    const int to = 0;
    const int first = blockIdx.x;
    float x_1_kept_0[13];
    {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_14_moments_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 12; ++turn) {
        const int k = turn;
        const int row = k * 64 + ty;
        {
          const int l = 0;
          const int col = l * 8 + tx + col_tile * 8;
          const int at_0 = row * 48 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          x_1_kept_0[k + l] = store_as<float>(x_1);
          add_to_moments(reduce_sum_14_moments_state_0[l], x_1);
        }
      }
      {
        const int turn = 0;
        const int k = 12;
        const int row_raw = k * 64 + ty;
        const int row = clamped(row_raw, 799);
        {
          const int l = 0;
          const int col = l * 8 + tx + col_tile * 8;
          const int at_0 = row * 48 + col;
          const float x_1 = load_as<float>(p_x_1[at_0]);
          x_1_kept_0[k + l] = store_as<float>(x_1);
          if (row_raw < 800) {
            add_to_moments(reduce_sum_14_moments_state_0[l], x_1);
          }
        }
      }
      reduce_strided<Reduce0, 64, 8, 512, 4, true, false>(reduce_sum_14_moments_state_0, exchange_0_0);
      #pragma unroll
      for (int k = 0; k < 13; ++k) {
        const int row = k * 64 + ty;
        if (row < 800) {
          {
            const int l = 0;
            const int col = l * 8 + tx + col_tile * 8;
            const float reduce_sum_14_get_tuple_element_0 = reduce_sum_14_moments_state_0[l].f1;
            const bool reduce_sum_14_is_finite_0 = hlo_is_finite(reduce_sum_14_get_tuple_element_0);
            const float reduce_sum_14_get_tuple_element_2 = reduce_sum_14_moments_state_0[l].f2;
            const float reduce_sum_14_add_0 = hlo_add(reduce_sum_14_get_tuple_element_0, reduce_sum_14_get_tuple_element_2);
            const float reduce_sum_14_select_0 = (reduce_sum_14_is_finite_0 ? reduce_sum_14_add_0 : reduce_sum_14_get_tuple_element_0);
            const float div_2 = hlo_divide_shared(reduce_sum_14_select_0, 800.0f);
            if (row < 1) {
              p_div_2[col] = store_as<float>(div_2);
            }
            const float reduce_sum_15_get_tuple_element_0 = reduce_sum_14_moments_state_0[l].f3;
            const float div_3 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 800.0f);
            if (row < 1) {
              p_div_3[col] = store_as<float>(div_3);
            }
            const float x_1__1 = load_as<float>(x_1_kept_0[k + l]);
            const float sub_15 = hlo_subtract(x_1__1, div_2);
            const float add_9 = hlo_add(div_3, 1e-05f);
            const float rsqrt_1 = hlo_rsqrt(add_9);
            const float gamma_1 = load_as<float>(p_gamma_1[col]);
            const float mul_9 = hlo_multiply(rsqrt_1, gamma_1);
            const float mul_13 = hlo_multiply(sub_15, mul_9);
            const float beta_1 = load_as<float>(p_beta_1[col]);
            const float add_13 = hlo_add(mul_13, beta_1);
            const float max_3 = hlo_maximum(add_13, 0.0f);
            const int at_0__1 = row * 48 + col;
            p_max_3[at_0__1] = store_as<float>(max_3);
            const float running_mean_1 = load_as<float>(p_running_mean_1[col]);
            const float mul_14 = hlo_multiply(running_mean_1, 0.9f);
            const float mul_15 = hlo_multiply(div_2, 0.1f);
            const float add_14 = hlo_add(mul_14, mul_15);
            if (row < 1) {
              p_add_14[col] = store_as<float>(add_14);
            }
            const float running_variance_1 = load_as<float>(p_running_variance_1[col]);
            const float mul_16 = hlo_multiply(running_variance_1, 0.9f);
            const float mul_17 = hlo_multiply(div_3, 0.1f);
            const float add_15 = hlo_add(mul_16, mul_17);
            if (row < 1) {
              p_add_15[col] = store_as<float>(add_15);
            }
          }
        }
      }
    }
  }
}
