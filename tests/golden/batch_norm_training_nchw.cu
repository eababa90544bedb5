#include "astitch.cuh"
// stitch_0: grid 48 x 256 threads, 128 B shared
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
extern "C" __global__ void __launch_bounds__(256, 1) stitch_0(
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
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(128);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  {  // loop 0: outer 48 / 1 threads, row 8 / 4 threads x 2, col 10x10 / 64 threads x 1 x 2; 48 tasks; mixed reduce: 4 rows x 64 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = threadIdx.x / 64;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 2>>::type x_1_kept_0[2];
    {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_14_moments_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 100) {
            const int at_0 = outer * 100 + row * 4800 + col;
            const Vec<float, 2> x_1_v_0 = *reinterpret_cast<const Vec<float, 2>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            float reduce_sum_14_moments_state_0_batch_0[2];
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_sum_14_moments_state_0_batch_0[lane] = x_1;
            }
            add_batch_to_moments(reduce_sum_14_moments_state_0[0], reduce_sum_14_moments_state_0_batch_0);
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_moments_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 256, true>(reduce_sum_14_moments_state_0, exchange_0_0);
      const float reduce_sum_14_get_tuple_element_0 = reduce_sum_14_moments_state_0[0].f1;
      const bool reduce_sum_14_is_finite_0 = hlo_is_finite(reduce_sum_14_get_tuple_element_0);
      const float reduce_sum_14_get_tuple_element_2 = reduce_sum_14_moments_state_0[0].f2;
      const float reduce_sum_14_add_0 = hlo_add(reduce_sum_14_get_tuple_element_0, reduce_sum_14_get_tuple_element_2);
      const float reduce_sum_14_select_0 = (reduce_sum_14_is_finite_0 ? reduce_sum_14_add_0 : reduce_sum_14_get_tuple_element_0);
      const float div_2 = hlo_divide_shared(reduce_sum_14_select_0, 800.0f);
      if (tx < 1 && ty < 1) {
        p_div_2[outer] = store_as<float>(div_2);
      }
      const float reduce_sum_15_get_tuple_element_0 = reduce_sum_14_moments_state_0[0].f3;
      const float div_3 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 800.0f);
      if (tx < 1 && ty < 1) {
        p_div_3[outer] = store_as<float>(div_3);
      }
      const float add_9 = hlo_add(div_3, 1e-05f);
      const float rsqrt_1 = hlo_rsqrt(add_9);
      const float gamma_1 = load_as<float>(p_gamma_1[outer]);
      const float mul_9 = hlo_multiply(rsqrt_1, gamma_1);
      const float beta_1 = load_as<float>(p_beta_1[outer]);
      const float running_mean_1 = load_as<float>(p_running_mean_1[outer]);
      const float mul_14 = hlo_multiply(running_mean_1, 0.9f);
      const float mul_15 = hlo_multiply(div_2, 0.1f);
      const float add_14 = hlo_add(mul_14, mul_15);
      if (tx < 1 && ty < 1) {
        p_add_14[outer] = store_as<float>(add_14);
      }
      const float running_variance_1 = load_as<float>(p_running_variance_1[outer]);
      const float mul_16 = hlo_multiply(running_variance_1, 0.9f);
      const float mul_17 = hlo_multiply(div_3, 0.1f);
      const float add_15 = hlo_add(mul_16, mul_17);
      if (tx < 1 && ty < 1) {
        p_add_15[outer] = store_as<float>(add_15);
      }
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col = l * 128 + tx * 2;
          if (col < 100) {
            const Vec<float, 2> x_1_v_0__1 = from_words<Vec<float, 2>>(x_1_kept_0[k + l]);
            const int at_0__1 = outer * 100 + row * 4800 + col;
            Vec<float, 2> max_3_w_0;
            #pragma unroll
            for (int lane = 0; lane < 2; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_15 = hlo_subtract(x_1__1, div_2);
              const float mul_13 = hlo_multiply(sub_15, mul_9);
              const float add_13 = hlo_add(mul_13, beta_1);
              const float max_3 = hlo_maximum(add_13, 0.0f);
              max_3_w_0.v[lane] = store_as<float>(max_3);
            }
            *reinterpret_cast<Vec<float, 2>*>(p_max_3 + (at_0__1)) = max_3_w_0;
          }
        }
      }
    }
  }
}
