#include "astitch.cuh"
// stitch_0: grid 24 x 512 threads, 8320 B shared
//   jit(row_and_column_sum)/exp
//   jit(row_and_column_sum)/reduce_sum
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
    float* __restrict__ p_reduce_sum_14,
    float* __restrict__ p_reduce_sum_15,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_reduce_sum_15_partial0_0 = reinterpret_cast<float*>(scratch + 0);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(8320);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 8256, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_1, 0, 2064);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 516);
  {  // loop 0: outer 96 / 4 threads, row 1 / 1 threads x 1, col 400 / 128 threads x 1 x 4; 24 tasks; row-reduce: 4 rows a block, 128 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 128;
    const int ty = 0;
    const int to = threadIdx.x / 128;
    const int first = blockIdx.x;
    Reduce0::State reduce_sum_15_state_0[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
    if (first < 24) {
      const int task = first;
      const int outer = task * 4 + to;
      Reduce0::State reduce_sum_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 512 + tx * 4;
          if (col < 400) {
            const int at_0 = outer * 400 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float exp_2 = hlo_exp(x_1);
              reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{exp_2});
              reduce_sum_15_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_15_state_0[l * 4 + lane], Reduce0::State{exp_2});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 128, false>(reduce_sum_14_state_0, exchange_0_0);
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_14[outer] = store_as<float>(reduce_sum_14);
      }
    }
    reduce_strided<Reduce0, 4, 128, 512, 4, false, false>(reduce_sum_15_state_0, exchange_0_1);
    if (first < 24) {
      {
        const int l = 0;
        const int col = l * 512 + tx * 4;
        if (col < 400) {
          Vec<float, 4> p_reduce_sum_15_partial0_0_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            p_reduce_sum_15_partial0_0_w_0.v[lane] = store_as<float>(reduce_sum_15_state_0[l * 4 + lane].f0);
          }
          if (to < 1) {
            *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_15_partial0_0 + (first * 400 + col)) = p_reduce_sum_15_partial0_0_w_0;
          }
        }
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %reduce_sum.15 before level 1
  {  // loop 1: outer 1 / 1 threads, row 24 / 4 threads x 6, col 400 / 128 threads x 1 x 1; 4 tasks; column-reduce: 4 rows x 128 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 128;
    const int ty = threadIdx.x / 128;
    const int to = 0;
    const int first = blockIdx.x;
    if (first < 4) {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_15_state_0__1[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0__1[i] = Reduce0::identity();
      #pragma unroll
      for (int turn = 0; turn < 6; ++turn) {
        const int k = turn;
        const int row = k * 4 + ty;
        {
          const int l = 0;
          const int col_raw = l * 128 + tx + col_tile * 128;
          const int col = clamped(col_raw, 399);
          const int at_0__1 = row * 400 + col;
          reduce_sum_15_state_0__1[l] = Reduce0::combine(reduce_sum_15_state_0__1[l], Reduce0::State{load_as<float>(p_reduce_sum_15_partial0_0[at_0__1])});
        }
      }
      reduce_strided<Reduce0, 4, 128, 512, 4, false, false>(reduce_sum_15_state_0__1, exchange_0_0__1);
      {
        const int l = 0;
        const int col = l * 128 + tx + col_tile * 128;
        if (col < 400) {
          const float reduce_sum_15 = reduce_sum_15_state_0__1[l].f0;
          if (ty < 1) {
            p_reduce_sum_15[col] = store_as<float>(reduce_sum_15);
          }
        }
      }
    }
  }
}
