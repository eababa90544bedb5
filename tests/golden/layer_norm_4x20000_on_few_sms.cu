#include "astitch.cuh"
// stitch_0: grid 20 x 512 threads, 272 B shared
//   jit(layer_norm)/reduce_sum
//   jit(layer_norm)/div
//   jit(layer_norm)/sub
//   jit(layer_norm)/add
//   jit(layer_norm)/rsqrt
//   jit(layer_norm)/mul
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_MOMENTS;
  struct State { float f0; float f1; float f2; float f3; };
  static __device__ __forceinline__ State identity() { return State{0.0f, 0.0f, 0.0f, 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_moments(a, b);
  }
  static constexpr int payload = 4, words = 4;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    unsigned words[payload], *next = words;
    words_of_field(next, s.f0);
    words_of_field(next, s.f1);
    words_of_field(next, s.f2);
    words_of_field(next, s.f3);
    publish_words(to, words, tag);
  }
  static __device__ __forceinline__ State state_of(const unsigned* words) {
    const float f0 = field_of_words<float>(words);
    const float f1 = field_of_words<float>(words);
    const float f2 = field_of_words<float>(words);
    const float f3 = field_of_words<float>(words);
    return State{f0, f1, f2, f3};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane), value_of_lane(s.f2, lane), value_of_lane(s.f3, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask), shuffle_value(s.f2, mask), shuffle_value(s.f3, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_beta_1,
    float* __restrict__ p_add_9,
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(272);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 256, 1);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 4 / 1 threads, row 1 / 1 threads x 1, col 20000 / 512 threads x 2 x 4; 20 tasks; row-reduce, 4 rows < 30 blocks a wave: each row split over 5 blocks th...
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[2];
    words_of<Vec<float, 4>>::type gamma_1_now_0[2];
    words_of<Vec<float, 4>>::type beta_1_now_0[2];
    {
      const int task = first;
      const int outer = ((task) / 5);
      const int col_tile = ((task) % 5);
      Reduce0::State reduce_sum_14_moments_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 4096;
          if (col < 20000) {
            const int at_0 = outer * 20000 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k * 2 + l] = to_words(x_1_v_0);
            float reduce_sum_14_moments_state_0_batch_0[4];
            gamma_1_now_0[k * 2 + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_gamma_1 + (col));
            beta_1_now_0[k * 2 + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_beta_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_sum_14_moments_state_0_batch_0[lane] = x_1;
            }
            add_batch_to_moments(reduce_sum_14_moments_state_0[0], reduce_sum_14_moments_state_0_batch_0);
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_moments_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 512, true>(reduce_sum_14_moments_state_0, exchange_0_0); }
      if (tx < 1) {
        Reduce0::publish(reduce_sum_14_moments_state_0[0], exchange + (outer * 20 + col_tile * 4), tag);
      }
      // parts of 5 blocks
      if (const int warp = thread / 32; warp < 1) {
        const int to = warp;
        const int outer = ((task) / 5);
        const int col_tile = ((task) % 5);
        Reduce0::State reduce_sum_14_moments_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_14_moments_state_0__1[i] = Reduce0::identity();
        collect_parts<Reduce0, 32, 5, 4>(reduce_sum_14_moments_state_0__1[0], exchange + (outer * 20), ((thread) & 31), tag);
        reduce_lanes<Reduce0, 32, 1>(reduce_sum_14_moments_state_0__1);
        if (thread % 32 == 0) exchange_0_1[to] = reduce_sum_14_moments_state_0__1[0];
      }
      __syncthreads();
      Reduce0::State reduce_sum_14_moments_total_0[1] = {exchange_0_1[to]};
      const float reduce_sum_14_get_tuple_element_0 = reduce_sum_14_moments_total_0[0].f1;
      const bool reduce_sum_14_is_finite_0 = hlo_is_finite(reduce_sum_14_get_tuple_element_0);
      const float reduce_sum_14_get_tuple_element_2 = reduce_sum_14_moments_total_0[0].f2;
      const float reduce_sum_14_add_0 = hlo_add(reduce_sum_14_get_tuple_element_0, reduce_sum_14_get_tuple_element_2);
      const float reduce_sum_14_select_0 = (reduce_sum_14_is_finite_0 ? reduce_sum_14_add_0 : reduce_sum_14_get_tuple_element_0);
      const float div_2_divide_0 = hlo_divide_shared(reduce_sum_14_select_0, 20000.0f);
      const float reduce_sum_15_get_tuple_element_0 = reduce_sum_14_moments_total_0[0].f3;
      const float div_3_divide_0 = hlo_divide_shared(reduce_sum_15_get_tuple_element_0, 20000.0f);
      const float add_5_add_0 = hlo_add(div_3_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_5_add_0);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 2048 + tx * 4 + col_tile * 4096;
          if (col < 20000) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k * 2 + l]);
            const Vec<float, 4> gamma_1_v_0 = from_words<Vec<float, 4>>(gamma_1_now_0[k * 2 + l]);
            const Vec<float, 4> beta_1_v_0 = from_words<Vec<float, 4>>(beta_1_now_0[k * 2 + l]);
            const int at_0__1 = outer * 20000 + col;
            Vec<float, 4> add_9_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_15 = hlo_subtract(x_1__1, div_2_divide_0);
              const float mul_11 = hlo_multiply(sub_15, rsqrt_1_rsqrt_0);
              const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
              const float mul_15 = hlo_multiply(mul_11, gamma_1);
              const float beta_1 = load_as<float>(beta_1_v_0.v[lane]);
              const float add_9 = hlo_add(mul_15, beta_1);
              add_9_w_0.v[lane] = store_as<float>(add_9);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_add_9 + (at_0__1)) = add_9_w_0;
          }
        }
      }
    }
  }
  astitch_end_launch(barrier);
}
