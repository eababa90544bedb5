#include "astitch.cuh"
// stitch_0: grid 152 x 512 threads, 64 B shared
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
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_7_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 16);
  {  // loop 0: outer 1 / 1 threads, row 1 / 1 threads x 1, col 100x777 / 512 threads x 1 x 1; 152 tasks; row-reduce, 1 rows < 264 blocks a wave: each row split over 152 blocks
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = blockIdx.x;
    Reduce0::State reduce_sum_7_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
    if (first < 152) {
      const int task = first;
      const int col_tile = task;
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
    }
    reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
    __syncthreads();
    if (thread < 32) { combine_warps<Reduce0, 512, false>(reduce_sum_7_state_0, exchange_0_0); }
    if (first < 152) {
      if (tx < 1) {
        p_reduce_sum_7_partial0_0[first] = store_as<float>(reduce_sum_7_state_0[0].f0);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.7 before level 1
  {  // loop 1: outer 1 / 2 threads, row 1 / 1 threads x 1, col 152 / 256 threads x 1 x 1; 1 tasks; row-reduce: 2 rows a block, 256 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 256;
    const int ty = 0;
    const int to = threadIdx.x / 256;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_sum_7_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx;
          if (col < 152) {
            if (to < 1) {
              reduce_sum_7_state_0__1[0] = Reduce0::combine(reduce_sum_7_state_0__1[0], Reduce0::State{load_as<float>(p_reduce_sum_7_partial0_0[col])});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0__1, exchange_0_0__1);
      __syncthreads();
      combine_warps<Reduce0, 256, false>(reduce_sum_7_state_0__1, exchange_0_0__1);
      const float reduce_sum_7 = reduce_sum_7_state_0__1[0].f0;
      if (to < 1 && tx < 1) {
        p_reduce_sum_7[0] = store_as<float>(reduce_sum_7);
      }
    }
  }
}
