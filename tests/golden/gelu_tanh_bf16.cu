#include "astitch.cuh"
// stitch_0: grid 20 x 256 threads, 1152 B shared
//   jit(forward_backward)/jvp()/add
//   jit(forward_backward)/jvp()/mul
//   jit(forward_backward)/jvp()/tanh
//   jit(forward_backward)/transpose(jvp())/mul
//   jit(forward_backward)/jvp()/sub
//   jit(forward_backward)/transpose(jvp())/add_any
//   jit(forward_backward)/transpose(jvp())/reduce_sum
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
    const bf16* __restrict__ p_x_1,
    const bf16* __restrict__ p_bias_1,
    const bf16* __restrict__ p_dy_1,
    bf16* __restrict__ p_mul_22,
    bf16* __restrict__ p_add_any_9,
    bf16* __restrict__ p_reduce_sum_14) {
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
            const Vec<bf16, 4> x_1_v_0 = *reinterpret_cast<const Vec<bf16, 4>*>(p_x_1 + (at_0));
            const Vec<bf16, 4> bias_1_v_0 = *reinterpret_cast<const Vec<bf16, 4>*>(p_bias_1 + (col));
            Lanes<bf16, 4> mul_22_w_0;
            const Vec<bf16, 4> dy_1_v_0 = *reinterpret_cast<const Vec<bf16, 4>*>(p_dy_1 + (at_0));
            Vec<bf16, 4> add_any_9_w_0;
            #pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
              const float x_1 = bf16_lane(x_1_v_0, lane);
              const float bias_1 = bf16_lane(bias_1_v_0, lane);
              const float add_9 = round_to<bf16>(hlo_add(x_1, bias_1));
              const float mul_17 = round_to<bf16>(hlo_multiply(add_9, 0.5f));
              const float mul_18 = round_to<bf16>(hlo_multiply(add_9, 0.044677734f));
              const float mul_19 = round_to<bf16>(hlo_multiply(mul_18, add_9));
              const float mul_20 = round_to<bf16>(hlo_multiply(mul_19, add_9));
              const float add_10 = round_to<bf16>(hlo_add(add_9, mul_20));
              const float mul_21 = round_to<bf16>(hlo_multiply(add_10, 0.796875f));
              const float tanh_1 = round_to<bf16>(narrow_tanh<bf16>(mul_21));
              const float add_11 = round_to<bf16>(hlo_add(tanh_1, 1.0f));
              const float mul_22 = hlo_multiply(mul_17, add_11);
              mul_22_w_0.v[lane] = mul_22;
              const float dy_1 = bf16_lane(dy_1_v_0, lane);
              const float mul_23 = round_to<bf16>(hlo_multiply(mul_17, dy_1));
              const float sub_1 = round_to<bf16>(hlo_subtract(1.0f, tanh_1));
              const float mul_25 = round_to<bf16>(hlo_multiply(mul_23, sub_1));
              const float mul_26 = round_to<bf16>(hlo_multiply(mul_25, tanh_1));
              const float add_any_5 = round_to<bf16>(hlo_add(mul_25, mul_26));
              const float mul_27 = round_to<bf16>(hlo_multiply(add_any_5, 0.796875f));
              const float mul_28 = round_to<bf16>(hlo_multiply(mul_19, mul_27));
              const float add_any_6 = round_to<bf16>(hlo_add(mul_27, mul_28));
              const float mul_29 = round_to<bf16>(hlo_multiply(mul_27, add_9));
              const float mul_30 = round_to<bf16>(hlo_multiply(mul_18, mul_29));
              const float add_any_7 = round_to<bf16>(hlo_add(add_any_6, mul_30));
              const float mul_31 = round_to<bf16>(hlo_multiply(mul_29, add_9));
              const float mul_32 = round_to<bf16>(hlo_multiply(mul_31, 0.044677734f));
              const float add_any_8 = round_to<bf16>(hlo_add(add_any_7, mul_32));
              const float mul_24 = round_to<bf16>(hlo_multiply(dy_1, add_11));
              const float mul_33 = round_to<bf16>(hlo_multiply(mul_24, 0.5f));
              const float add_any_9 = round_to<bf16>(hlo_add(add_any_8, mul_33));
              add_any_9_w_0.v[lane] = store_exact<bf16>(add_any_9);
              reduce_sum_14_state_0[l * 4 + lane] = Reduce0::combine(reduce_sum_14_state_0[l * 4 + lane], Reduce0::State{add_any_9});
            }
            store_lanes(p_mul_22 + (at_0), mul_22_w_0);
            *reinterpret_cast<Vec<bf16, 4>*>(p_add_any_9 + (at_0)) = add_any_9_w_0;
          }
        }
      }
      reduce_strided<Reduce0, 32, 8, 256, 4, false, true>(reduce_sum_14_state_0, exchange_0_0);
      {
        const int l = 0;
        const int col = l * 32 + tx * 4 + col_tile * 32;
        Vec<bf16, 4> reduce_sum_14_w_0;
        #pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
          const float reduce_sum_14 = round_to<bf16>(reduce_sum_14_state_0[l * 4 + lane].f0);
          reduce_sum_14_w_0.v[lane] = store_exact<bf16>(reduce_sum_14);
        }
        if (ty < 1) {
          *reinterpret_cast<Vec<bf16, 4>*>(p_reduce_sum_14 + (col)) = reduce_sum_14_w_0;
        }
      }
    }
  }
}
