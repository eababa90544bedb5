#include "astitch.cuh"
// stitch_0: grid 32 x 512 threads, 8192 B shared
//   jit(column_sum)/reduce_sum
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
  ASTITCH_SHARED_ARENA(8192);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 2048);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 512);
  {  // loop 0: outer 1 / 1 threads, row 512 / 16 threads x 2, col 192 / 32 threads x 1 x 4; 32 tasks; column-reduce: 16 rows x 32 threads a block, 2 tiles < 264 blocks a wa...
    const int thread = threadIdx.x;
    const int tx = thread % 32;
    const int ty = thread / 32 % 16;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 32) {
      const int task = first;
      const int row_tile = ((task) / 2);
      const int col_tile = ((task) % 2);
      Reduce0::State reduce_sum_7_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 16 + ty + row_tile * 32;
        {
          const int l = 0;
          const int col_raw = l * 128 + tx * 4 + col_tile * 128;
          const int col = clamped(col_raw, 188);
          const int at_0 = row * 192 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            reduce_sum_7_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_7_state_0[l * 4 + lane], Reduce0::State{x_1});
          }
        }
      }
      reduce_strided<Reduce0, 16, 32, 512, 4, false, true>(reduce_sum_7_state_0, exchange_0_0);
      {
        const int l = 0;
        const int col = l * 128 + tx * 4 + col_tile * 128;
        if (col < 192) {
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            if (ty < 1) {
              p_reduce_sum_7_partial0_0[row_tile * 192 + col + lane] = store_as<float>(reduce_sum_7_state_0[l * 4 + lane].f0);
            }
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.7 before level 1
  {  // loop 1: outer 1 / 1 threads, row 16 / 2 threads x 8, col 192 / 256 threads x 1 x 1; 1 tasks; column-reduce: 2 rows x 256 threads a block
    const int thread = threadIdx.x;
    const int tx = thread % 256;
    const int ty = thread / 256 % 2;
    const int to = thread / 512;
    const int first = blockIdx.x;
    if (first < 1) {
      const int task = first;
      Reduce0::State reduce_sum_7_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_7_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 8; ++turn) {
        const int k = turn;
        const int row = k * 2 + ty;
        {
          const int l = 0;
          const int col_raw = l * 256 + tx;
          const int col = clamped(col_raw, 191);
          const int at_0__1 = row * 192 + col;
          reduce_sum_7_state_0__1[l] = Reduce0::combine(reduce_sum_7_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_7_partial0_0[at_0__1])});
        }
      }
      reduce_strided<Reduce0, 2, 256, 512, 4, false, false>(reduce_sum_7_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 256 + tx;
        if (col < 192) {
          const float reduce_sum_7 = reduce_sum_7_state_0__1[l].f0;
          if (ty < 1) {
            p_reduce_sum_7[col] = store_as<float>(reduce_sum_7);
          }
        }
      }
    }
  }
}
