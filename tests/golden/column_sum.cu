#include "astitch.cuh"
// stitch_0: grid 24 x 256 threads, 384 B shared
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
extern "C" __global__ void __launch_bounds__(256, 1) stitch_0(
    const float* __restrict__ p_x_1,
    float* __restrict__ p_reduce_sum_7) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(384);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 96);
  {  // loop 0: outer 1 / 1 threads, row 512 / 128 threads x 4, col 192 / 2 threads x 1 x 4; 24 tasks; column-reduce: 128 rows x 2 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 2;
    const int ty = threadIdx.x / 2;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_7_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_sum_7_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 4; ++turn) {
        const int k = turn;
        const int row = k * 128 + ty;
        {
          const int l = 0;
          const int col = l * 8 + tx * 4 + col_tile * 8;
          const int at_0 = row * 192 + col;
          const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float x_1 = load_as<float>(x_1_v_0.v[lane]);
            reduce_sum_7_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_7_state_0[l * 4 + lane], Reduce0::State{x_1});
          }
        }
      }
      reduce_strided<Reduce0, 128, 2, 256, 4, false, true>(reduce_sum_7_state_0, exchange_0_0);
      {
        const int l = 0;
        const int col = l * 8 + tx * 4 + col_tile * 8;
        Vec<float, 4> reduce_sum_7_w_0;
        #pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
          const float reduce_sum_7 = reduce_sum_7_state_0[l * 4 + lane].f0;
          reduce_sum_7_w_0.v[lane] = store_as<float>(reduce_sum_7);
        }
        if (ty < 1) {
          *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_7 + (col)) = reduce_sum_7_w_0;
        }
      }
    }
  }
}
