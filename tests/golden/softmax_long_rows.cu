#include "astitch.cuh"
// stitch_0: grid 100 x 512 threads, 144 B shared
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
extern "C" __global__ void __launch_bounds__(512, 2) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_div_7,
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(144);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 128, 1);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 4 / 1 threads, row 1 / 1 threads x 1, col 50000 / 512 threads x 1 x 4; 100 tasks; row-reduce, 4 rows < 250 blocks a wave: each row split over 25 blocks...
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    {
      const int task = first;
      const int outer = ((task) / 25);
      const int col_tile = ((task) % 25);
      Reduce0::State reduce_max_7_exponentials_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 50000) {
            const int at_0 = outer * 50000 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            float reduce_max_7_exponentials_state_0_batch_0[4];
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              reduce_max_7_exponentials_state_0_batch_0[lane] = x_1;
            }
            add_batch_to_exponentials(reduce_max_7_exponentials_state_0[0], reduce_max_7_exponentials_state_0_batch_0);
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_exponentials_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 512, true>(reduce_max_7_exponentials_state_0, exchange_0_0); }
      if (tx < 1) {
        Reduce0::publish(reduce_max_7_exponentials_state_0[0], exchange + (outer * 50 + col_tile * 2), tag);
      }
      // parts of 25 blocks
      if (const int warp = thread / 32; warp < 1) {
        const int to = warp;
        const int outer = ((task) / 25);
        const int col_tile = ((task) % 25);
        Reduce0::State reduce_max_7_exponentials_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_max_7_exponentials_state_0__1[i] = Reduce0::identity();
        collect_parts<Reduce0, 32, 25, 2>(reduce_max_7_exponentials_state_0__1[0], exchange + (outer * 50), ((thread) & 31), tag);
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
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 50000) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            const int at_0__1 = outer * 50000 + col;
            Vec<float, 4> div_7_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float sub_7 = hlo_subtract(x_1__1, reduce_max_7_get_tuple_element_0);
              const float exp_1 = hlo_exp(sub_7);
              const float div_7 = hlo_divide_shared(exp_1, reduce_sum_7_multiply_0);
              div_7_w_0.v[lane] = store_as<float>(div_7);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_div_7 + (at_0__1)) = div_7_w_0;
          }
        }
      }
    }
  }
  astitch_end_launch(barrier);
}
