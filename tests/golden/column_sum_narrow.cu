#include "astitch.cuh"
// stitch_0: grid 12 x 512 threads, 512 B shared
//   jit(column_sum_narrow)/reduce_sum
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
    float* p_reduce_sum_7_partial0_0,
    unsigned int* barrier) {
  ASTITCH_SHARED_ARENA(512);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 128);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 128);
  {  // loop 0: outer 1 / 1 threads, row 3000 / 64 threads x 4, col 5 / 8 threads x 1 x 1; 12 tasks; column-reduce: 64 rows x 8 threads a block, 1 tiles < 264 blocks a wave:...
    const int thread = threadIdx.x;
    const int tx = thread % 8;
    const int ty = thread / 8 % 64;
    const int to = thread / 512;
    const int first = blockIdx.x;
    Reduce0::State reduce_sum_7_state_0[1];
    #pragma unroll
    for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
    if (first < 12) {
      const int task = first;
      const int row_tile = task;
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int row = k * 64 + ty + row_tile * 256;
        if (row < 3000) {
          {
            const int l = 0;
            const int col = l * 8 + tx;
            if (col < 5) {
              const int at_0 = row * 5 + col;
              const float x_1 = load_as<float>(p_x_1[at_0]);
              reduce_sum_7_state_0[l] = Reduce0::combine(reduce_sum_7_state_0[l], Reduce0::State{x_1});
            }
          }
        }
      }
    }
    reduce_strided<Reduce0, 64, 8, 512, 4, false, false>(reduce_sum_7_state_0, exchange_0_0);
    if (first < 12) {
      {
        const int l = 0;
        const int col = l * 8 + tx;
        if (col < 5) {
          if (ty < 1) {
            p_reduce_sum_7_partial0_0[first * 5 + col] = store_as<float>(reduce_sum_7_state_0[l].f0);
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.7 before level 1
  {  // loop 1: outer 1 / 4 threads, row 12 / 16 threads x 1, col 5 / 8 threads x 1 x 1; 1 tasks; column-reduce: 16 rows x 8 threads a block
    const int thread = threadIdx.x;
    const int tx = thread % 8;
    const int ty = thread / 8 % 16;
    const int to = thread / 128;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_sum_7_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0__1[i] = Reduce0::identity();
      {
        const int k = 0;
        const int row = k * 16 + ty;
        if (row < 12) {
          {
            const int l = 0;
            const int col = l * 8 + tx;
            if (col < 5) {
              const int at_0__1 = row * 5 + col;
              if (to < 1) {
                reduce_sum_7_state_0__1[l] = Reduce0::combine(reduce_sum_7_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_7_partial0_0[at_0__1])});
              }
            }
          }
        }
      }
      reduce_strided<Reduce0, 16, 8, 512, 4, false, false>(reduce_sum_7_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 8 + tx;
        if (col < 5) {
          const float reduce_sum_7 = reduce_sum_7_state_0__1[l].f0;
          if (to < 1 && ty < 1) {
            p_reduce_sum_7[col] = store_as<float>(reduce_sum_7);
          }
        }
      }
    }
  }
}
