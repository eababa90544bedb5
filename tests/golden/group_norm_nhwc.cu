#include "astitch.cuh"
// stitch_0: grid 16 x 256 threads, 128 B shared
//   jit(group_norm_nhwc)/reshape
//   reduce_sum
//   jit(group_norm_nhwc)/reduce_sum
//   jit(group_norm_nhwc)/div
//   jit(group_norm_nhwc)/sub
//   div
//   jit(group_norm_nhwc)/add
//   jit(group_norm_nhwc)/rsqrt
//   and 1 more
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
    float* __restrict__ p_add_11) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(128);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  {  // loop 0: outer 4x8 / 2 threads, row 8x8 / 64 threads x 1, col 8 / 2 threads x 1 x 4; 16 tasks; mixed reduce: 64 rows x 2 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 2;
    const int ty = threadIdx.x / 2 % 64;
    const int to = threadIdx.x / 128;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce0::State reduce_sum_23_moments_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_23_moments_state_0[i] = Reduce0::identity();
      const int outer_1 = ((outer) & 7);
      const int outer_0 = ((outer) >> 3);
      {
        const int k = 0;
        const int row = k * 64 + ty;
        {
          const int l = 0;
          const int col = l * 8 + tx * 4;
          const int at_0 = outer_1 * 8 + outer_0 * 4096 + row * 64 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          x_1_kept_0[k + l] = to_words(x_1_v_0);
          float reduce_sum_23_moments_state_0_batch_0[4];
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            reduce_sum_23_moments_state_0_batch_0[lane] = x_1;
          }
          add_batch_to_moments(reduce_sum_23_moments_state_0[0], reduce_sum_23_moments_state_0_batch_0);
        }
      }
      reduce_warps<Reduce0>(reduce_sum_23_moments_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 128, false>(reduce_sum_23_moments_state_0, exchange_0_0);
      const float reduce_sum_23_get_tuple_element_0 = reduce_sum_23_moments_state_0[0].f1;
      const bool reduce_sum_23_is_finite_0 = hlo_is_finite(reduce_sum_23_get_tuple_element_0);
      const float reduce_sum_23_get_tuple_element_2 = reduce_sum_23_moments_state_0[0].f2;
      const float reduce_sum_23_add_0 = hlo_add(reduce_sum_23_get_tuple_element_0, reduce_sum_23_get_tuple_element_2);
      const float reduce_sum_23_select_0 = (reduce_sum_23_is_finite_0 ? reduce_sum_23_add_0 : reduce_sum_23_get_tuple_element_0);
      const float div_11_divide_0 = hlo_divide_shared(reduce_sum_23_select_0, 512.0f);
      const float reduce_sum_22_get_tuple_element_0 = reduce_sum_23_moments_state_0[0].f3;
      const float div_9_divide_0 = hlo_divide_shared(reduce_sum_22_get_tuple_element_0, 512.0f);
      const float add_7_add_0 = hlo_add(div_9_divide_0, 1e-05f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_7_add_0);
      {
        const int k = 0;
        const int row = k * 64 + ty;
        {
          const int l = 0;
          const int col = l * 8 + tx * 4;
          const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
          const int at_0__1 = outer_1 * 8 + col;
          const Vec<float, 4> gamma_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_gamma_1 + (at_0__1));
          const Vec<float, 4> beta_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_beta_1 + (at_0__1));
          const int at_0__2 = outer_1 * 8 + outer_0 * 4096 + row * 64 + col;
          Vec<float, 4> add_11_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
            const float sub_17 = hlo_subtract(x_1__1, div_11_divide_0);
            const float mul_11 = hlo_multiply(sub_17, rsqrt_1_rsqrt_0);
            const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
            const float mul_15 = hlo_multiply(mul_11, gamma_1);
            const float beta_1 = load_as<float>(beta_1_v_0.v[lane]);
            const float add_11 = hlo_add(mul_15, beta_1);
            add_11_w_0.v[lane] = store_as<float>(add_11);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_add_11 + (at_0__2)) = add_11_w_0;
        }
      }
    }
  }
}
