#include "astitch.cuh"
// stitch_0: grid 16 x 32 threads, 0 B shared
//   jit(dense_residual_norm)/add
//   jit(dense_residual_norm)/integer_pow
//   jit(dense_residual_norm)/mul
//   jit(dense_residual_norm)/tanh
//   jit(dense_residual_norm)/reduce_sum
//   jit(dense_residual_norm)/div
//   jit(dense_residual_norm)/sub
//   jit(dense_residual_norm)/square
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
extern "C" __global__ void __launch_bounds__(32, 1) stitch_0(
    const float* __restrict__ p_dot_general_1,
    const float* __restrict__ p_bias_1,
    const float* __restrict__ p_residual_1,
    const float* __restrict__ p_gamma_1,
    const float* __restrict__ p_beta_1,
    float* __restrict__ p_add_27) {
  assume_threads<32>();
  {  // loop 0: outer 32 / 2 threads, row 1 / 1 threads x 1, col 64 / 16 threads x 1 x 4; 16 tasks; row-reduce: 2 rows a block, 16 threads a row
    const int thread = threadIdx.x;
    const int tx = threadIdx.x % 16;
    const int ty = 0;
    const int to = threadIdx.x / 16;
    const int first = blockIdx.x;
    float add_22_kept_0[4];
    float sub_15_kept_0[4];
    words_of<Vec<float, 4>>::type gamma_1_now_0[1];
    words_of<Vec<float, 4>>::type beta_1_now_0[1];
    {
      const int task = first;
      const int outer = task * 2 + to;
      Reduce0::State reduce_sum_14_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_14_state_0[i] = Reduce0::identity();
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 64 + tx * 4;
          const int at_0 = outer * 64 + col;
          const Vec<float, 4> dot_general_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_dot_general_1 + (at_0));
          const Vec<float, 4> bias_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_bias_1 + (col));
          const Vec<float, 4> residual_1_v_0 = *reinterpret_cast<const Vec<float, 4>*>(p_residual_1 + (at_0));
          gamma_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_gamma_1 + (col));
          beta_1_now_0[k + l] = *reinterpret_cast<const words_of<Vec<float, 4>>::type*>(p_beta_1 + (col));
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float dot_general_1 = load_as<float>(dot_general_1_v_0.v[lane]);
            const float bias_1 = load_as<float>(bias_1_v_0.v[lane]);
            const float add_19 = hlo_add(dot_general_1, bias_1);
            const float integer_pow_2 = hlo_multiply(add_19, add_19);
            const float integer_pow_3 = hlo_multiply(integer_pow_2, add_19);
            const float mul_18 = hlo_multiply(integer_pow_3, 0.044715f);
            const float add_20 = hlo_add(add_19, mul_18);
            const float mul_19 = hlo_multiply(add_20, 0.7978846f);
            const float tanh_1 = hlo_tanh(mul_19);
            const float add_21 = hlo_add(tanh_1, 1.0f);
            const float mul_20 = hlo_multiply(add_21, 0.5f);
            const float mul_21 = hlo_multiply(add_19, mul_20);
            const float residual_1 = load_as<float>(residual_1_v_0.v[lane]);
            const float add_22 = hlo_add(mul_21, residual_1);
            add_22_kept_0[k * 4 + l * 4 + lane] = add_22;
            reduce_sum_14_state_0[0] = Reduce0::combine(reduce_sum_14_state_0[0], Reduce0::State{add_22});
          }
        }
      }
      reduce_lanes<Reduce0, 16, 1>(reduce_sum_14_state_0);
      Reduce0::State reduce_sum_15_state_0[1];
      #pragma unroll
      for (int i = 0; i < 1; ++i) reduce_sum_15_state_0[i] = Reduce0::identity();
      const float reduce_sum_14 = reduce_sum_14_state_0[0].f0;
      const float div_2_divide_0 = hlo_divide_shared(reduce_sum_14, 64.0f);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 64 + tx * 4;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float add_22__1 = add_22_kept_0[k * 4 + l * 4 + lane];
            const float sub_15 = hlo_subtract(add_22__1, div_2_divide_0);
            sub_15_kept_0[k * 4 + l * 4 + lane] = sub_15;
            const float square_1 = hlo_multiply(sub_15, sub_15);
            reduce_sum_15_state_0[0].f0 = hlo_multiply_add(sub_15, sub_15, reduce_sum_15_state_0[0].f0);
          }
        }
      }
      reduce_lanes<Reduce0, 16, 1>(reduce_sum_15_state_0);
      const float reduce_sum_15 = reduce_sum_15_state_0[0].f0;
      const float div_3_divide_0 = hlo_divide_shared(reduce_sum_15, 64.0f);
      const float add_23_add_0 = hlo_add(div_3_divide_0, 1e-06f);
      const float rsqrt_1_rsqrt_0 = hlo_rsqrt(add_23_add_0);
      {
        const int k = 0;
        {
          const int l = 0;
          const int col = l * 64 + tx * 4;
          const Vec<float, 4> gamma_1_v_0 = from_words<Vec<float, 4>>(gamma_1_now_0[k + l]);
          const Vec<float, 4> beta_1_v_0 = from_words<Vec<float, 4>>(beta_1_now_0[k + l]);
          const int at_0__1 = outer * 64 + col;
          Vec<float, 4> add_27_w_0;
          #pragma unroll
          for (int lane = 0; lane < 4; ++lane) {
            const float sub_15__1 = sub_15_kept_0[k * 4 + l * 4 + lane];
            const float mul_25 = hlo_multiply(sub_15__1, rsqrt_1_rsqrt_0);
            const float gamma_1 = load_as<float>(gamma_1_v_0.v[lane]);
            const float mul_29 = hlo_multiply(mul_25, gamma_1);
            const float beta_1 = load_as<float>(beta_1_v_0.v[lane]);
            const float add_27 = hlo_add(mul_29, beta_1);
            add_27_w_0.v[lane] = store_as<float>(add_27);
          }
          *reinterpret_cast<Vec<float, 4>*>(p_add_27 + (at_0__1)) = add_27_w_0;
        }
      }
    }
  }
}
