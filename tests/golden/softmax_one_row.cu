#include "astitch.cuh"
// stitch_0: grid 98 x 1024 threads, 272 B shared
//   jit(softmax)/reduce_sum
//   jit(softmax)/reduce_max
//   jit(softmax)/sub
//   jit(softmax)/exp
//   jit(softmax)/div
struct Reduce0 {
  static constexpr bool commutative = false;
  static constexpr Joint joint = JOINT_EXPONENTIALS;
  struct State { float f0; float f1; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u), 0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    return join_exponentials(a, b);
  }
  static constexpr int payload = 2, words = 2;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    unsigned words[payload], *next = words;
    words_of_field(next, s.f0);
    words_of_field(next, s.f1);
    publish_words(to, words, tag);
  }
  static __device__ __forceinline__ State state_of(const unsigned* words) {
    const float f0 = field_of_words<float>(words);
    const float f1 = field_of_words<float>(words);
    return State{f0, f1};
  }
  static __device__ __forceinline__ State take(const State s, int lane) {
    return State{value_of_lane(s.f0, lane), value_of_lane(s.f1, lane)};
  }
  static __device__ __forceinline__ State shuffle(const State s, int mask) {
    return State{shuffle_value(s.f0, mask), shuffle_value(s.f1, mask)};
  }
};
extern "C" __global__ void __launch_bounds__(1024, 1) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7,
    unsigned int* barrier) {
  assume_threads<1024>();
  ASTITCH_SHARED_ARENA(272);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 256, 1);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 200001 / 1024 threads x 2 x 1; 98 tasks; row-reduce, 1 rows < 98 blocks a wave: each row split over 98 blocks...
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    float x_1_kept_0[2];
    {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_max_7_exponentials_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 1024 + tx + col_tile * 2048;
          if (col < 200001) {
            const float x_1 = load_as<float>(p_x_1[col]);
            x_1_kept_0[k * 2 + l] = store_as<float>(x_1);
            add_to_exponentials(reduce_max_7_exponentials_state_0[0], x_1);
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 1024, true>(reduce_max_7_exponentials_state_0, exchange_0_0); }
      if (tx < 1) {
        Reduce0::publish(reduce_max_7_exponentials_state_0[0], exchange + (col_tile * 2), tag);
      }
      // parts of 98 blocks
      if (const int warp = thread / 32; warp < 1) {
        const int to = warp;
        const int col_tile = task;
        Reduce0::State reduce_max_7_exponentials_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0__1[i] = Reduce0::identity();
        collect_parts<Reduce0, 32, 98, 2>(reduce_max_7_exponentials_state_0__1[0], exchange + (0), ((thread) & 31), tag);
        reduce_lanes<Reduce0, 32, 1>(reduce_max_7_exponentials_state_0__1);
        if (thread % 32 == 0) exchange_0_1[to] = reduce_max_7_exponentials_state_0__1[0];
      }
      __syncthreads();
      Reduce0::State reduce_max_7_exponentials_total_0[1] = {exchange_0_1[to]};
      const float reduce_max_7_get_tuple_element_0 = reduce_max_7_exponentials_total_0[0].f0;
      const float reduce_sum_7_get_tuple_element_0 = reduce_max_7_exponentials_total_0[0].f1;
      const float reduce_sum_7_subtract_0 = hlo_subtract(reduce_max_7_get_tuple_element_0, reduce_max_7_get_tuple_element_0);
      const float reduce_sum_7_exponential_0 = hlo_exp(reduce_sum_7_subtract_0);
      const float reduce_sum_7_multiply_0 = hlo_multiply(reduce_sum_7_get_tuple_element_0, reduce_sum_7_exponential_0);
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 1024 + tx + col_tile * 2048;
          if (col < 200001) {
            const float x_1__1 = load_as<float>(x_1_kept_0[k * 2 + l]);
            const float sub_7 = hlo_subtract(x_1__1, reduce_max_7_get_tuple_element_0);
            const float exp_1 = hlo_exp(sub_7);
            const float div_7 = hlo_divide_shared(exp_1, reduce_sum_7_multiply_0);
            p_div_7[col] = store_as<float>(div_7);
          }
        }
      }
    }
  }
  astitch_end_launch(barrier);
}
