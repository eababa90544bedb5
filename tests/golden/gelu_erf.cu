#include "astitch.cuh"
// stitch_0: grid 20 x 256 threads, 1152 B shared
//   jit(forward_backward)/jvp()/add
//   jit(forward_backward)/jvp()/mul
//   jit(forward_backward)/jvp()/erf
//   jit(forward_backward)/transpose(jvp())/mul
//   jit(forward_backward)/jvp()/square
//   jit(forward_backward)/jvp()/neg
//   jit(forward_backward)/jvp()/exp
//   jit(forward_backward)/transpose(jvp())/add_any
//   and 1 more
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
    const float* __restrict__ p_bias_1,
    const float* __restrict__ p_dy_1,
    float* __restrict__ p_mul_13,
    float* __restrict__ p_add_any_1,
    float* __restrict__ p_reduce_sum_14) {
  assume_threads<256>();
  ASTITCH_SHARED_ARENA(1152);
  ASTITCH_SHARED(Reduce0::State, exchange_0_0, 0, 288);
  {  // loop 0: outer 1 / 1 threads, row 48 / 32 threads x 2, col 640 / 8 threads x 1 x 4; 20 tasks; column-reduce: 32 rows x 8 threads a block
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 8;
    const int ty = threadIdx.x / 8;
    const int to = 0;
    const int first = blockIdx.x;
    {
      const int task = first;
      const int col_tile = task;
      Reduce0::State reduce_sum_14_state_0[4];
      #pragma unroll
      for (int i = 0; i < 4; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
      #pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = k * 32 + ty;
        if (row < 48) {
          {
            const int l = 0;
            const int col = l * 32 + tx * 4 + col_tile * 32;
            const int at_0 = row * 640 + col;
            const Vec<float, 4> x_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_x_1 + (at_0));
            const Vec<float, 4> bias_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_bias_1 + (col));
            Vec<float, 4> mul_13_w_0;
            const Vec<float, 4> dy_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_dy_1 + (at_0));
            Vec<float, 4> add_any_1_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = load_as<float>(x_1_v_0.v[lane]);
              const float bias_1 = load_as<float>(bias_1_v_0.v[lane]);
              const float add_10 = hlo_add(x_1, bias_1);
              const float mul_11 = hlo_multiply(add_10, 0.5f);
              const float mul_12 = hlo_multiply(add_10, 0.70710677f);
              const float erf_1 = hlo_erf(mul_12);
              const float add_11 = hlo_add(erf_1, 1.0f);
              const float mul_13 = hlo_multiply(mul_11, add_11);
              mul_13_w_0.v[lane] = store_as<float>(mul_13);
              const float dy_1 = load_as<float>(dy_1_v_0.v[lane]);
              const float mul_14 = hlo_multiply(mul_11, dy_1);
              const float mul_16 = hlo_multiply(mul_14, 1.1283792f);
              const float square_1 = hlo_multiply(mul_12, mul_12);
              const float neg_1 = hlo_negate(square_1);
              const float exp_1 = hlo_exp(neg_1);
              const float mul_17 = hlo_multiply(mul_16, exp_1);
              const float mul_18 = hlo_multiply(mul_17, 0.70710677f);
              const float mul_15 = hlo_multiply(dy_1, add_11);
              const float mul_19 = hlo_multiply(mul_15, 0.5f);
              const float add_any_1 = hlo_add(mul_18, mul_19);
              add_any_1_w_0.v[lane] = store_as<float>(add_any_1);
              reduce_sum_14_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_14_state_0[l * 4 + lane], Reduce0::State{add_any_1});
            }
            *reinterpret_cast<Vec<float, 4>*>(p_mul_13 + (at_0)) = mul_13_w_0;
            *reinterpret_cast<Vec<float, 4>*>(p_add_any_1 + (at_0)) = add_any_1_w_0;
          }
        }
      }
      reduce_strided<Reduce0, 32, 8, 256, 4, false, true>(reduce_sum_14_state_0, exchange_0_0);
      {
        const int l = 0;
        const int col = l * 32 + tx * 4 + col_tile * 32;
        Vec<float, 4> reduce_sum_14_w_0;
        #pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
          const float reduce_sum_14 = reduce_sum_14_state_0[l * 4 + lane].f0;
          reduce_sum_14_w_0.v[lane] = store_as<float>(reduce_sum_14);
        }
        if (ty < 1) {
          *reinterpret_cast<Vec<float, 4>*>(p_reduce_sum_14 + (col)) = reduce_sum_14_w_0;
        }
      }
    }
  }
}
