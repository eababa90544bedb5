#include "astitch.cuh"
// stitch_0: grid 24 x 512 threads, 64 B shared
//   jit(astitch_golden)/broadcast_in_dim
//   jit(astitch_golden)/add
//   jit(astitch_golden)/reduce_sum
//   jit(astitch_golden)/div
//   jit(astitch_golden)/pow
//   jit(astitch_golden)/mul
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
    const float* __restrict__ p_pr1_1,
    const float* __restrict__ p_pr2_1,
    const float* __restrict__ p_pr3_1,
    float* __restrict__ p_mul_1,
    unsigned char* scratch,
    unsigned int* barrier) {
  float* const p_pow_1 = reinterpret_cast<float*>(scratch + 0);
  float* const p_reduce_sum_15 = reinterpret_cast<float*>(scratch + 768);
  assume_threads<512>();
  ASTITCH_SHARED_ARENA(64);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 16);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0__1, 0, 16);
  {  // loop 0: outer 192 / 8 threads, row 1 / 1 threads x 1, col 256 / 64 threads x 1 x 4; 24 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer = task * 8 + to;
      Reduce0::State reduce_sum_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
      const float pr2_1 = load_as<float>(p_pr2_1[outer]);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          const int at_0 = outer * 256 + col;
          const Vec<float, 4> pr1_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_pr1_1 + (at_0));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float pr1_1 = load_as<float>(pr1_1_v_0.v[lane]);
            const float add_1 = hlo_add(pr1_1, pr2_1);
            reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{add_1});
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_14_state_0, exchange_0_0);
      __syncthreads();
      combine_warps<Reduce0, 64, false>(reduce_sum_14_state_0, exchange_0_0);
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      const float div_2 = hlo_divide(reduce_sum_14, pr2_1);
      const float pow_1 = hlo_power(div_2, 2.0f);
      if (tx < 1) {
        p_pow_1[outer] = store_as<float>(pow_1);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %pow.1 before level 1
  {  // loop 1: outer 192 / 8 threads, row 1 / 1 threads x 1, col 192 / 64 threads x 1 x 4; 24 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer = task * 8 + to;
      Reduce0::State reduce_sum_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          if (col < 192) {
            const int at_0__1 = outer * 192 + col;
            const Vec<float, 4> pr3_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_pr3_1 + (at_0__1));
            const Vec<float, 4> pow_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_pow_1 + (col));
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float pr3_1 = load_as<float>(pr3_1_v_0.v[lane]);
              const float pow_1__1 = load_as<float>(pow_1_v_0.v[lane]);
              const float div_3 = hlo_divide(pr3_1, pow_1__1);
              reduce_sum_15_state_0[0] = Reduce0::combine(reduce_sum_15_state_0[0], Reduce0::State{div_3});
            }
          }
        }
      }
      reduce_warps<Reduce0>(reduce_sum_15_state_0, exchange_0_0__1);
      __syncthreads();
      combine_warps<Reduce0, 64, false>(reduce_sum_15_state_0, exchange_0_0__1);
      const float reduce_sum_15 = reduce_sum_15_state_0[0].f0;
      if (tx < 1) {
        p_reduce_sum_15[outer] = store_as<float>(reduce_sum_15);
      }
    }
  }
  ASTITCH_GLOBAL_BARRIER(barrier);  // Global: %pow.1, %reduce_sum.15 before level 2
  {  // loop 2: outer 192 / 8 threads, row 1 / 1 threads x 1, col 192 / 64 threads x 1 x 4; 24 tasks; row-reduce: 8 rows a block, 64 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 64;
    const int ty = 0;
    const int to = threadIdx.x / 64;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int outer = task * 8 + to;
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 256 + tx * 4;
          if (col < 192) {
            const Vec<float, 4> pow_1_v_0__1 = *reinterpret_cast<const Vec<float, 4>*>(p_pow_1 + (col));
            const Vec<float, 4> reduce_sum_15_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_reduce_sum_15 + (col));
            const int at_0__2 = outer * 192 + col;
            Vec<float, 4> mul_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float pow_1__2 = load_as<float>(pow_1_v_0__1.v[lane]);
              const float reduce_sum_15__1 = load_as<float>(reduce_sum_15_v_0.v[lane]);
              const float mul_1 = hlo_multiply(pow_1__2, reduce_sum_15__1);
              mul_1_w_0.v[lane] = store_as<float>(mul_1);
            }
            *reinterpret_cast<Vec<float, 4>*>(p_mul_1 + (at_0__2)) = mul_1_w_0;
          }
        }
      }
    }
  }
}
