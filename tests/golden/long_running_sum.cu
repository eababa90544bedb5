#include "astitch.cuh"
// stitch_0: grid 8 x 512 threads, 528 B shared
//   jit(long_running_sum)/mul
//   reduce_window_sum
//   jit(long_running_sum)/div
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
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
    unsigned int* barrier) {
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(528);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 128);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 512, 2);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 30011 / 512 threads x 8 x 1; 8 tasks; running reduction: a block a row, in 1 rounds of 8 blocks, which hand o...
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      Reduce0::State reduce_window_sum_7_carry_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_window_sum_7_carry_0[i] = Reduce0::identity();
      #pragma unroll 1
      for (int round = 0; round < 1; ++round) {
        const int col_tile = round * 8 + task;
        Reduce0::State reduce_window_sum_7_state_0[8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) reduce_window_sum_7_state_0[i] = Reduce0::identity();
        {
          const int k = 0;
          #pragma unroll
          for (int l = 0; l < 8; ++l) {
            const int col = l * 512 + tx + col_tile * 4096;
            if (col < 30011) {
              const float x_1 = load_as<float>(p_x_1[col]);
              const float mul_1 = hlo_multiply(x_1, x_1);
              reduce_window_sum_7_state_0[l].f0 = hlo_multiply_add(x_1, x_1, reduce_window_sum_7_state_0[l].f0);
            }
          }
        }
        scan_row_of_team<Reduce0, 8, 1, 512, false, 8>(reduce_window_sum_7_state_0, exchange_0_0, reduce_window_sum_7_carry_0, exchange + (round * 8), task, exchange_0_1, tag);
        {
          const int k = 0;
          #pragma unroll
          for (int l = 0; l < 8; ++l) {
            const int col = l * 512 + tx + col_tile * 4096;
            if (col < 30011) {
              const float reduce_window_sum_7 = reduce_window_sum_7_state_0[l].f0;
              const float div_3 = hlo_divide_shared(reduce_window_sum_7, 30011.0f);
              p_div_3[col] = store_as<float>(div_3);
            }
          }
        }
      }
    }
  }
  astitch_end_launch(barrier);
}
