#include "astitch.cuh"
// stitch_0: grid 16 x 512 threads, 80 B shared
//   jit(quantise_int8)/abs
//   jit(quantise_int8)/reduce_max
//   jit(quantise_int8)/div
//   round
//   max
//   min
//   jit(quantise_int8)/convert_element_type
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{same_bits<float>(0xff800000u)}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_maximum(a.f0, b.f0);
    return State{v2};
  }
  static constexpr int payload = 1, words = 1;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    unsigned words[payload], *next = words;
    words_of_field(next, s.f0);
    publish_words(to, words, tag);
  }
  static __device__ __forceinline__ State state_of(const unsigned* words) {
    const float f0 = field_of_words<float>(words);
    return State{f0};
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
    float* __restrict__ p_div_3,
    signed char* __restrict__ p_convert_element_type_5,
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(80);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 64, 1);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 64x500 / 512 threads x 1 x 4; 16 tasks; row-reduce, 1 rows < 256 blocks a wave: each row split over 16 blocks...
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    words_of<Vec<float, 4>>::type x_1_kept_0[1];
    {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_max_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_max_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 32000) {
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (col));
            x_1_kept_0[k + l] = to_words(x_1_v_0);
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float abs_1 = hlo_abs(x_1);
              reduce_max_7_state_0[0] = Reduce0::combine(reduce_max_7_state_0[0], Reduce0::State{abs_1});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_max_7_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_max_7_state_0, exchange_0_0); }
      if (tx < 1) {
        Reduce0::publish(reduce_max_7_state_0[0], exchange + (col_tile), tag);
      }
      // parts of 16 blocks
      if (const int warp = thread / 32; warp < 1) {
        const int to = warp;
        const int col_tile = task;
        Reduce0::State reduce_max_7_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_max_7_state_0__1[i] = Reduce0::identity();
        collect_parts<Reduce0, 32, 16, 1>(reduce_max_7_state_0__1[0], exchange + (0), ((thread) & 31), tag);
        reduce_lanes<Reduce0, 32, 1>(reduce_max_7_state_0__1);
        if (thread % 32 == 0) exchange_0_1[to] = reduce_max_7_state_0__1[0];
      }
      __syncthreads();
      Reduce0::State reduce_max_7_total_0[1] = {exchange_0_1[to]};
      const float reduce_max_7 = reduce_max_7_total_0[0].f0;
      const float div_3 = hlo_divide_shared(reduce_max_7, 127.0f);
      if (tx < 1 && col_tile < 1) {
        p_div_3[0] = store_as<float>(div_3);
      }
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 2048 + tx * 4 + col_tile * 2048;
          if (col < 32000) {
            const Vec<float, 4> x_1_v_0__1 = from_words<Vec<float, 4>>(x_1_kept_0[k + l]);
            Vec<signed char, 4> convert_element_type_5_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1__1 = load_as<float>(x_1_v_0__1.v[lane]);
              const float div_5 = hlo_divide_shared(x_1__1, div_3);
              const float round_1 = hlo_round_nearest_even(div_5);
              const float max_3 = hlo_maximum(-127.0f, round_1);
              const float min_3 = hlo_minimum(127.0f, max_3);
              const signed char convert_element_type_5 = hlo_convert<signed char, float>(min_3);
              convert_element_type_5_w_0.v[lane] = store_as<signed char>(convert_element_type_5);
            }
            *reinterpret_cast<Vec<signed char, 4>*>(p_convert_element_type_5 + (col)) = convert_element_type_5_w_0;
          }
        }
      }
    }
  }
  astitch_end_launch(barrier);
}
