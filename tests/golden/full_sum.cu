#include "astitch.cuh"
// stitch_0: grid 152 x 512 threads, 80 B shared
//   jit(full_sum)/reduce_sum
struct Reduce0 {
  static constexpr bool commutative = true;
  static constexpr Joint joint = JOINT_NONE;
  struct State { float f0; };
  static __device__ __forceinline__ State identity() { return State{0.0f}; }
  static __device__ __forceinline__ State combine(const State a, const State b) {
    const float v2 = hlo_add(a.f0, b.f0);
    return State{v2};
  }
  static constexpr int words = 1;
  static __device__ __forceinline__ void publish(const State s, unsigned long long* to, unsigned tag) {
    publish_field(to, s.f0, tag);
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
    float* __restrict__ p_reduce_sum_7,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(80);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 64, 1);
  const unsigned tag = astitch_launch_tag(barrier);
  unsigned long long* const exchange = astitch_tagged_words(barrier);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 100x777 / 512 threads x 1 x 1; 152 tasks; row-reduce, 1 rows < 264 blocks a wave: each row split over 152 blo...
    const int thread = threadIdx.x;
    const int tx = thread % 512;
    const int ty = thread / 512 % 1;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 152) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 512 + tx + col_tile * 512;
          if (col < 77700) {
            const float x_1 = load_as<float>(p_x_1[col]);
            reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{x_1});
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_7_state_0, exchange_0_0); }
      if (tx < 1) {
        Reduce0::publish(reduce_sum_7_state_0[0], exchange + (col_tile), tag);
      }
      // parts of 152 blocks
      if (const int warp = thread / 32; warp < 1) {
        const int to = warp;
        const int col_tile = task;
        Reduce0::State reduce_sum_7_state_0__1[1];
        #pragma unroll
        for (int i = 0; i < 1; ++i) reduce_sum_7_state_0__1[i] = Reduce0::identity();
        collect_parts<Reduce0, 32, 152, 1>(reduce_sum_7_state_0__1[0], exchange + (0), ((thread) % 32), tag);
        reduce_lanes<Reduce0, 32, 1>(reduce_sum_7_state_0__1);
        if (thread % 32 == 0) exchange_0_1[to] = reduce_sum_7_state_0__1[0];
      }
      __syncthreads();
      Reduce0::State reduce_sum_7_total_0[1] = {exchange_0_1[to]};
      const float reduce_sum_7 = reduce_sum_7_total_0[0].f0;
      if (tx < 1 && col_tile < 1) {
        p_reduce_sum_7[0] = store_as<float>(reduce_sum_7);
      }
    }
  }
  astitch_end_launch(barrier);
}
