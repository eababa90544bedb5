#include "astitch.cuh"
// stitch_0: grid 38 x 256 threads, 32 B shared
//   jit(transposes)/transpose
//   jit(transposes)/mul
//   jit(transposes)/add
//   jit(transposes)/reshape
//   jit(transposes)/reduce_sum
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
extern "C" __global__ void __launch_bounds__(256) stitch_0(
    const float* __restrict__ p_x_1,
    const float* __restrict__ p_y_1,
    float* __restrict__ p_mul_3,
    float* __restrict__ p_add_3,
    float* __restrict__ p_transpose_7,
    float* __restrict__ p_reduce_sum_7) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(32);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 8);
  {  // loop 0: outer 1 / 1 threads, row 90 / 64 threads x 1, col 70 / 4 threads x 1 x 2; 18 tasks; arrays along 90 and along 70: 64 x 8 a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 4;
    const int ty = threadIdx.x / 4;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 18) {
      const int task = first;
      const int row_tile = ((task) / 9);
      const int col_tile = ((task) % 9);
      {
        const int k = 0;
        const int row = k * 64 + ty + row_tile * 64;
        if (row < 90) {
          {
            const int l = 0;
            const int col = l * 8 + tx * 2 + col_tile * 8;
            if (col < 70) {
              const int at_0 = row + col * 90;
              const int at_0__1 = row * 70 + col;
              Vec<float, 2> mul_3_w_0;
              #pragma unroll
              for (int lane = 0; lane < 2; ++lane) {
                const float x_1 = load_as<float>(p_x_1[at_0 + lane * 90]);
                const float mul_3 = hlo_multiply(x_1, 2.0f);
                mul_3_w_0.v[lane] = store_as<float>(mul_3);
              }
              *reinterpret_cast<Vec<float, 2>*>(p_mul_3 + (at_0__1)) = mul_3_w_0;
            }
          }
        }
      }
    }
  }
  {  // loop 1: outer 20 / 1 threads, row 1 / 1 threads x 1, col 12x33 / 256 threads x 2 x 1; 20 tasks; row-reduce: a block a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x;
    const int ty = 0;
    const int to = 0;
    const int first = int(blockIdx.x) - 18;
    if (first >= 0) {
      const int task = first;
      const int outer = task;
      Reduce0::State reduce_sum_7_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        #pragma unroll
        for (int l = 0; l < 2; ++l) {
          const int col = l * 256 + tx;
          if (col < 396) {
            const int col_1 = ((col) % 33);
            const int col_0 = ((col) / 33);
            const int at_0__2 = outer * 33 + col_1 + col_0 * 660;
            const float y_1 = load_as<float>(p_y_1[at_0__2]);
            const float add_3 = hlo_add(y_1, 1.0f);
            const int at_0__3 = outer + col_1 * 240 + col_0 * 20;
            p_add_3[at_0__3] = store_as<float>(add_3);
            reduce_sum_7_state_0[0] = Reduce0::combine(reduce_sum_7_state_0[0], Reduce0::State{y_1});
            const int at_0__4 = outer * 12 + col_1 * 240 + col_0;
            p_transpose_7[at_0__4] = store_as<float>(y_1);
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_7_state_0, exchange_0_0);
      __syncthreads();
      if (thread < 32) { combine_warps<Reduce0, 256, false>(reduce_sum_7_state_0, exchange_0_0); }
      const float reduce_sum_7 = reduce_sum_7_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_7[outer] = store_as<float>(reduce_sum_7);
      }
    }
  }
}
